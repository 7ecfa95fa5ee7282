// Which inputs go on to the next step: inactive ones leave, and the host is not asked.
//
// Idea: layers mark the active inputs. One block counts the marks; where enough inputs have
// become inactive it lists the others, in order, so that the next step reads its features through
// the list and writes them side by side: no launch only moves features. The marks are cleared on
// the way.
//
// Bound: latency, of some passes of one block over a byte for each input; the marks of 60,000
// inputs are read twice in about a hundred rounds.
//
// Configuration:
// THREADS 1024: one block alone, so that order and counts need no second launch and no atomics.
// SHARE 16:     inputs leave when a sixteenth is inactive: reading through the list costs,
//               once, the sectors in which inactive inputs lie, which fewer do not earn.
#include "common.cuh"

#define THREADS 1024
#define WARPS (THREADS / 32)
#define SHARE 16
#define KEEP 0    // inactive inputs stay, and are counted
#define DROP 1    // they leave once they are enough
#define ALWAYS 2  // all of them leave

// An exclusive scan: the number of set predicates in the threads before this one; `total` is that
// of the block. warp_sums: WARPS integers of shared memory. The first barrier makes all of them
// known; the second keeps the next call from writing them while they are read.
__device__ __forceinline__ int place_in_block(bool is_set, int* warp_sums, int& total) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    // A bit for each lane: all of them counted are the warp's, those below a lane's own its place.
    const unsigned votes = __ballot_sync(FULL_WARP, is_set);
    if (lane == 0) warp_sums[warp] = __popc(votes);
    __syncthreads();
    int before = 0;
    total = 0;
    for (int w = 0; w < WARPS; ++w) {
        before += w < warp ? warp_sums[w] : 0;
        total += warp_sums[w];
    }
    __syncthreads();
    return before + __popc(votes & ((1u << lane) - 1u));
}

// before, after: the InputState of the last step, and that of the next one, which is written. ids,
// ids_after: which inputs of the batch the columns are. source: where the next step reads them.
extern "C" __global__ void __launch_bounds__(THREADS)
list_active(int* before, int* after, unsigned char* __restrict__ active,
           const int* __restrict__ ids, int* __restrict__ ids_after, int* __restrict__ source,
           int policy) {
    __shared__ int warp_sums[WARPS];
    const InputState inputs = *reinterpret_cast<const InputState*>(before);
    const int rounds = (inputs.count + THREADS - 1) / THREADS;
    int found = 0;
    for (int round = 0; round < rounds; ++round) {
        const int i = round * THREADS + threadIdx.x;
        // One barrier that also counts, over the block, the threads for which this holds.
        found += __syncthreads_count(i < inputs.count && active[i] != 0);
    }
    const int inactive = inputs.count - found;
    const bool leave = policy == ALWAYS || (policy == DROP && inactive > 0 &&
                                            inactive >= inputs.count / SHARE);
    int top = 0;
    for (int round = 0; round < rounds; ++round) {
        const int i = round * THREADS + threadIdx.x;
        bool stays = false;
        if (i < inputs.count) {
            stays = !leave || active[i] != 0;
            active[i] = 0;
        }
        int total;
        const int at = top + place_in_block(stays, warp_sums, total);
        if (stays) {
            ids_after[at] = ids[i];
            source[at] = i;
        }
        top += total;
    }
    if (threadIdx.x == 0) {
        InputState next;
        next.count = top;
        next.gathers = leave;
        next.active = found;
        next.overflowed = 0;
        *reinterpret_cast<InputState*>(after) = next;
    }
}
