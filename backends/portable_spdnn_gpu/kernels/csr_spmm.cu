// C = A B, or the fused layer min(max(A B + bias, 0), y_max): one row of A against a strip of B.
//
// Idea: A is CSR, B and C hold their columns innermost. A block takes one row of A and a strip
// of THREADS x COLUMNS columns. All threads read the same index and value at the same time (one
// broadcast for each warp) and neighbouring columns of B (whole sectors), and every sum stays in
// a register until its row is done, so that C is written once and needs no zeros before.
//
// Bound: the loads of B. Each multiply-add costs one element of B, from L2 at best: nothing is
// shared between the rows of A. Rows that share their indices belong to clustered_spmm.
//
// Configuration:
// THREADS 128: four warps; a strip of 512 columns keeps a sector's four neighbours in one block.
// COLUMNS 4:   four independent sums hide the latency of a multiply-add, and an index and a
//              value are read once for four multiply-adds.
// ACTIVATION:  1 adds the bias, applies ReLU and clamp; 0 leaves the plain product.
#include "common.cuh"

#define THREADS 128
#define COLUMNS 4

extern "C" __global__ void __launch_bounds__(THREADS)
csr_spmm(const int* __restrict__ offsets, const int* __restrict__ indices,
         const SCALAR* __restrict__ values, const int* __restrict__ rows,
         const SCALAR* __restrict__ B, SCALAR* __restrict__ C, int columns,
         const SCALAR* __restrict__ bias, SCALAR y_max) {
    const int row = rows[blockIdx.x];
    const int first = blockIdx.y * (THREADS * COLUMNS) + threadIdx.x;
    const int end = offsets[row + 1];
    SCALAR sums[COLUMNS];
#pragma unroll
    for (int i = 0; i < COLUMNS; ++i) sums[i] = SCALAR(0);
    for (int k = offsets[row]; k < end; ++k) {
        const SCALAR value = values[k];
        const SCALAR* strip = B + size_t(indices[k]) * columns;
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i) {
            const int column = first + i * THREADS;
            if (column < columns) sums[i] += value * strip[column];
        }
    }
    SCALAR* out = C + size_t(row) * columns;
#pragma unroll
    for (int i = 0; i < COLUMNS; ++i) {
        const int column = first + i * THREADS;
        if (column < columns) {
#if ACTIVATION
            out[column] = activate(sums[i], bias[row], y_max);
#else
            out[column] = sums[i];
#endif
        }
    }
}
