// Features from the host's layouts into the device's, [neuron][input], and back to rows.
//
// Idea: features are copied to the device in the form in which the host has them, which is the
// smallest (bits, CSR, rows), a part of the inputs at a time, and are spread out there; scores are
// gathered and transposed by one kernel. The kernels that bring features in mark the active inputs.
//
// Bound: device memory; of `unpack_bits` the features written, since a bit becomes a number.
//
// Configuration:
// THREADS 256: a warp writes neighbouring inputs of one neuron: whole sectors.
// BYTES 64:    bytes of an input's bits that a thread spreads: half a cache line, read once.
// TILE:        inputs and neurons that are transposed at a time, see transpose.cuh.
#include "transpose.cuh"

#define THREADS 256
#define BYTES 64

// Of the kernels that bring features in: `inputs` is the number of inputs in the part that is
// given; the first of them is input `first` of the batch. `chosen` says which row of the part each
// of them is, where a part need not hold them side by side.

// bits: row_bytes for each row, the first neuron in the highest bit of the first byte. A block
// takes THREADS inputs and BYTES x 8 neurons.
extern "C" __global__ void __launch_bounds__(THREADS)
unpack_bits(const unsigned char* __restrict__ bits, int row_bytes, int neurons,
            const int* __restrict__ chosen, int first, int inputs, STORED* __restrict__ to,
            int pitch, unsigned char* __restrict__ active) {
    const int input = blockIdx.x * THREADS + threadIdx.x;
    if (input >= inputs) return;
    const int end = min(row_bytes, int(blockIdx.y + 1) * BYTES);
    const size_t row = size_t(chosen[input]) * row_bytes;
    unsigned any = 0;
    for (int b = blockIdx.y * BYTES; b < end; ++b) {
        const unsigned byte = bits[row + b];
        any |= byte;
#pragma unroll
        for (int j = 0; j < 8; ++j)
            if (b * 8 + j < neurons)
                to[size_t(b * 8 + j) * pitch + first + input] =
                    narrow(SCALAR(byte >> (7 - j) & 1u));
    }
    if (any) active[first + input] = 1;
}

// offsets, indices, values: the part in CSR, a row for each input; one warp takes a row. The
// features `to` have been cleared.
extern "C" __global__ void __launch_bounds__(THREADS)
spread_csr(const int* __restrict__ offsets, const int* __restrict__ indices,
           const SCALAR* __restrict__ values, int first, int inputs, STORED* __restrict__ to,
           int pitch, unsigned char* __restrict__ active) {
    const int input = blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (input >= inputs) return;
    for (int k = offsets[input] + threadIdx.x % 32; k < offsets[input + 1]; k += 32) {
        to[size_t(indices[k]) * pitch + first + input] = narrow(values[k]);
        if (values[k] != SCALAR(0)) active[first + input] = 1;
    }
}

// rows: [row][neuron]. A block transposes TILE inputs x TILE neurons.
extern "C" __global__ void __launch_bounds__(THREADS)
turn_rows(const SCALAR* __restrict__ rows, int neurons, const int* __restrict__ chosen, int first,
          int inputs, STORED* __restrict__ to, int pitch, unsigned char* __restrict__ active) {
    const int neuron = blockIdx.y * TILE, input = blockIdx.x * TILE;
    const auto load = [&](int k, int x) {
        if (input + k >= inputs || neuron + x >= neurons) return SCALAR(0);
        const SCALAR feature = rows[size_t(chosen[input + k]) * neurons + neuron + x];
        if (feature != SCALAR(0)) active[first + input + k] = 1;
        return feature;
    };
    transpose_tile(load, [&](int k, int x, SCALAR feature) {
        if (neuron + k < neurons && input + x < inputs)
            to[size_t(neuron + k) * pitch + first + input + x] = narrow(feature);
    });
}

// rows: [i][neuron] of `inputs` of the inputs that `state` counts, from `first` on; where each is
// read, `source` says. A block transposes TILE neurons x TILE inputs.
extern "C" __global__ void __launch_bounds__(THREADS)
collect_rows(const STORED* __restrict__ from, int pitch, const int* __restrict__ state,
             const int* __restrict__ source, int neurons, int first, int inputs,
             SCALAR* __restrict__ rows) {
    const InputState all = *reinterpret_cast<const InputState*>(state);
    const int neuron = blockIdx.y * TILE, input = blockIdx.x * TILE;
    const int place = place_of(first + input + int(threadIdx.x % TILE), all, source);
    const auto load = [&](int k, int) {
        return neuron + k < neurons ? widen(from[size_t(neuron + k) * pitch + place]) : SCALAR(0);
    };
    transpose_tile(load, [&](int k, int x, SCALAR score) {
        if (input + k < inputs && neuron + x < neurons)
            rows[size_t(input + k) * neurons + neuron + x] = score;
    });
}

// ids[i] = i
extern "C" __global__ void __launch_bounds__(THREADS)
number_inputs(int* __restrict__ ids, int inputs) {
    const int i = blockIdx.x * THREADS + threadIdx.x;
    if (i < inputs) ids[i] = i;
}
