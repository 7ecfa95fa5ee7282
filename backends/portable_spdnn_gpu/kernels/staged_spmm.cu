// The product or fused layer with rows of B staged in shared memory through a preload map.
//
// Idea: a block takes THREADS rows of A, one a thread, and MINIBATCH columns of B, whose sums it
// keeps in registers. The rows of B that the block's rows of A need are listed once, without
// repeats (the map), and cut into stages of at most STAGE. For each stage the block copies those
// rows of B to shared memory and every thread multiplies from there. The entries of A lie in
// slices of a warp (sliced ELL): 16-bit positions in the stage and values, interleaved so that
// a warp reads neighbours.
//
// Source: M. Hidayetoglu et al., "At-Scale Sparse Deep Neural Network Inference with Efficient
// GPU Implementation", HPEC 2020. Other than there, B holds its columns innermost, so that a
// half-warp copies whole sectors of one row of B.
//
// Bound: shared memory: one read for a multiply-add; an index and a value are read once for
// MINIBATCH multiply-adds.
//
// Configuration:
// THREADS 256:   the rows of A that share a map; more share more, and eight warps hide latency.
// MINIBATCH 16:  sums in registers for each thread; 16 floats are two sectors of a row of B.
// STAGE:         rows of B staged at a time: 512 in float, 256 in double; 32 KiB both.
// PITCH STAGE+1: one column of padding: 16 rows begin in 16 banks, so that the copy does not
//                conflict; the padding's column holds 0 and is what absent entries of a slice
//                point at, so that they add 0 x 0 whatever is staged.
// BLOCKS 3:      on a multiprocessor at least: 80 registers a thread, so that nothing is spilled.
// ACTIVATION:    1 adds the bias, applies ReLU and clamp, and marks inputs that live; 0 leaves the
//                plain product.
#include "common.cuh"

#define THREADS 256
#define WARPS (THREADS / 32)
#define MINIBATCH 16
#define BLOCKS 3
#define PITCH (STAGE + 1)

// block_stages: units + 1 offsets of stages. stage_bounds: stages + 1 offsets into map.
// slices: stages x WARPS + 1 offsets, counted in warps of entries. all_rows: how many there are.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
staged_spmm(const int* __restrict__ block_stages, const int* __restrict__ stage_bounds,
            const int* __restrict__ map, const int* __restrict__ slices,
            const unsigned short* __restrict__ positions, const STORED* __restrict__ values,
            const int* __restrict__ all_rows, int units, const STORED* __restrict__ from, STORED* __restrict__ to,
            int pitch, int* state, const int* __restrict__ source,
            unsigned char* __restrict__ alive, const SCALAR* __restrict__ bias, SCALAR y_max) {
    DYNAMIC_SHARED(SCALAR, staged);
    const InputState inputs = *reinterpret_cast<const InputState*>(state);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int mine = threadIdx.x % MINIBATCH;  // the column that this thread copies
    const int strips = (inputs.count + MINIBATCH - 1) / MINIBATCH;
    const long long items = (long long)units * strips;
    for (long long item = blockIdx.x; item < items; item += gridDim.x) {
        const int unit = int(item % units), first = int(item / units) * MINIBATCH;
        const int row = unit * THREADS + threadIdx.x;
        const int place = place_of(first + mine, inputs, source);
        SCALAR sums[MINIBATCH];
#pragma unroll
        for (int i = 0; i < MINIBATCH; ++i) sums[i] = SCALAR(0);

        for (int stage = block_stages[unit]; stage < block_stages[unit + 1]; ++stage) {
            const int begin = stage_bounds[stage], count = stage_bounds[stage + 1] - begin;
            __syncthreads();  // the last stage has been read
            for (int k = threadIdx.x / MINIBATCH; k < count; k += THREADS / MINIBATCH)
                staged[mine * PITCH + k] = widen(from[size_t(map[begin + k]) * pitch + place]);
            if (threadIdx.x < MINIBATCH) staged[threadIdx.x * PITCH + STAGE] = SCALAR(0);
            __syncthreads();
            const int end = slices[stage * WARPS + warp + 1];
            for (int k = slices[stage * WARPS + warp]; k < end; ++k) {
                const size_t entry = size_t(k) * 32 + lane;
                const SCALAR* at = staged + positions[entry];
                const SCALAR value = widen(values[entry]);
#pragma unroll
                for (int i = 0; i < MINIBATCH; ++i) sums[i] += value * at[i * PITCH];
            }
        }
        const int last = row < *all_rows ? inputs.count : 0;
        STORED* out = to + size_t(row) * pitch + first;
#pragma unroll
        for (int i = 0; i < MINIBATCH; ++i)
            if (first + i < last) {
#if ACTIVATION
                const STORED y = narrow(activate(sums[i], bias[row], y_max));
                mark(widen(y) != SCALAR(0), widen(y) != widen(y), first + i, alive, state);
                out[i] = y;
#else
                out[i] = narrow(sums[i]);
#endif
            }
    }
}
