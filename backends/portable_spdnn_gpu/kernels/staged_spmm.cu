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
// ACTIVATION:    1 adds the bias, applies ReLU and clamp; 0 leaves the plain product.
#include "common.cuh"

#define THREADS 256
#define WARPS (THREADS / 32)
#define MINIBATCH 16
#define PITCH (STAGE + 1)

// block_stages: blocks + 1 offsets of stages. stage_bounds: stages + 1 offsets into map.
// slices: stages x WARPS + 1 offsets, counted in warps of entries.
extern "C" __global__ void __launch_bounds__(THREADS)
staged_spmm(const int* __restrict__ block_stages, const int* __restrict__ stage_bounds,
            const int* __restrict__ map, const int* __restrict__ slices,
            const unsigned short* __restrict__ positions, const SCALAR* __restrict__ values,
            const SCALAR* __restrict__ B, SCALAR* __restrict__ C, int rows, int columns,
            const SCALAR* __restrict__ bias, SCALAR y_max) {
    DYNAMIC_SHARED(SCALAR, staged);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int row = blockIdx.x * THREADS + threadIdx.x;
    const int first = blockIdx.y * MINIBATCH;
    const int mine = threadIdx.x % MINIBATCH;  // the column that this thread copies
    SCALAR sums[MINIBATCH];
#pragma unroll
    for (int i = 0; i < MINIBATCH; ++i) sums[i] = SCALAR(0);

    for (int stage = block_stages[blockIdx.x]; stage < block_stages[blockIdx.x + 1]; ++stage) {
        const int begin = stage_bounds[stage], count = stage_bounds[stage + 1] - begin;
        __syncthreads();  // the last stage has been read
        for (int k = threadIdx.x / MINIBATCH; k < count; k += THREADS / MINIBATCH)
            staged[mine * PITCH + k] =
                first + mine < columns ? B[size_t(map[begin + k]) * columns + first + mine]
                                       : SCALAR(0);
        if (threadIdx.x < MINIBATCH) staged[threadIdx.x * PITCH + STAGE] = SCALAR(0);
        __syncthreads();
        const int end = slices[stage * WARPS + warp + 1];
        for (int k = slices[stage * WARPS + warp]; k < end; ++k) {
            const size_t entry = size_t(k) * 32 + lane;
            const SCALAR* at = staged + positions[entry];
            const SCALAR value = values[entry];
#pragma unroll
            for (int i = 0; i < MINIBATCH; ++i) sums[i] += value * at[i * PITCH];
        }
    }
    if (row >= rows) return;
    SCALAR* out = C + size_t(row) * columns + first;
#pragma unroll
    for (int i = 0; i < MINIBATCH; ++i)
        if (first + i < columns) {
#if ACTIVATION
            out[i] = activate(sums[i], bias[row], y_max);
#else
            out[i] = sums[i];
#endif
        }
}
