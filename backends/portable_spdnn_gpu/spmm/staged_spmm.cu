// The product or fused layer with rows of B staged in shared memory through a preload map.
//
// Idea: a block takes ROWS rows of A, one a thread, and MINIBATCH columns of B, whose sums it
// keeps in registers. The rows of B that the block's rows of A need are listed once, without
// repeats (the preload map), and cut into stages of at most STAGE. A stage is copied to shared
// memory while the one before is multiplied (two buffers, asynchronous copies). The entries of A
// are in sliced ELL: the rows of a warp are a slice, padded to the longest of them in the stage;
// 16-bit local indices (rows of the buffers) and values are interleaved so that a warp reads
// neighbours. How many columns of B there are is read on the device: blocks take items, a unit of
// rows and a minibatch, until none is left.
//
// Source: M. Hidayetoglu et al., "At-Scale Sparse Deep Neural Network Inference with Efficient
// GPU Implementation", HPEC 2020. Other than there, B holds its columns innermost.
//
// Bound: shared memory: VECTORS reads of 16 bytes for MINIBATCH multiply-adds; where rows share
// little, the copies from L2.
//
// Shared memory keeps the stored type, and it is widened when it is read: reading binds this
// kernel, a feature in half precision then costs half, and a copy that converts cannot be
// asynchronous. The conversions take arithmetic units that are idle.
//
// Banks: a row of B in a buffer is VECTORS vectors of 16 bytes. A quarter of a warp is served at
// a time, its eight lanes without conflict where they use eight different vectors of a line of
// 128 bytes. If vector q of row p lay at VECTORS p + q, lanes that read vector q of rows p, p + 1,
// ... would meet in 8 / VECTORS vectors of the line where VECTORS is a power of two. So it lies
// at VECTORS p + (q ^ (p / (8 / VECTORS)) % VECTORS): eight neighbouring rows lie in eight
// vectors. An odd VECTORS does that by itself. Either way rows fill whole lines in order, so that
// the copy, eight neighbouring vectors at a time, has no conflict; padding of the rows would give
// it some. Rows apart conflict by chance.
//
// Configuration (STAGED_CONFIGS in compile/catalog.py, chosen by spmm/tuning.py):
// ROWS:         the rows of A that share a map; more share more, and fewer blocks fit.
// MINIBATCH:    sums in registers for each thread; more read a local index and a value less often
//               and copy whole sectors of B, until registers and shared memory are short.
// STAGE:        rows of B in one of the two buffers; more make fewer barriers and less padding.
// BLOCKS:       at least so many on a multiprocessor: so many registers that nothing is spilled.
// EPILOGUE:     what follows the sums, see common.cuh; above 0 active inputs are marked.
#include "async_copy.cuh"
#include "input_lists.cuh"

#define WARPS (ROWS / 32)
#define WIDTH int(16 / sizeof(STORED))  // columns of a vector
#define VECTORS (MINIBATCH / WIDTH)     // vectors of a row of B

struct __align__(16) Vector {
    STORED at[WIDTH];
};

// Where a vector of a row lies in a buffer, counted in vectors; see above for the swizzle.
__device__ __forceinline__ int vector_of(int row, int v) {
    if constexpr (VECTORS % 2 == 1) return row * VECTORS + v;
    return row * VECTORS + (v ^ (VECTORS < 8 ? row / (8 / VECTORS) % VECTORS : row % 8));
}

// Starts the copies of listed rows of B to a buffer: vector by vector where columns are side by
// side and aligned, else column by column. Neighbouring threads copy neighbours of one row.
__device__ __forceinline__ void copy_stage(Vector* buffer, const int* __restrict__ listed,
                                           int count, const STORED* __restrict__ from, int pitch,
                                           int first, int columns, bool vectorized,
                                           const int* places) {
    if (vectorized) {
#pragma unroll 2
        for (int k = threadIdx.x; k < count * VECTORS; k += ROWS) {
            const int row = k / VECTORS, v = k % VECTORS, column = first + v * WIDTH;
            const STORED* row_of_b = from + size_t(listed[row]) * pitch;
            copy_async<16>(buffer + vector_of(row, v), row_of_b + (column < columns ? column : 0));
        }
        return;
    }
#pragma unroll 2
    for (int k = threadIdx.x; k < count * MINIBATCH; k += ROWS) {
        const int row = k / MINIBATCH, i = k % MINIBATCH;
        const STORED* row_of_b = from + size_t(listed[row]) * pitch;
        copy_async<sizeof(STORED)>(&buffer[vector_of(row, i / WIDTH)].at[i % WIDTH],
                                   row_of_b + places[i]);
    }
}

// Writes the results of a row in the minibatch; what lies beyond the columns stays as it is.
__device__ __forceinline__ void write_row(STORED* out, const STORED* results, int columns,
                                          bool vectorized) {
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
        const int begin = v * WIDTH;
        if (vectorized && begin + WIDTH <= columns) {
            Vector vector;
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) vector.at[i] = results[begin + i];
            *reinterpret_cast<Vector*>(out + begin) = vector;
        } else {
#pragma unroll
            for (int i = 0; i < WIDTH; ++i)
                if (begin + i < columns) out[begin + i] = results[begin + i];
        }
    }
}

