// What the device can do at most: multiply-adds, and reads from each level of memory.
//
// Idea: each kernel keeps one unit of the device busy and leaves the others idle, with the
// instructions that the product kernels are compiled to as well. Everything that is computed or
// read goes into a sum that is written, and addresses change from round to round, so that the
// compiler can leave no step out. What is read is whole numbers, which have the same sum modulo
// 2^32 in every order: the host compares it with a formula after each timing.
//
// Threads: as many blocks as fit the device at a time, all with the same work; neighbours read
// neighbouring vectors of 16 bytes.
//
// Bound, each by what it measures: `fma_chains` by the float pipes; `read_shared` by the 128
// bytes that shared memory gives a multiprocessor in a cycle; `read_global` by L2 where the array
// fits it, else by device memory.
//
// Configuration:
// THREADS 256:  with four blocks for each multiprocessor 32 warps, of up to 64 registers: all
//               resident at once on every architecture, so that no last wave runs half empty.
// CHAINS 8:     independent sums of a thread: with eight warps of a scheduler, sixteen times what
//               a latency of four cycles asks for.
// UNROLL 16:    steps of a chain between two tests of the loop's end: 128 multiply-adds for one.
// READS 4, 8:   loads of 16 bytes in flight in each thread, from global and from shared memory.
// VECTORS 1024: vectors of shared memory, 16 KiB: four blocks fit every architecture.
#include "common.cuh"

#define THREADS 256
#define CHAINS 8
#define UNROLL 16
#define READS 4
#define SHARED_READS 8
#define VECTORS 1024
// `read_shared` begins anywhere in the first WINDOW vectors and reads up to 7 x 64 further on.
#define WINDOW 512
#define SHARED_STEP 64
// Chunks between those of one block in two rounds: blocks that share a multiprocessor do not
// follow each other's traces.
#define SHIFT 61
// Word i of an array is i x SCATTER modulo 2^32: bits that look random, and a sum with a formula.
#define SCATTER 2654435761u

__device__ __forceinline__ unsigned total(uint4 sums) {
    return sums.x + sums.y + sums.z + sums.w;
}

__device__ __forceinline__ void add(uint4& sums, uint4 value) {
    sums.x += value.x;
    sums.y += value.y;
    sums.z += value.z;
    sums.w += value.w;
}

// `rounds` x UNROLL steps x = factor x + term in each chain, from start + chain; their sums. fmaf
// is one instruction, whatever the compiler's options make of a product and a sum.
extern "C" __global__ void __launch_bounds__(THREADS)
fma_chains(int rounds, SCALAR factor, SCALAR term, const SCALAR* __restrict__ starts,
           SCALAR* __restrict__ results) {
    const int thread = blockIdx.x * THREADS + threadIdx.x;
    SCALAR values[CHAINS];
#pragma unroll
    for (int c = 0; c < CHAINS; ++c) values[c] = starts[thread] + SCALAR(c);
    for (int round = 0; round < rounds; ++round) {
#pragma unroll
        for (int step = 0; step < UNROLL; ++step)
#pragma unroll
            for (int c = 0; c < CHAINS; ++c) values[c] = fmaf(values[c], factor, term);
    }
    SCALAR sum = SCALAR(0);
#pragma unroll
    for (int c = 0; c < CHAINS; ++c) sum += values[c];
    results[thread] = sum;
}

// Every thread reads SHARED_READS vectors in each of `rounds`; neighbours read neighbours, so
// that eight lanes take all 32 banks at once, without a conflict.
extern "C" __global__ void __launch_bounds__(THREADS)
read_shared(int rounds, unsigned* __restrict__ results) {
    __shared__ uint4 vectors[VECTORS];
    for (int i = threadIdx.x; i < VECTORS; i += THREADS) {
        const unsigned word = 4u * unsigned(i);
        vectors[i] = {word * SCATTER, (word + 1u) * SCATTER, (word + 2u) * SCATTER,
                      (word + 3u) * SCATTER};
    }
    __syncthreads();
    uint4 sums = {0u, 0u, 0u, 0u};
    for (int round = 0; round < rounds; ++round) {
        const uint4* at = vectors + ((threadIdx.x + 8u * unsigned(round)) % WINDOW);
#pragma unroll
        for (int k = 0; k < SHARED_READS; ++k) add(sums, at[k * SHARED_STEP]);
    }
    results[blockIdx.x * THREADS + threadIdx.x] = total(sums);
}

// Writes `chunks` x gridDim.x chunks of THREADS x READS vectors.
extern "C" __global__ void __launch_bounds__(THREADS)
fill_words(int chunks, unsigned* __restrict__ words) {
    uint4* to = reinterpret_cast<uint4*>(words);
    for (int chunk = 0; chunk < chunks; ++chunk) {
        const size_t first = (size_t(chunk) * gridDim.x + blockIdx.x) * (THREADS * READS);
#pragma unroll
        for (int k = 0; k < READS; ++k) {
            const size_t i = first + k * THREADS + threadIdx.x;
            const unsigned word = 4u * unsigned(i);
            to[i] = {word * SCATTER, (word + 1u) * SCATTER, (word + 2u) * SCATTER,
                     (word + 3u) * SCATTER};
        }
    }
}

// All blocks together read an array of `chunks` x gridDim.x chunks in each of `rounds`, every
// block other chunks each time. The loads bypass the first-level cache (__ldcg), which would
// otherwise serve a part of them.
extern "C" __global__ void __launch_bounds__(THREADS)
read_global(int rounds, int chunks, const unsigned* __restrict__ words,
            unsigned* __restrict__ results) {
    const uint4* from = reinterpret_cast<const uint4*>(words);
    uint4 sums = {0u, 0u, 0u, 0u};
    for (int round = 0; round < rounds; ++round) {
        const unsigned mine = (blockIdx.x + unsigned(round) * SHIFT) % gridDim.x;
        for (int chunk = 0; chunk < chunks; ++chunk) {
            const size_t first = (size_t(chunk) * gridDim.x + mine) * (THREADS * READS);
            uint4 loaded[READS];
#pragma unroll
            for (int k = 0; k < READS; ++k)
                loaded[k] = __ldcg(from + first + k * THREADS + threadIdx.x);
#pragma unroll
            for (int k = 0; k < READS; ++k) add(sums, loaded[k]);
        }
    }
    results[blockIdx.x * THREADS + threadIdx.x] = total(sums);
}
