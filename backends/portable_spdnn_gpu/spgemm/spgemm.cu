// C = A B with all three sparse (CSR, columns rising), in two launches: count, then fill.
//
// Idea: a warp takes one row of A and walks over C's columns in windows of WINDOW. Of each entry
// of that row of A, in turn, the lanes add the entries of B's row that fall into the window to a
// dense window of sums in shared memory; a bitmap holds which columns were touched. Reading the
// bitmap in order gives the columns of C sorted, with no sort and no hash table. Sums are formed
// in the order of A's entries, so that repeated runs agree to the bit.
//
// Threads: warp w of block b has row WARPS b + w; lane l has the columns l, l + 32, ... of a
// window, and every 32nd entry of a row of B.
//
// Bound: for each window and entry of A a binary search in a row of B, so that latency binds; good
// where B has few windows (up to some thousands of columns), or the rows of B are short.
//
// Configuration:
// THREADS 128:  four warps, four rows of A in a block.
// WINDOW 1024:  a warp's sums take 4 KiB (8 KiB in double): 16.5 or 32.5 KiB a block with the
//               bitmaps, so that several blocks fit a multiprocessor.
// EPILOGUE:     0 counts and writes the entries that the patterns allow; else the fused sparse
//               layer: what follows the sums (common.cuh), and only what is not 0 after it (NaN is
//               not).
//
// Every warp has a window and a bitmap of its own, so that warps never wait for each other; within
// a warp __syncwarp orders the writes of the window with its reads. Bank conflicts of the sums
// depend on the columns of B, and are by chance.
#include "common.cuh"

#define THREADS 128
#define WARPS (THREADS / 32)
#define WINDOW 1024
#define WORDS (WINDOW / 32)

// The first position in [begin, end) of the rising `indices` whose entry is not below `bound`.
__device__ __forceinline__ int lower_bound(const int* __restrict__ indices, int begin, int end,
                                           int bound) {
    while (begin < end) {
        const int middle = begin + (end - begin) / 2;
        if (indices[middle] < bound) begin = middle + 1; else end = middle;
    }
    return begin;
}

// Forms sums and bitmap of the columns [low, low + WINDOW) of one row of C. Called by whole warps.
__device__ __forceinline__ void sum_window(
    const int* __restrict__ A_offsets, const int* __restrict__ A_indices,
    const SCALAR* __restrict__ A_values, const int* __restrict__ B_offsets,
    const int* __restrict__ B_indices, const SCALAR* __restrict__ B_values, int row, int low,
    int words, SCALAR* sums, unsigned* bitmap) {
    const int lane = threadIdx.x % 32;
    for (int k = lane; k < words * 32; k += 32) sums[k] = SCALAR(0);
    for (int k = lane; k < words; k += 32) bitmap[k] = 0u;
    __syncwarp();
    for (int k = A_offsets[row]; k < A_offsets[row + 1]; ++k) {
        const int inner = A_indices[k];
        const SCALAR value = A_values[k];
        const int end = B_offsets[inner + 1];
        // The columns of one row of B are unique: no two lanes add to the same sum.
        for (int j = lower_bound(B_indices, B_offsets[inner], end, low) + lane; j < end; j += 32) {
            const int column = B_indices[j] - low;
            if (column >= WINDOW) break;
            sums[column] += value * B_values[j];
            // Lanes with different columns may share a word of the bitmap.
            atomicOr(&bitmap[column / 32], 1u << (column % 32));
        }
        __syncwarp();
    }
}

// Returns whether this lane's column of a bitmap word is an entry of C, and activates its value.
__device__ __forceinline__ bool entry_of(SCALAR& value, unsigned word, int lane, int column,
                                         const SCALAR* __restrict__ bias, SCALAR lower,
                                         SCALAR upper) {
    bool is_entry = (word >> lane) & 1u;
#if EPILOGUE
    if (is_entry) {
        const int adds = 0;  // residuals go with dense features
        const STORED* residual = nullptr;
        (void)adds, (void)residual;
        value = FINISHED(value, bias[column], 0);
        is_entry = value != SCALAR(0);
    }
#endif
    return is_entry;
}

// row_nnz[row] = the entries of a row of C.
extern "C" __global__ void __launch_bounds__(THREADS)
spgemm_count(const int* __restrict__ A_offsets, const int* __restrict__ A_indices,
             const SCALAR* __restrict__ A_values, const int* __restrict__ B_offsets,
             const int* __restrict__ B_indices, const SCALAR* __restrict__ B_values, int rows,
             int columns, const SCALAR* __restrict__ bias, SCALAR lower, SCALAR upper,
             int* __restrict__ row_nnz) {
    __shared__ SCALAR sums[WARPS * WINDOW];
    __shared__ unsigned bitmaps[WARPS * WORDS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int row = blockIdx.x * WARPS + warp;
    if (row >= rows) return;
    SCALAR* window = sums + warp * WINDOW;
    unsigned* bitmap = bitmaps + warp * WORDS;
    int count = 0;
    for (int low = 0; low < columns; low += WINDOW) {
        const int words = min(WORDS, (columns - low + 31) / 32);
        sum_window(A_offsets, A_indices, A_values, B_offsets, B_indices, B_values, row, low,
                   words, window, bitmap);
        for (int w = 0; w < words; ++w) {
            SCALAR value = window[w * 32 + lane];
            const bool found = entry_of(value, bitmap[w], lane, low + w * 32 + lane, bias, lower, upper);
            count += __popc(__ballot_sync(FULL_WARP, found));
        }
        __syncwarp();
    }
    if (lane == 0) row_nnz[row] = count;
}

// Writes the columns, rising, and the values of each row of C from C_offsets[row] on: the ballot of
// a bitmap word gives each lane its place.
extern "C" __global__ void __launch_bounds__(THREADS)
spgemm_fill(const int* __restrict__ A_offsets, const int* __restrict__ A_indices,
            const SCALAR* __restrict__ A_values, const int* __restrict__ B_offsets,
            const int* __restrict__ B_indices, const SCALAR* __restrict__ B_values, int rows,
            int columns, const SCALAR* __restrict__ bias, SCALAR lower, SCALAR upper,
            const int* __restrict__ C_offsets, int* __restrict__ C_indices,
            SCALAR* __restrict__ C_values) {
    __shared__ SCALAR sums[WARPS * WINDOW];
    __shared__ unsigned bitmaps[WARPS * WORDS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int row = blockIdx.x * WARPS + warp;
    if (row >= rows) return;
    SCALAR* window = sums + warp * WINDOW;
    unsigned* bitmap = bitmaps + warp * WORDS;
    int top = C_offsets[row];
    for (int low = 0; low < columns; low += WINDOW) {
        const int words = min(WORDS, (columns - low + 31) / 32);
        sum_window(A_offsets, A_indices, A_values, B_offsets, B_indices, B_values, row, low,
                   words, window, bitmap);
        for (int w = 0; w < words; ++w) {
            const int column = low + w * 32 + lane;
            SCALAR value = window[w * 32 + lane];
            const bool found = entry_of(value, bitmap[w], lane, column, bias, lower, upper);
            const unsigned entries = __ballot_sync(FULL_WARP, found);
            if (found) {
                const int at = top + __popc(entries & ((1u << lane) - 1u));
                C_indices[at] = column;
                C_values[at] = value;
            }
            top += __popc(entries);
        }
        __syncwarp();
    }
}