// block_stages: units + 1 offsets of stages. stage_bounds: stages + 1 offsets into map.
// slices: stages x WARPS + 1 offsets, counted in warps of entries. local_indices: rows of the two
// buffers, which the stages of a block fill by turns; padding names the row beyond both, of zeros.
// all_rows: how many rows A has. units: the blocks of rows. from, to: [k][pitch] and [m][pitch].
extern "C" __global__ void __launch_bounds__(ROWS, BLOCKS)
staged_spmm(const int* __restrict__ block_stages, const int* __restrict__ stage_bounds,
            const int* __restrict__ map, const int* __restrict__ slices,
            const unsigned short* __restrict__ local_indices, const STORED* __restrict__ values,
            const int* __restrict__ all_rows, int units, const STORED* __restrict__ from,
            STORED* __restrict__ to, int pitch, int* state, const int* __restrict__ source,
            unsigned char* __restrict__ active, LIST_PARAMETERS,
            const SCALAR* __restrict__ bias, EPILOGUE_PARAMETERS) {
    DYNAMIC_SHARED(Vector, staged);
    __shared__ int places[MINIBATCH];
    const InputState inputs = *reinterpret_cast<const InputState*>(state);
    const bool aligned = pitch % WIDTH == 0 && size_t(from) % 16 == 0 && size_t(to) % 16 == 0;
    const int panels = (inputs.count + MINIBATCH - 1) / MINIBATCH;
    const int items = units * panels;  // of 1,024 features or more each: an int counts them all
    // The row of zeros: padding adds 0 x 0, whatever is staged.
    if (threadIdx.x < VECTORS) staged[2 * STAGE * VECTORS + threadIdx.x] = Vector{};
    for (int item = blockIdx.x; item < items; item += gridDim.x) {
        const int unit = item % units, first = item / units * MINIBATCH;
        SCALAR sums[MINIBATCH];
#pragma unroll
        for (int i = 0; i < MINIBATCH; ++i) sums[i] = SCALAR(0);
        if (threadIdx.x < MINIBATCH)
            places[threadIdx.x] = place_of(first + threadIdx.x, inputs, source);
        __syncthreads();  // the last item has read the buffers, and places are there

        const auto copy = [&](int stage, int buffer) {
            const int begin = stage_bounds[stage], count = stage_bounds[stage + 1] - begin;
            copy_stage(staged + buffer * (STAGE * VECTORS), map + begin, count, from, pitch, first,
                       inputs.count, aligned && !inputs.gathers, places);
            commit_copies();
        };
        const int begin = block_stages[unit], end = block_stages[unit + 1];
        if (begin < end) copy(begin, 0);
        for (int stage = begin; stage < end; ++stage) {
            wait_copies<0>();
            __syncthreads();  // all have copied this stage, and have read the one before
            if (stage + 1 < end) copy(stage + 1, (stage + 1 - begin) % 2);
            const int last = slices[stage * WARPS + threadIdx.x / 32 + 1];
#pragma unroll 2
            for (int k = slices[stage * WARPS + threadIdx.x / 32]; k < last; ++k) {
                const size_t entry = size_t(k) * 32 + threadIdx.x % 32;
                const int local = local_indices[entry];
                const SCALAR value = widen(values[entry]);
#pragma unroll
                for (int v = 0; v < VECTORS; ++v) {
                    const Vector vector = staged[vector_of(local, v)];
#pragma unroll
                    for (int i = 0; i < WIDTH; ++i)
                        sums[v * WIDTH + i] += value * widen(vector.at[i]);
                }
            }
        }

        const int row = unit * ROWS + threadIdx.x;
        const int columns = row < *all_rows ? min(MINIBATCH, inputs.count - first) : 0;
        STORED results[MINIBATCH];
#if EPILOGUE
        const SCALAR own_bias = row < *all_rows ? bias[row] : SCALAR(0);
        const int lane = threadIdx.x % 32;
        unsigned nonzero = 0;
        bool overflowed = false;
#pragma unroll
        for (int i = 0; i < MINIBATCH; ++i) {
            [[maybe_unused]] const size_t at = i < columns ? size_t(row) * pitch + first + i : 0;
            results[i] = narrow(FINISHED(sums[i], own_bias, at));
            const SCALAR y = widen(results[i]);
            if (i < columns && y != SCALAR(0)) nonzero |= 1u << i;
            if (i < columns && OVERFLOWED(y)) overflowed = true;
        }
        // One lane marks a column for its whole warp: a butterfly of shuffles gives every lane
        // the bits of all 32 rows, without shared memory.
#pragma unroll
        for (int other = 16; other; other /= 2)
            nonzero |= __shfl_xor_sync(FULL_WARP, nonzero, other);
        overflowed = __any_sync(FULL_WARP, overflowed);
        if (lane < MINIBATCH)
            mark(nonzero >> lane & 1u, overflowed && lane == 0, first + lane, active, state);
#else
#pragma unroll
        for (int i = 0; i < MINIBATCH; ++i) results[i] = narrow(sums[i]);
#endif
        write_row(to + size_t(row) * pitch + first, results, columns, aligned);
    }
#if EPILOGUE
    // Behind its first barrier nobody reads the stages any more.
    end_step<ROWS>(state, active, ids, next_source, after, policy, reinterpret_cast<int*>(staged));
#endif
}
