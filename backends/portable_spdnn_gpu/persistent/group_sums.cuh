// The microkernel of the persistent kernel: the sums of a group of rows for a tile of inputs.
//
// Rows of A (outputs) are computed in clusters of 16 that share columns (clusters.py); rows that
// share with none are put in sixteens too. A lane holds a register tile, ROWS rows of its cluster
// by COLUMNS inputs: 32 sums for 12 numbers read. A warp takes CLUSTERS clusters at a time, a
// group: their common columns side by side, then what each row has alone, row by row. What is
// shorter than its neighbours is padded with entries of weight 0 at the row of features that is
// always 0.
//
// Memory of a group, as packing.py writes it: rows of features (16 bits) and biases, [PARTS][ROWS];
// of the common entries columns [common][CLUSTERS][STEPS] and weights
// [common * STEPS][CLUSTERS][CLUSTER]; of the others columns and weights [own][PARTS][STEPS]. A
// column is where its row of features begins, in bytes (32 bits): one addition gives a lane's
// address, where 16-bit numbers of rows would take three instructions for 32 multiply-adds. Lanes of
// one warp so read neighbouring vectors of weights, and lanes that need the same weights meet in one
// access. Features are read in vectors of 4 inputs; the columns of a group's clusters begin in
// different banks.
//
// With CONSTANT no weights are in memory: a header has the one of its layer, which stays in a
// register. Nothing then has to be on its way but columns, and these are read a step before they
// are needed, up to a step behind a group's last: memory goes on behind the last group.
//
// With WIDE, of features in half precision, those in shared memory are numbers of half precision in
// float, so that none is converted in an inner loop: there are 4 for 32 multiply-adds.
#pragma once
#include "common.cuh"

#define CLUSTER 16
#define ROWS 8                                // rows of a cluster that a lane computes
#define COLUMNS 4                             // inputs that a lane computes
#define STEPS 4                               // entries whose columns are read together
#define AHEAD (STEPS / GROUPS)                // entries whose weights are on their way
#define HALVES (CLUSTER / ROWS)               // lanes that compute a cluster for the same inputs
#define LANES (HALVES * TILE / COLUMNS)       // lanes of a cluster
#define CLUSTERS (32 / LANES)                 // clusters of a group
#define PARTS (CLUSTERS * HALVES)             // parts of a group, of ROWS rows each
#define HEADER 16
#ifndef CONSTANT
#define CONSTANT 0
#endif
#ifndef WIDE
#define WIDE 0
#endif

// Own entries that are unrolled: a constant and no macro, which nvcc does not expand in a pragma.
constexpr int OWN_UNROLLED = 2 / GROUPS;

static_assert(ROWS == 8 && HALVES == 2,
              "the lowest bit of a lane tells its half of a cluster: two vectors of 4 rows");

// What a header says of a group, in the order of its integers.
enum {
    BEGIN,              // where its data begin, in units of 16 bytes
    COMMON,             // common entries of a cluster, in STEPS
    OWN,                // ROWS integers: where the own entries of row r of a part end, in STEPS
    NEXT = OWN + ROWS,  // where the data of the next layer begin, in units
    NEXT_LINES,         // and how many cache lines they are
    MAY_STOP,           // whether no later layer activates an inactive input
    WEIGHT              // with CONSTANT: the weight of all entries of the layer, as bits of a float
};

// Four numbers that are moved in one access: the compiler does so with its own vector types alone.
template <int BYTES> struct Vector;
template <> struct Vector<8> { typedef uint2 Type; };
template <> struct Vector<16> { typedef uint4 Type; };
template <class T> struct alignas(4 * sizeof(T)) Four {
    typedef typename Vector<4 * sizeof(T)>::Type Raw;
    T x[4];
};
template <class T> __device__ __forceinline__ Four<T> load(const Four<T>* at) {
    const typename Four<T>::Raw raw = *reinterpret_cast<const typename Four<T>::Raw*>(at);
    Four<T> numbers;
    memcpy(&numbers, &raw, sizeof raw);
    return numbers;
}
// The same from memory that no launch changes, through the read-only cache.
template <class T> __device__ __forceinline__ Four<T> load_constant(const Four<T>* at) {
    const typename Four<T>::Raw raw = __ldg(reinterpret_cast<const typename Four<T>::Raw*>(at));
    Four<T> numbers;
    memcpy(&numbers, &raw, sizeof raw);
    return numbers;
}
template <class T> __device__ __forceinline__ void store(Four<T>* at, const Four<T>& numbers) {
    memcpy(reinterpret_cast<typename Four<T>::Raw*>(at), &numbers, sizeof numbers);
}
template <class T> __device__ __forceinline__ const Four<T>* fours(const unsigned char* at) {
    return reinterpret_cast<const Four<T>*>(at);
}

// Features in shared memory, and what they are brought from, to and into.
#if WIDE
typedef SCALAR FEATURE;
__device__ __forceinline__ FEATURE feature_of(STORED x) { return widen(x); }
__device__ __forceinline__ STORED stored_of(FEATURE x) { return narrow(x); }
__device__ __forceinline__ SCALAR number_of(FEATURE x) { return x; }
__device__ __forceinline__ FEATURE feature_of_number(SCALAR x) { return x; }
#else
typedef STORED FEATURE;
__device__ __forceinline__ FEATURE feature_of(STORED x) { return x; }
__device__ __forceinline__ STORED stored_of(FEATURE x) { return x; }
__device__ __forceinline__ SCALAR number_of(FEATURE x) { return widen(x); }
__device__ __forceinline__ FEATURE feature_of_number(SCALAR x) { return narrow(x); }
#endif

