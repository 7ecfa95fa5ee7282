// The product or fused layer for clusters of 16 rows of A that have columns in common.
//
// Idea: B and C hold their columns (the inputs of a network) innermost. A block takes one cluster
// and a panel of THREADS x COLUMNS columns of B. A thread keeps a register tile, the sums of all
// 16 rows in its COLUMNS columns, so that an element of B, loaded once, is multiplied 16 times. The
// values of a common column of A, one for each row, are staged in shared memory and broadcast
// from there. What the rows do not share follows row by row. How many columns there are is read
// on the device: blocks take items, a cluster and a panel, until none is left.
//
// Threads: thread t of a block has the columns t and t + THREADS of its panel in all 16 rows; all
// threads stage the values.
//
// Source of the idea: the 2021 Graph Challenge champions keep weights in shared memory and
// reuse each loaded feature in registers; here the rows are found by a general search
// (clusters.py) instead of the challenge's known pattern.
//
// Bound: of the common part, 16 multiply-adds for one element of B: the arithmetic, or the reads
// of shared memory (one broadcast for COLUMNS multiply-adds), or device memory where B streams.
//
// Configuration:
// ROWS 16:     the challenge's neurons share their inputs in sixteens; 16 x COLUMNS sums fit
//              the registers without spilling in float and in double.
// COLUMNS 2:   a value read from shared memory serves two multiply-adds.
// THREADS 128: four warps share one staging of the values; 256 columns of B in a panel.
// CHUNK 64:    common columns staged at a time: 64 x 16 values are 4 KiB (8 KiB in double),
//              which does not bound the blocks that fit a multiprocessor.
// BLOCKS:      at least so many on a multiprocessor: 96 registers a thread in float, 168 in double.
// EPILOGUE:    what follows the sums, see common.cuh; above 0 active inputs are marked.
//
// Two barriers for each chunk order its staging with its reads. All lanes of a warp read the same
// staged value at the same time: a broadcast, which no bank conflicts with.
#include "common.cuh"

#define ROWS 16
#define COLUMNS 2
#define THREADS 128
#define CHUNK 64
#define BLOCKS (sizeof(SCALAR) == 4 ? 5 : 3)

// bounds: (ROWS + 1) x clusters + 1 offsets into indices: the common columns of a cluster, then
// those of each row alone. starts: where the values of a cluster begin; the values of a common
// column lie side by side, row after row, and those of a row alone follow. rows: ROWS for each
// cluster. units: the clusters. from, to: [k][pitch] and [m][pitch].
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
clustered_spmm(const int* __restrict__ bounds, const int* __restrict__ indices,
               const int* __restrict__ starts, const STORED* __restrict__ values,
               const int* __restrict__ rows, int units, const STORED* __restrict__ from,
               STORED* __restrict__ to, int pitch, int* state, const int* __restrict__ source,
               unsigned char* __restrict__ active, const SCALAR* __restrict__ bias,
               EPILOGUE_PARAMETERS) {
    __shared__ __align__(16) SCALAR staged_values[CHUNK * ROWS];
    __shared__ int staged_indices[CHUNK];
    const InputState inputs = *reinterpret_cast<const InputState*>(state);
    const int panels = (inputs.count + THREADS * COLUMNS - 1) / (THREADS * COLUMNS);
    const long long items = (long long)units * panels;
    // All clusters of one panel come before the next panel: its part of B stays in L2 meanwhile.
    for (long long item = blockIdx.x; item < items; item += gridDim.x) {
        const int cluster = int(item % units);
        const int* bound = bounds + size_t(cluster) * (ROWS + 1);
        const int first = int(item / units) * (THREADS * COLUMNS) + threadIdx.x;
        const int common = bound[1] - bound[0];
        int place[COLUMNS];
        SCALAR sums[ROWS][COLUMNS];
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i) {
            place[i] = place_of(first + i * THREADS, inputs, source);
#pragma unroll
            for (int r = 0; r < ROWS; ++r) sums[r][i] = SCALAR(0);
        }

        // The common columns, a chunk at a time.
        for (int begin = 0; begin < common; begin += CHUNK) {
            const int count = min(CHUNK, common - begin);
            __syncthreads();  // the last chunk has been read
            for (int k = threadIdx.x; k < count; k += THREADS)
                staged_indices[k] = indices[bound[0] + begin + k];
            const STORED* chunk = values + size_t(starts[cluster]) + size_t(begin) * ROWS;
            for (int k = threadIdx.x; k < count * ROWS; k += THREADS)
                staged_values[k] = widen(chunk[k]);
            __syncthreads();  // the chunk is staged
#pragma unroll 4
            for (int k = 0; k < count; ++k) {
                const STORED* row_of_b = from + size_t(staged_indices[k]) * pitch;
                SCALAR loaded[COLUMNS];
#pragma unroll
                for (int i = 0; i < COLUMNS; ++i) loaded[i] = widen(row_of_b[place[i]]);
#pragma unroll
                for (int r = 0; r < ROWS; ++r) {
                    const SCALAR value = staged_values[k * ROWS + r];
#pragma unroll
                    for (int i = 0; i < COLUMNS; ++i) sums[r][i] += value * loaded[i];
                }
            }
        }

        // The columns of each row alone, then its results.
        const STORED* own = values + size_t(starts[cluster]) + size_t(common) * ROWS;
        bool nonzero[COLUMNS] = {}, overflowed[COLUMNS] = {};
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            for (int k = bound[r + 1]; k < bound[r + 2]; ++k) {
                const SCALAR value = widen(own[k - bound[1]]);
                const STORED* row_of_b = from + size_t(indices[k]) * pitch;
#pragma unroll
                for (int i = 0; i < COLUMNS; ++i) sums[r][i] += value * widen(row_of_b[place[i]]);
            }
            const int row = rows[cluster * ROWS + r];
            const size_t begin = size_t(row) * pitch;
#pragma unroll
            for (int i = 0; i < COLUMNS; ++i) {
                const int column = first + i * THREADS;
                if (column < inputs.count) {
#if EPILOGUE
                    const STORED y = narrow(FINISHED(sums[r][i], bias[row], begin + column));
                    nonzero[i] |= widen(y) != SCALAR(0);
                    overflowed[i] |= OVERFLOWED(widen(y));
                    to[begin + column] = y;
#else
                    to[begin + column] = narrow(sums[r][i]);
#endif
                }
            }
        }
#if EPILOGUE
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i)
            mark(nonzero[i], overflowed[i], first + i * THREADS, active, state);
#endif
    }
}
