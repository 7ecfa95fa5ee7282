// Transposes of TILE x TILE items through shared memory.
//
// TILE 32: a warp reads and writes whole sectors; rows of 33 items avoid bank conflicts.
#pragma once
#include "common.cuh"

#define TILE 32

// Calls load(k, x), which returns item x of row k of a tile or anything beyond its end, and then
// store(k, x, item x of column k), for all k and x below TILE; neighbouring threads have
// neighbouring x. All threads of a block meet at the barrier between.
template <typename Load, typename Store>
__device__ __forceinline__ void transpose_tile(Load load, Store store) {
    __shared__ SCALAR tile[TILE * (TILE + 1)];
    const int x = threadIdx.x % TILE, step = blockDim.x / TILE;
    for (int k = threadIdx.x / TILE; k < TILE; k += step) tile[k * (TILE + 1) + x] = load(k, x);
    __syncthreads();
    for (int k = threadIdx.x / TILE; k < TILE; k += step) store(k, x, tile[x * (TILE + 1) + k]);
}
