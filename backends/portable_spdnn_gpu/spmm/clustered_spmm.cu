// The product or fused layer for clusters of 16 rows of A that have columns in common.
//
// Idea: B and C hold their columns (the inputs of a network) innermost. A block takes one cluster
// and a panel of THREADS x COLUMNS columns of B. A thread keeps a register tile, the sums of all
// 16 rows in its COLUMNS columns, so that an element of B, loaded once, is multiplied 16 times. The
// values of a common column of A, one for each row, are staged in shared memory and broadcast
// from there. What the rows do not share follows row by row. How many columns there are is read
// on the device: blocks take items, a cluster and a panel, until none is left.
//
// Threads: thread t of a block has the columns 2 t and 2 t + 1 of its panel in all 16 rows; all
// threads stage the values, and where in B the rows of the common columns begin. Neighbouring
// columns are loaded and stored together, unless B is read through a list or rows are of odd
// length.
//
// Source of the idea: the 2021 Graph Challenge champions keep weights in shared memory and
// reuse each loaded feature in registers; here the rows are found by a general search
// (clusters.py) instead of the challenge's known pattern.
//
// Bound: of the common part, 16 multiply-adds for one element of B: the issue slots, or device
// memory where B streams (wide networks).
//
// Configuration:
// ROWS 16:     the challenge's neurons share their inputs in sixteens; 16 x COLUMNS sums fit
//              the registers without spilling in float and in double.
// COLUMNS 2:   a value read from shared memory serves two multiply-adds, and one load two columns.
// THREADS 128: four warps share one staging of the values; 256 columns of B in a panel.
// CHUNK 64:    common columns staged at a time: 64 x 16 values are 4 KiB (8 KiB in double),
//              which does not bound the blocks that fit a multiprocessor.
// CONSTANT 1:  all values of A are equal, and `values` has one: it stays in a register, and none is
//              loaded or staged.
// BLOCKS:      at least so many on a multiprocessor: 96 registers a thread in float, 80 where values
//              are equal (128 with any activation), 168 in double.
// DEPTH:       rows of B that are loaded before the first is multiplied, as far as registers
//              suffice: what a warp has on its way from L2 or memory while others multiply.
// EPILOGUE:    what follows the sums, see common.cuh; above 0 active inputs are marked.
//
// Where rows have 32 entries, what follows the sums takes a quarter as many instructions as they
// do. So rows of C are staged as offsets in bytes, whether pairs are whole is asked once and not
// for each row, and marks are read from results before they are rounded.
//
// Two barriers for each chunk order its staging with its reads. All lanes of a warp read the same
// staged value at the same time: a broadcast, which no bank conflicts with.
#include "input_lists.cuh"

#define ROWS 16
#define COLUMNS 2
#define THREADS 128
#define CHUNK 64
#ifndef CONSTANT
#define CONSTANT 0
#endif
#define BLOCKS (sizeof(SCALAR) == 8 ? 3 : EPILOGUE == 2 ? 4 : CONSTANT ? 6 : 5)
// No macro, which nvcc does not expand in a pragma.
constexpr int DEPTH = (CONSTANT ? 4 : 2) * (EPILOGUE == 1 ? 2 : 1);

// Two neighbouring columns of B or C.
struct __align__(2 * sizeof(STORED)) Pair {
    STORED x[COLUMNS];
};

// Adds `count` common columns, whose rows of B begin offsets[k] bytes from its first. The columns of
// a thread are neighbours at place[0], or anywhere.
template <bool NEIGHBOURS>
__device__ __forceinline__ void add_common(SCALAR (&sums)[ROWS][COLUMNS], int count,
                                           const size_t* offsets, const SCALAR* values,
                                           SCALAR constant, const STORED* __restrict__ from,
                                           const int (&place)[COLUMNS]) {
    const char* bytes = reinterpret_cast<const char*>(NEIGHBOURS ? from + place[0] : from);
#pragma unroll DEPTH
    for (int k = 0; k < count; ++k) {
        SCALAR loaded[COLUMNS];
        if (NEIGHBOURS) {
            const Pair pair = *reinterpret_cast<const Pair*>(bytes + offsets[k]);
#pragma unroll
            for (int i = 0; i < COLUMNS; ++i) loaded[i] = widen(pair.x[i]);
        } else {
            const STORED* row_of_b = reinterpret_cast<const STORED*>(bytes + offsets[k]);
#pragma unroll
            for (int i = 0; i < COLUMNS; ++i) loaded[i] = widen(row_of_b[place[i]]);
        }
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
#if CONSTANT
            const SCALAR value = constant;
#else
            const SCALAR value = values[k * ROWS + r];
#endif
#pragma unroll
            for (int i = 0; i < COLUMNS; ++i) sums[r][i] += value * loaded[i];
        }
    }
}

