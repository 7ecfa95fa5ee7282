// Which inputs go on to the next layer: dead ones leave, without a word to the host.
//
// Idea: layers mark the inputs that live. One block counts the marks; where enough inputs have
// died it lists the others, in order, so that the next layer reads its features through the list
// and writes them side by side: no launch only moves features. The marks are cleared on the way.
//
// Bound: latency, of some passes of one block over a byte for each input; the marks of 60,000
// inputs are read twice in about a hundred steps.
//
// Configuration:
// THREADS 1024:   one block alone: order and counts need no second launch and no atomics.
// SHARE 16:       inputs leave when a sixteenth of them is dead: reading through the list costs
//                 sectors of the dead, once, which fewer dead do not earn.
#include "common.cuh"

#define THREADS 1024
#define WARPS (THREADS / 32)
#define SHARE 16
#define KEEP 0   // dead inputs stay, and are counted
#define DROP 1   // they leave once they are enough
#define ALWAYS 2 // all of them leave

// The number of set predicates in the lanes and warps before this thread, and of the block.
__device__ __forceinline__ int place_in_block(bool is_set, int* warp_sums, int& total) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
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

// before, after: InputState of a layer and of the next. ids: which inputs the columns are.
extern "C" __global__ void __launch_bounds__(THREADS)
list_alive(int* before, int* after, unsigned char* __restrict__ alive,
           const int* __restrict__ ids, int* __restrict__ ids_after, int* __restrict__ source,
           int policy) {
    __shared__ int warp_sums[WARPS];
    const InputState inputs = *reinterpret_cast<const InputState*>(before);
    const int rounds = (inputs.count + THREADS - 1) / THREADS;
    int living = 0;
    for (int round = 0; round < rounds; ++round) {
        const int i = round * THREADS + threadIdx.x;
        living += __syncthreads_count(i < inputs.count && alive[i] != 0);
    }
    const int dead = inputs.count - living;
    const bool leave = policy == ALWAYS || (policy == DROP && dead > 0 &&
                                            dead >= inputs.count / SHARE);
    int top = 0;
    for (int round = 0; round < rounds; ++round) {
        const int i = round * THREADS + threadIdx.x;
        bool stays = false;
        if (i < inputs.count) {
            stays = !leave || alive[i] != 0;
            alive[i] = 0;
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
        next.alive = living;
        next.nans = 0;
        *reinterpret_cast<InputState*>(after) = next;
    }
}
