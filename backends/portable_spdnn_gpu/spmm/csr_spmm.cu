// C = A B, finished by an epilogue: one row of A by a column panel of B.
//
// Idea: A is CSR; B and C hold their columns (the inputs of a network) innermost. A block takes
// one row of A and a panel of THREADS x COLUMNS columns. All threads read the same index and value
// at the same time (one broadcast for each warp) and neighbouring columns of B (whole sectors),
// and every sum stays in a register until its row is done, so that C is written once and need not
// be cleared before. How many columns there are is read on the device: blocks take items, a row
// and a panel, until none is left.
//
// Threads: thread t of a block has the columns t, t + THREADS, ... of its panel, so that a warp
// reads and writes 32 neighbours at a time.
//
// Bound: the loads of B. Each multiply-add costs one element of B, from L2 at best: nothing is
// shared between the rows of A. Rows that share their indices belong to clustered_spmm.
//
// Configuration:
// THREADS 128: four warps; a panel of 512 columns keeps the four neighbours of a sector in a block.
// COLUMNS 4:   four independent sums hide the latency of a multiply-add, and an index and a
//              value are read once for four multiply-adds.
// BLOCKS 8:    at least so many on a multiprocessor: 64 registers a thread, without spills.
// EPILOGUE:    what follows the sums, see common.cuh; above 0 active inputs are marked.
//
// Blocks write different items, and nothing synchronizes but the list of inputs behind a step.
#include "input_lists.cuh"

#define THREADS 128
#define COLUMNS 4
#define BLOCKS 8

// offsets, indices, values: A in CSR. rows: the rows of A to compute, `units` of them; the others
// are computed by another kernel. from, to: [k][pitch] and [m][pitch].
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
csr_spmm(const int* __restrict__ offsets, const int* __restrict__ indices,
         const STORED* __restrict__ values, const int* __restrict__ rows, int units,
         const STORED* __restrict__ from, STORED* __restrict__ to, int pitch, int* state,
         const int* __restrict__ source, unsigned char* __restrict__ active, LIST_PARAMETERS,
         const SCALAR* __restrict__ bias, EPILOGUE_PARAMETERS) {
    const InputState inputs = *reinterpret_cast<const InputState*>(state);
    const int panels = (inputs.count + THREADS * COLUMNS - 1) / (THREADS * COLUMNS);
    const long long items = (long long)units * panels;
    // All rows of one panel come before the next panel: its part of B stays in L2 meanwhile.
    for (long long item = blockIdx.x; item < items; item += gridDim.x) {
        const int row = rows[item % units];
        const int first = int(item / units) * (THREADS * COLUMNS) + threadIdx.x;
        int place[COLUMNS];
        SCALAR sums[COLUMNS];
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i) {
            place[i] = place_of(first + i * THREADS, inputs, source);
            sums[i] = SCALAR(0);
        }
        const int end = offsets[row + 1];
#pragma unroll 2
        for (int k = offsets[row]; k < end; ++k) {
            const SCALAR value = widen(values[k]);
            const STORED* row_of_b = from + size_t(indices[k]) * pitch;
#pragma unroll
            for (int i = 0; i < COLUMNS; ++i) sums[i] += value * widen(row_of_b[place[i]]);
        }
        const size_t begin = size_t(row) * pitch;
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i) {
            const int column = first + i * THREADS;
            if (column < inputs.count) {
#if EPILOGUE
                const STORED y = narrow(FINISHED(sums[i], bias[row], begin + column));
                mark(widen(y) != SCALAR(0), OVERFLOWED(widen(y)), column, active, state);
                to[begin + column] = y;
#else
                to[begin + column] = narrow(sums[i]);
#endif
            }
        }
    }
#if EPILOGUE
    __shared__ int words[LIST_WORDS(THREADS)];
    end_step<THREADS>(state, active, ids, next_source, after, policy, words);
#endif
}