// The row of shared memory that holds the features of a neuron: eight neurons that share all but
// three bits of their numbers change places, by the bits above, so that neurons a power of two
// apart, which generated networks connect, do not all begin in one bank.
__device__ __forceinline__ int row_of_neuron(int n) {
    return n ^ ((n >> 3 ^ n >> 6 ^ n >> 9 ^ n >> 12 ^ n >> 15) & 7);
}

// Reads the features of this lane's inputs, `column` bytes behind those of neuron 0.
__device__ __forceinline__ void read_features(const Four<FEATURE>* of_first, unsigned column,
                                              SCALAR (&y)[COLUMNS]) {
    const Four<FEATURE> four = load(reinterpret_cast<const Four<FEATURE>*>(
        reinterpret_cast<const unsigned char*>(of_first) + column));
#pragma unroll
    for (int i = 0; i < COLUMNS; ++i) y[i] = number_of(four.x[i]);
}

// Adds the entries of a group to the sums of this lane. Called by whole warps.
// data: what follows rows and biases of the group. header: this lane's integer of its header, lane
// i holding the i-th. features: this lane's 4 inputs of neuron 0, in shared memory.
__device__ __forceinline__ void add_group(const unsigned char* __restrict__ data, int header,
                                          const Four<FEATURE>* features, int lane,
                                          SCALAR (&sums)[ROWS][COLUMNS]) {
    const int cluster = lane / LANES, part = cluster * HALVES + (lane & 1);
    // The header is spread over the lanes: a shuffle hands one of its integers to all of them, in
    // place of a load that every address below would wait for.
    const int common = __shfl_sync(FULL_WARP, header, COMMON);
    const Four<unsigned>* columns = fours<unsigned>(data) + cluster;
    data += size_t(common) * (CLUSTERS * STEPS * sizeof(unsigned));
#if CONSTANT
    const SCALAR constant = __int_as_float(__shfl_sync(FULL_WARP, header, WEIGHT));
    Four<unsigned> next = load_constant(columns);
#pragma unroll 2
    for (int k = 0; k < common; ++k) {
        const Four<unsigned> at = next;
        columns += CLUSTERS;
        next = load_constant(columns);
#pragma unroll
        for (int j = 0; j < STEPS; ++j) {
            SCALAR y[COLUMNS];
            read_features(features, at.x[j], y);
#pragma unroll
            for (int r = 0; r < ROWS; ++r)
#pragma unroll
                for (int i = 0; i < COLUMNS; ++i) sums[r][i] += constant * y[i];
        }
    }
#else
    const Four<STORED>* weights = fours<STORED>(data) + cluster * (CLUSTER / 4) + (lane & 1) * 2;
    data += size_t(common) * (STEPS * CLUSTERS * CLUSTER * sizeof(STORED));
    for (int k = 0; k < common; ++k) {
        const Four<unsigned> at = load_constant(columns);
#pragma unroll
        for (int begin = 0; begin < STEPS; begin += AHEAD) {
            // All weights of AHEAD entries are asked for before the first is used.
            Four<STORED> loaded[AHEAD][2];
#pragma unroll
            for (int j = 0; j < AHEAD; ++j)
#pragma unroll
                for (int h = 0; h < 2; ++h)
                    loaded[j][h] =
                        load_constant(weights + (begin + j) * (CLUSTERS * CLUSTER / 4) + h);
#pragma unroll
            for (int j = 0; j < AHEAD; ++j) {
                SCALAR y[COLUMNS];
                read_features(features, at.x[begin + j], y);
#pragma unroll
                for (int r = 0; r < ROWS; ++r) {
                    const SCALAR weight = widen(loaded[j][r / 4].x[r % 4]);
#pragma unroll
                    for (int i = 0; i < COLUMNS; ++i) sums[r][i] += weight * y[i];
                }
            }
        }
        columns += CLUSTERS;
        weights += STEPS * (CLUSTERS * CLUSTER / 4);
    }
#endif

    const int own = __shfl_sync(FULL_WARP, header, OWN + ROWS - 1);
    if (own == 0) return;
    columns = fours<unsigned>(data) + part;
#if !CONSTANT
    data += size_t(own) * (PARTS * STEPS * sizeof(unsigned));
    weights = fours<STORED>(data) + part;
#endif
    int k = 0;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const int end = __shfl_sync(FULL_WARP, header, OWN + r);
#pragma unroll OWN_UNROLLED
        for (; k < end; ++k) {
            const Four<unsigned> at = load_constant(columns + k * PARTS);
#if !CONSTANT
            const Four<STORED> loaded = load_constant(weights + k * PARTS);
#endif
#pragma unroll
            for (int j = 0; j < STEPS; ++j) {
#if CONSTANT
                const SCALAR weight = constant;
#else
                const SCALAR weight = widen(loaded.x[j]);
#endif
                SCALAR y[COLUMNS];
                read_features(features, at.x[j], y);
#pragma unroll
                for (int i = 0; i < COLUMNS; ++i) sums[r][i] += weight * y[i];
            }
        }
    }
}
