// Which rows of features are equal to the bit, and which have items that are all equal.
//
// Idea: a row is a run of 32-bit words, whatever they hold: bits, floats, halves of doubles. A warp
// hashes a row: each word is scrambled together with its place, and the hash is their sum, which is
// the same in any order. Rows of one hash meet in a slot of a table, which keeps the first of them;
// then each row is compared with that one whole. A row that only shares the hash stays by itself,
// so that a collision costs speed, never correctness.
//
// Bound: device memory. `hash_rows` reads each row once; `match_rows` the rows that are not the
// first of their hash, whose first ones stay in L2 where they are few; `uniform_rows` reads a row
// until two of its items differ. On sm_90 a word takes 25 instructions to be hashed, 4.7 TB/s by the
// data sheet of an H100, so that memory binds before. Atomics on the table are a few for each row.
//
// Configuration:
// THREADS 256:    a warp for each row; warps share nothing.
// UNROLL 8:       words of a lane that are on their way at a time: 1 KiB a warp.
// HASH_MASK ~0:   the bits of the hash that are used; tests leave few, so that hashes collide.
#include "common.cuh"

#define THREADS 256
#define UNROLL 8
#ifndef HASH_MASK
#define HASH_MASK (~0ull)
#endif

// The row that a warp works on, of the chosen ones.
__device__ __forceinline__ int row_of_warp() {
    return blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
}

__device__ __forceinline__ const unsigned* words_of(const unsigned char* rows, int words, int row) {
    return reinterpret_cast<const unsigned*>(rows) + size_t(row) * words;
}

// Whether differs(k) holds for any k below `count`, asked by a whole warp: it stops soon after the
// first.
template <typename Differs>
__device__ __forceinline__ bool any_differs(int count, Differs differs) {
    bool found = false;
    for (int begin = 0; begin < count && !found; begin += 32 * UNROLL) {
        bool mine = false;
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const int k = begin + 32 * u + threadIdx.x % 32;
            if (k < count) mine |= differs(k);
        }
        found = __any_sync(FULL_WARP, mine);
    }
    return found;
}

// Scrambles 64 bits: the finaliser of SplitMix64, as portable_spdnn.hashing has it.
__device__ __forceinline__ unsigned long long mix64(unsigned long long x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

// slots[i] = the slot of the table in which rows with the hash of row chosen[i] meet. The table has
// mask + 1 slots, a power of two that is more than `count`, and begins all zero: keys hold hashes,
// 0 where a slot is free, and firsts[slot] is count - i for the first of its rows.
extern "C" __global__ void __launch_bounds__(THREADS)
hash_rows(const unsigned char* __restrict__ rows, int words, const int* __restrict__ chosen,
          int count, unsigned long long* keys, int* firsts, int mask, int* __restrict__ slots) {
    const int i = row_of_warp();
    if (i >= count) return;
    const unsigned* row = words_of(rows, words, chosen[i]);
    unsigned long long hash = 0;
#pragma unroll UNROLL
    for (int k = threadIdx.x % 32; k < words; k += 32)
        hash += mix64(static_cast<unsigned long long>(k + 1) << 32 | row[k]);
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) hash += __shfl_xor_sync(FULL_WARP, hash, lanes);
    if (threadIdx.x % 32 != 0) return;
    const unsigned long long key = (hash & HASH_MASK) | 1ull;
    int slot = int(key >> 1) & mask;
    for (;; slot = (slot + 1) & mask) {  // ends: there are more slots than rows
        const unsigned long long found = atomicCAS(&keys[slot], 0ull, key);
        if (found == 0 || found == key) break;
    }
    atomicMax(&firsts[slot], count - i);
    slots[i] = slot;
}

// leaders[i] = the first of the chosen rows that has the hash of row i and equals it; else i.
extern "C" __global__ void __launch_bounds__(THREADS)
match_rows(const unsigned char* __restrict__ rows, int words, const int* __restrict__ chosen,
           int count, const int* __restrict__ firsts, const int* __restrict__ slots,
           int* __restrict__ leaders) {
    const int i = row_of_warp();
    if (i >= count) return;
    const int first = count - firsts[slots[i]];
    const unsigned* row = words_of(rows, words, chosen[i]);
    const unsigned* other = words_of(rows, words, chosen[first]);
    const bool differs =
        first != i && any_differs(words, [&](int k) { return row[k] != other[k]; });
    if (threadIdx.x % 32 == 0) leaders[i] = differs ? i : first;
}

// uniform[i] = whether the items of row chosen[i] are equal as numbers, which NaN is to nothing;
// values[i] = its first item. There is at least one.
extern "C" __global__ void __launch_bounds__(THREADS)
uniform_rows(const SCALAR* __restrict__ rows, int neurons, const int* __restrict__ chosen,
             int count, unsigned char* __restrict__ uniform, SCALAR* __restrict__ values) {
    const int i = row_of_warp();
    if (i >= count) return;
    const SCALAR* row = rows + size_t(chosen[i]) * neurons;
    const SCALAR value = row[0];
    const bool differs = any_differs(neurons, [&](int k) { return !(row[k] == value); });
    if (threadIdx.x % 32 == 0) {
        uniform[i] = !differs;
        values[i] = value;
    }
}
