// What the layer loop asks about features: which inputs are active, and those inputs alone.
//
// Idea: features are held [neuron][input], inputs innermost, so that a thread follows one input
// through the neurons while its warp reads whole sectors, and threads need nothing of each other.
// Dense arrays in the other order pass through `transpose` first.
//
// Bound: device memory, each feature read once, and written once by the kernels that move it.
//
// Configuration:
// THREADS 256: enough warps in a block to cover a load's latency; they share nothing.
// TILE:        rows and columns that `transpose` takes at a time, see transpose.cuh.
#include "transpose.cuh"

#define THREADS 256

// active[input] = whether a feature is not zero, as NaN is not. The walk ends at the first one.
extern "C" __global__ void __launch_bounds__(THREADS)
mark_active(const SCALAR* __restrict__ features, int neurons, int inputs,
           unsigned char* __restrict__ active) {
    const int input = blockIdx.x * THREADS + threadIdx.x;
    if (input >= inputs) return;
    bool found = false;
    for (int neuron = 0; neuron < neurons && !found; ++neuron)
        found = features[size_t(neuron) * inputs + input] != SCALAR(0);
    active[input] = found;
}

// counts[input] = how many of its features are not zero.
extern "C" __global__ void __launch_bounds__(THREADS)
count_nonzeros(const SCALAR* __restrict__ features, int neurons, int inputs,
               int* __restrict__ counts) {
    const int input = blockIdx.x * THREADS + threadIdx.x;
    if (input >= inputs) return;
    int count = 0;
    for (int neuron = 0; neuron < neurons; ++neuron)
        count += features[size_t(neuron) * inputs + input] != SCALAR(0);
    counts[input] = count;
}

// taken[neuron][i] = features[neuron][rows[i]]; a block takes THREADS inputs of one neuron.
extern "C" __global__ void __launch_bounds__(THREADS)
take_dense(const SCALAR* __restrict__ features, int inputs, const int* __restrict__ rows,
           int count, SCALAR* __restrict__ taken) {
    const int i = blockIdx.y * THREADS + threadIdx.x;  // y counts to 65,535; neurons may be more
    if (i >= count) return;
    taken[size_t(blockIdx.x) * count + i] = features[size_t(blockIdx.x) * inputs + rows[i]];
}

// Copies the entries of the chosen rows of a CSR matrix; one warp takes a row.
extern "C" __global__ void __launch_bounds__(THREADS)
take_sparse(const int* __restrict__ offsets, const int* __restrict__ indices,
            const SCALAR* __restrict__ values, const int* __restrict__ rows, int count,
            const int* __restrict__ taken_offsets, int* __restrict__ taken_indices,
            SCALAR* __restrict__ taken_values) {
    const int i = blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (i >= count) return;
    const int begin = offsets[rows[i]], to = taken_offsets[i];
    const int length = taken_offsets[i + 1] - to;
    for (int k = threadIdx.x % 32; k < length; k += 32) {
        taken_indices[to + k] = indices[begin + k];
        taken_values[to + k] = values[begin + k];
    }
}

// to[column][row] = from[row][column]
extern "C" __global__ void __launch_bounds__(THREADS)
transpose(const SCALAR* __restrict__ from, int rows, int columns, SCALAR* __restrict__ to) {
    const int column = blockIdx.x * TILE, row = blockIdx.y * TILE;
    const auto load = [&](int k, int x) {
        const bool within = row + k < rows && column + x < columns;
        return within ? from[size_t(row + k) * columns + column + x] : SCALAR(0);
    };
    transpose_tile(load, [&](int k, int x, SCALAR item) {
        if (column + k < columns && row + x < rows) to[size_t(column + k) * rows + row + x] = item;
    });
}