// bounds: (ROWS + 1) x clusters + 1 offsets into indices: the common columns of a cluster, then
// those of each row alone. starts: where the values of a cluster begin; the values of a common
// column lie side by side, row after row, and those of a row alone follow. rows: ROWS for each
// cluster. units: the clusters. from, to: [k][pitch] and [m][pitch].
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
clustered_spmm(const int* __restrict__ bounds, const int* __restrict__ indices,
               const int* __restrict__ starts, const STORED* __restrict__ values,
               const int* __restrict__ rows, int units, const STORED* __restrict__ from,
               STORED* __restrict__ to, int pitch, int* state, const int* __restrict__ source,
               unsigned char* __restrict__ active, LIST_PARAMETERS,
               const SCALAR* __restrict__ bias, EPILOGUE_PARAMETERS) {
    __shared__ size_t staged_offsets[CHUNK];
    __shared__ size_t staged_rows[ROWS];
#if EPILOGUE
    __shared__ SCALAR staged_bias[ROWS];
#endif
#if CONSTANT
    const SCALAR constant = widen(values[0]);
    SCALAR* const staged_values = nullptr;
#else
    const SCALAR constant = SCALAR(0);
    __shared__ __align__(16) SCALAR staged_values[CHUNK * ROWS];
#endif
    const InputState inputs = *reinterpret_cast<const InputState*>(state);
    const int panels = (inputs.count + THREADS * COLUMNS - 1) / (THREADS * COLUMNS);
    const int items = units * panels;  // 16 rows of C each: what fits a device an int counts
    // Whether neighbouring columns lie in pairs: a user's array may begin anywhere.
    const bool paired = pitch % COLUMNS == 0 && (size_t(from) | size_t(to)) % sizeof(Pair) == 0;
    const size_t row_bytes = size_t(pitch) * sizeof(STORED);
    // All clusters of one panel come before the next panel: its part of B stays in L2 meanwhile.
    for (int item = blockIdx.x; item < items; item += gridDim.x) {
        const int cluster = item % units;
        const int* bound = bounds + size_t(cluster) * (ROWS + 1);
        const int first = item / units * (THREADS * COLUMNS) + threadIdx.x * COLUMNS;
        const int common = bound[1] - bound[0];
        // The first of the columns of a warp: warps that have none only stage and wait.
        const bool busy = first - int(threadIdx.x % 32) * COLUMNS < inputs.count;
        int place[COLUMNS];
        SCALAR sums[ROWS][COLUMNS];
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i) {
            place[i] = place_of(first + i, inputs, source);
#pragma unroll
            for (int r = 0; r < ROWS; ++r) sums[r][i] = SCALAR(0);
        }

        // The common columns, a chunk at a time.
        int begin = 0;
        do {
            const int count = min(CHUNK, common - begin);
            __syncthreads();  // the last chunk, or the last item's rows, have been read
            if (int(threadIdx.x) < count)
                staged_offsets[threadIdx.x] =
                    size_t(indices[bound[0] + begin + threadIdx.x]) * row_bytes;
            if (begin == 0 && threadIdx.x < ROWS) {
                const int row = rows[cluster * ROWS + threadIdx.x];
                staged_rows[threadIdx.x] = size_t(row) * row_bytes;
#if EPILOGUE
                staged_bias[threadIdx.x] = bias[row];
#endif
            }
#if !CONSTANT
            const STORED* chunk = values + size_t(starts[cluster]) + size_t(begin) * ROWS;
            for (int k = threadIdx.x; k < count * ROWS; k += THREADS)
                staged_values[k] = widen(chunk[k]);
#endif
            __syncthreads();  // the chunk is staged
            if (busy && paired && !inputs.gathers)
                add_common<true>(sums, count, staged_offsets, staged_values, constant, from, place);
            else if (busy)
                add_common<false>(sums, count, staged_offsets, staged_values, constant, from, place);
            begin += CHUNK;
        } while (begin < common);
        if (!busy) continue;

        // The columns of each row alone, where a row has any.
        if (bound[1] != bound[ROWS + 1]) {
            [[maybe_unused]] const STORED* own =
                values + size_t(starts[cluster]) + size_t(common) * ROWS;
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                for (int k = bound[r + 1]; k < bound[r + 2]; ++k) {
#if CONSTANT
                    const SCALAR value = constant;
#else
                    const SCALAR value = widen(own[k - bound[1]]);
#endif
                    const STORED* row_of_b = from + size_t(indices[k]) * pitch;
#pragma unroll
                    for (int i = 0; i < COLUMNS; ++i)
                        sums[r][i] += value * widen(row_of_b[place[i]]);
                }
            }
        }

        [[maybe_unused]] bool nonzero[COLUMNS] = {}, overflowed[COLUMNS] = {};
        Pair results[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
#pragma unroll
            for (int i = 0; i < COLUMNS; ++i) {
#if EPILOGUE
                // What is beyond the last column is finished as the first and not stored.
                [[maybe_unused]] const size_t finished =
                    first + i < inputs.count ? staged_rows[r] / sizeof(STORED) + first + i : 0;
                const SCALAR y = FINISHED(sums[r][i], staged_bias[r], finished);
                nonzero[i] |= !ROUNDS_TO_ZERO(y);
                overflowed[i] |= WILL_OVERFLOW(y);
#else
                const SCALAR y = sums[r][i];
#endif
                results[r].x[i] = narrow(y);
            }
        }
        char* const out = reinterpret_cast<char*>(to + first);
        if (paired && first + COLUMNS <= inputs.count) {
#pragma unroll
            for (int r = 0; r < ROWS; ++r)
                *reinterpret_cast<Pair*>(out + staged_rows[r]) = results[r];
        } else {
#pragma unroll
            for (int i = 0; i < COLUMNS; ++i)
                if (first + i < inputs.count)
#pragma unroll
                    for (int r = 0; r < ROWS; ++r)
                        reinterpret_cast<STORED*>(out + staged_rows[r])[i] = results[r].x[i];
        }
#if EPILOGUE
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i)
            if (first + i < inputs.count)
                mark(nonzero[i], overflowed[i], first + i, active, state);
#endif
    }
#if EPILOGUE
    // Behind its first barrier nobody reads the offsets any more.
    end_step<THREADS>(state, active, ids, next_source, after, policy,
                      reinterpret_cast<int*>(staged_offsets));
#endif
}
