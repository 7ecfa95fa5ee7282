// Which inputs go on to the next step: inactive ones leave, and the host is not asked.
//
// Idea: the kernels of a step mark the active inputs. The block of a step's last launch that ends
// last counts the marks, and where enough inputs have become inactive it lists the others, in
// order: the next step reads its features through the list and writes them side by side, so that no
// launch only moves features, and none only lists. A block tells that it is the last by a counter
// in the step's state, which the list before has set to 0: it begins anew with every replay of a
// recorded graph. Where no input leaves only the marks are cleared: ids of inputs stay in place.
//
// Bound: latency, of one block that reads 8 marks a thread, and again those that it lists: two
// rounds of 128 threads for the 1,800 inputs that remain of the challenge's 60,000.
//
// The part of the inputs that has to be inactive before they leave is told to each launch: reading
// through the list costs, once, the sectors in which inactive inputs lie, which the layers that
// follow have to earn.
#pragma once
#include "common.cuh"

#define MARKS 8   // that a thread reads at a time, a byte each
// What a launch does behind its step.
#define KEEP 0     // inactive inputs stay, and are counted
#define ALWAYS 1   // all of them leave
#define NO_LIST 2  // another launch lists, or nobody asks
// Any greater policy: they leave once one of so many inputs is inactive.

// The words of shared memory that a block of so many threads takes for a list.
#define LIST_WORDS(threads) ((threads) / 32 + 1)

// The marks of the 8 inputs from `first` on, as bits. Other blocks have written them: they are
// read in L2, since what L1 has may be older.
__device__ __forceinline__ unsigned marks_of(const unsigned char* active, int first, int count) {
    if (first >= count) return 0;
    const uint2 bytes = __ldcg(reinterpret_cast<const uint2*>(active + first));
    // The product puts the lowest bits of four bytes side by side.
    const unsigned bits =
        (bytes.x * 0x01020408u >> 24 & 15u) | (bytes.y * 0x01020408u >> 20 & 240u);
    const int here = count - first;
    return here < MARKS ? bits & ((1u << here) - 1u) : bits;
}

// An exclusive scan: the sum of `number` over the threads before this one; `total` is that of the
// block. words: LIST_WORDS of shared memory. The first barrier makes the sums of all warps known;
// the second keeps the next call from writing them while they are read.
template <int THREADS_OF_BLOCK>
__device__ __forceinline__ int place_in_block(int number, int* words, int& total) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int upto = number;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const int before = __shfl_up_sync(FULL_WARP, upto, distance);
        if (lane >= distance) upto += before;
    }
    if (lane == 31) words[warp] = upto;
    __syncthreads();
    int before = 0;
    total = 0;
    for (int w = 0; w < THREADS_OF_BLOCK / 32; ++w) {
        before += w < warp ? words[w] : 0;
        total += words[w];
    }
    __syncthreads();
    return before + upto - number;
}

// Lists the inputs that go on to the next step; called by one block. before, after: the InputState
// of the last step, and that of the next one, which is written. active: the marks, which are
// cleared, whole vectors of MARKS. ids: which inputs of the batch the columns are. source: where the
// next step reads them, if any leave.
template <int THREADS_OF_BLOCK>
__device__ __forceinline__ void list_inputs(const int* before, unsigned char* active, int* ids,
                                            int* source, int* after, int policy, int* words) {
    constexpr int AT_A_TIME = THREADS_OF_BLOCK * MARKS;
    const int count = reinterpret_cast<const InputState*>(before)->count;
    int mine = 0, found;
#pragma unroll 4
    for (int first = threadIdx.x * MARKS; first < count; first += AT_A_TIME)
        mine += __popc(marks_of(active, first, count));
    place_in_block<THREADS_OF_BLOCK>(mine, words, found);
    const int inactive = count - found;
    const bool leave = policy == ALWAYS || (policy > NO_LIST && inactive > 0 &&
                                            inactive >= count / policy);
    int top = 0;
    for (int begin = 0; begin < count; begin += AT_A_TIME) {
        const int first = begin + threadIdx.x * MARKS;
        const unsigned bits = leave ? marks_of(active, first, count) : 0;
        if (first < count) *reinterpret_cast<uint2*>(active + first) = uint2{0, 0};
        if (!leave) continue;
        int stay[MARKS];
#pragma unroll
        for (int j = 0; j < MARKS; ++j)
            if (bits >> j & 1u) stay[j] = ids[first + j];
        // All ids of the round have been read before the first is written, to their left or there.
        int total;
        int at = top + place_in_block<THREADS_OF_BLOCK>(__popc(bits), words, total);
#pragma unroll
        for (int j = 0; j < MARKS; ++j)
            if (bits >> j & 1u) {
                ids[at] = stay[j];
                source[at++] = first + j;
            }
        top += total;
    }
    if (threadIdx.x == 0) {
        InputState next;
        next.count = leave ? top : count;
        next.gathers = leave;
        next.active = found;
        next.overflowed = 0;
        next.ended = 0;
        *reinterpret_cast<InputState*>(after) = next;
    }
}

// Ends a launch: its last block lists the inputs that go on, if the policy asks for it. Called by
// all threads of all blocks, when they have marked what they mark. words: LIST_WORDS of shared
// memory that nobody uses any more.
template <int THREADS_OF_BLOCK>
__device__ __forceinline__ void end_step(int* state, unsigned char* active, LIST_PARAMETERS,
                                         int* words) {
    if (policy == NO_LIST) return;
    __threadfence();  // whoever sees this block counted sees its marks
    __syncthreads();
    if (threadIdx.x == 0) {
        const int others = atomicAdd(&reinterpret_cast<InputState*>(state)->ended, 1);
        words[THREADS_OF_BLOCK / 32] = others == int(gridDim.x) - 1;
    }
    __syncthreads();
    if (!words[THREADS_OF_BLOCK / 32]) return;
    __threadfence();  // the marks of the others are not read before they were counted
    list_inputs<THREADS_OF_BLOCK>(state, active, ids, next_source, after, policy, words);
}
