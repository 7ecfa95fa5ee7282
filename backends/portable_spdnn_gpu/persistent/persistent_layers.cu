// A fused segment: many layers of a narrow network in one launch of a persistent kernel, so that a
// tile of inputs never leaves its multiprocessor between them.
//
// Idea: a block takes TILE inputs and carries them through all layers of the segment. Their
// features lie in shared memory, a row for each neuron (row_of_neuron), in one buffer: a thread
// keeps its sums of a layer in registers until all have read, then writes its outputs over them. No
// launch, no message from the host and no traffic of features stand between two layers: what
// remains of one is two barriers. Blocks take tiles until none is left; a tile without active
// inputs ends where no later layer activates any.
//
// The sums are those of group_sums.cuh. Weights are read once for TILE inputs, past shared memory.
// A layer's weights are together in memory; at the start of a layer the running blocks divide the
// next one among them and ask for it to be brought to L2, since all of them come to it at about
// the same time and none would find it there. A warp reads what it must know of the next layer
// (its header) while it computes this one.
//
// Bound (sm_90, from its published rates; 1,024 neurons with 32 connections, TILE 16, float): a
// layer of a tile is 4,096 cycles of multiply-adds, about 3,600 of L1 and shared memory (7 accesses
// for 32 multiply-adds of a warp), and 143 KiB from L2, 3,000 to 5,000 cycles when all
// multiprocessors ask. Two barriers and the first reads behind them add several hundred: about 3
// microseconds a layer, whatever the number of tiles up to that of multiprocessors. Where the
// weights of a layer are equal 15 KiB come from L2, and the multiply-adds bound. These are estimates;
// an H200 took 3.9 microseconds where weights are equal. Rows that share nothing read 4 numbers for
// 4 multiply-adds: shared memory bounds, at a quarter of the arithmetic.
//
// Configuration:
// TILE 16, 8: inputs of a block. A weight that is read serves TILE multiply-adds, and below 16 the
//             reads of weights bound; above, the 1,800 inputs that remain of the challenge's 60,000
//             would be fewer tiles than multiprocessors (113 of 132 at 16). 8 where 16 do not fit.
// THREADS:    128, 256 or 512: as many warps as the widest layer has groups, so that several
//             blocks of narrow layers share a multiprocessor.
// GROUPS:     groups of a warp, at most: 1, or 2 where 16 warps are not enough. 32 sums each, in
//             float alone: sums in double would take the registers of two.
// CONSTANT 1: all weights of each layer are equal, and none is read; see group_sums.cuh.
// WIDE 1:     of half precision, features in shared memory are float: where a tile of them fits.
// BLOCKS:     512 threads on a multiprocessor at least: 128 registers each, for the sums and two
//             to four entries of weights on their way.
#include "group_sums.cuh"
#include "input_lists.cuh"

// CUDA C++ has no function that brings a cache line to L2 and no further; the instruction does, and
// takes no register for what arrives.
#ifndef PREFETCH_L2
#define PREFETCH_L2(address) asm volatile("prefetch.global.L2 [%0];" ::"l"(address))
#endif

#define WARPS (THREADS / 32)
#define BLOCKS (512 / THREADS)
#define LINE 128
#define UNIT 16
#define NO_ROW 0xffffu
// The lanes that hold inputs 4 q to 4 q + 3.
#define LANES_OF(q) ((FULL_WARP / ((1u << LANES) - 1u) * 3u) << (2 * (q)))
// The mask of a layer has a bit for each active input of the tile, and this one.
#define OVERFLOWED_BIT 0x80000000u

// Features are not negative, so that their bits rise with them, and those of NaN are above all
// others: the largest tell whether a feature is not 0, and whether one overflowed, beyond this.
#if HALF_STORAGE
#define LARGEST 0x7f7fffffu  // of finite numbers
#else
#define LARGEST 0x7f800000u  // infinity
#endif

static_assert(ROWS == 8, "the rows of a part are two vectors of 4: of biases, and of row numbers");

// What the threads of a block tell each other, in shared memory: the tile that was taken, how many
// inputs it has, how many blocks run. Two masks follow, of two layers by turns. All are read again
// wherever they are needed, since registers are short.
enum { TAKEN, HERE, RUNNING, SHARED_STATE };

// headers: [layer][GROUPS][WARPS][HEADER]. data: the groups' data, see group_sums.cuh. zero_row:
// the row of features that is always 0, behind those of the widest layer. from, to: the features
// before the first layer and after the last, [neuron][pitch]. counts: zeros before the launch; the
// tiles that were taken, then three numbers for each layer: inputs active after it, inputs that it
// computed, and whether a feature of it overflowed.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
persistent_layers(const int* __restrict__ headers, const unsigned char* __restrict__ data,
                  int layers, int neurons_in, int neurons_out, int zero_row,
                  const STORED* __restrict__ from, STORED* __restrict__ to, int pitch, int* state,
                  const int* __restrict__ source, unsigned char* __restrict__ active,
                  LIST_PARAMETERS, SCALAR y_max, int* counts) {
    DYNAMIC_SHARED(FEATURE, features);
    int* shared_state = reinterpret_cast<int*>(features + size_t(zero_row + 1) * TILE);
    unsigned* masks = reinterpret_cast<unsigned*>(shared_state + SHARED_STATE);
    const InputState* inputs = reinterpret_cast<const InputState*>(state);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int quad = lane % LANES / HALVES;  // this lane's inputs are 4 quad to 4 quad + 3
    const int part = lane / LANES * HALVES + (lane & 1);
    const int column = threadIdx.x % TILE;  // the input that this thread copies in and out
    Four<FEATURE>* mine = reinterpret_cast<Four<FEATURE>*>(features) + quad;
    const int* my_headers = headers + warp * HEADER + lane % HEADER;
    if (threadIdx.x < TILE) features[zero_row * TILE + threadIdx.x] = feature_of_number(SCALAR(0));
    if (threadIdx.x < 2) masks[threadIdx.x] = 0;

    for (int parity = 0;;) {
        __syncthreads();  // the last tile has been copied out
        if (threadIdx.x == 0) {
            // A counter and no fixed share: blocks whose tiles stop early take more of them.
            shared_state[TAKEN] = atomicAdd(counts, 1);
            shared_state[HERE] = min(TILE, inputs->count - shared_state[TAKEN] * TILE);
            shared_state[RUNNING] = min((inputs->count + TILE - 1) / TILE, int(gridDim.x));
        }
        __syncthreads();  // the tile is known
        if (shared_state[HERE] <= 0) break;
        const int place = place_of(shared_state[TAKEN] * TILE + column, *inputs, source);
#pragma unroll 8
        for (int n = threadIdx.x / TILE; n < neurons_in; n += THREADS / TILE)
            features[row_of_neuron(n) * TILE + column] =
                column < shared_state[HERE] ? feature_of(from[size_t(n) * pitch + place])
                                            : feature_of_number(SCALAR(0));
        int next_header[GROUPS];
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) next_header[g] = my_headers[g * (WARPS * HEADER)];
        __syncthreads();  // the features are there

        bool stopped = false;
        unsigned mask = 0;
        for (int layer = 0; layer < layers && !stopped; ++layer) {
            int header[GROUPS];
#pragma unroll
            for (int g = 0; g < GROUPS; ++g) {
                header[g] = next_header[g];
                if (layer + 1 < layers)
                    next_header[g] =
                        my_headers[(size_t(layer + 1) * GROUPS + g) * (WARPS * HEADER)];
            }
            // This block's share of the next layer's weights.
            const unsigned char* next =
                data + size_t(__shfl_sync(FULL_WARP, header[0], NEXT)) * UNIT;
            const int lines = __shfl_sync(FULL_WARP, header[0], NEXT_LINES);
            const int running = shared_state[RUNNING];
            for (int n = shared_state[TAKEN] % running + threadIdx.x * running; n < lines;
                 n += running * THREADS)
                PREFETCH_L2(next + size_t(n) * LINE);

            SCALAR sums[GROUPS][ROWS][COLUMNS];
#pragma unroll
            for (int g = 0; g < GROUPS; ++g) {
                const unsigned char* group =
                    data + size_t(__shfl_sync(FULL_WARP, header[g], BEGIN)) * UNIT;
                group += PARTS * ROWS * sizeof(unsigned short);
                const Four<SCALAR>* of_biases = fours<SCALAR>(group) + part * 2;
                group += PARTS * ROWS * sizeof(SCALAR);
#pragma unroll
                for (int r = 0; r < ROWS; ++r)
#pragma unroll
                    for (int i = 0; i < COLUMNS; ++i) sums[g][r][i] = SCALAR(0);
                add_group(group, header[g], mine, lane, sums[g]);
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const Four<SCALAR> bias = load_constant(of_biases + h);
#pragma unroll
                    for (int r = 0; r < 4; ++r)
#pragma unroll
                        for (int i = 0; i < COLUMNS; ++i) {
                            SCALAR& y = sums[g][h * 4 + r][i];
                            y = widen(narrow(bounded(y + bias.x[r], SCALAR(0), y_max)));
                        }
                }
            }
            // The mask of this warp's rows: the first TILE lanes gather a bit each for their input.
            bool is_active = false, overflowed = false;
#pragma unroll
            for (int i = 0; i < COLUMNS; ++i) {
                unsigned largest = 0;
                if (quad * COLUMNS + i < shared_state[HERE])
#pragma unroll
                    for (int n = 0; n < GROUPS * ROWS; ++n)
                        largest = max(largest, __float_as_uint(sums[n / ROWS][n % ROWS][i]));
                overflowed |= largest > LARGEST;
                const unsigned votes = __ballot_sync(FULL_WARP, largest != 0);
                if (lane % COLUMNS == i && lane < TILE)
                    is_active = (votes & LANES_OF(lane / COLUMNS)) != 0;
            }
            mask = __ballot_sync(FULL_WARP, is_active);
            if (__any_sync(FULL_WARP, overflowed)) mask |= OVERFLOWED_BIT;

            Four<unsigned short> rows[GROUPS][2];
#pragma unroll
            for (int g = 0; g < GROUPS; ++g)
#pragma unroll
                for (int h = 0; h < 2; ++h)
                    rows[g][h] = load_constant(
                        fours<unsigned short>(
                            data + size_t(__shfl_sync(FULL_WARP, header[g], BEGIN)) * UNIT) +
                        part * 2 + h);

            __syncthreads();  // all have read the features of this layer
            if (lane == 0 && mask) atomicOr(&masks[parity], mask);  // all warps add to one mask
#pragma unroll
            for (int g = 0; g < GROUPS; ++g)
#pragma unroll
                for (int r = 0; r < ROWS; ++r) {
                    const unsigned row = rows[g][r / 4].x[r % 4];
                    Four<FEATURE> y;
#pragma unroll
                    for (int i = 0; i < COLUMNS; ++i) y.x[i] = feature_of_number(sums[g][r][i]);
                    if (row != NO_ROW) store(mine + row * (TILE / COLUMNS), y);
                }
            const bool may_stop = __shfl_sync(FULL_WARP, header[0], MAY_STOP) != 0;
            __syncthreads();  // all have written those of the next, and the mask is whole
            mask = masks[parity];
            parity ^= 1;
            if (threadIdx.x == 0) {
                masks[parity] = 0;  // all have read it, before the first of these two barriers
                int* tallies = counts + 1 + 3 * layer;
                atomicAdd(tallies, __popc(mask & ~OVERFLOWED_BIT));
                atomicAdd(tallies + 1, shared_state[HERE]);
                if (mask & OVERFLOWED_BIT) {
                    atomicOr(tallies + 2, 1);
                    atomicOr(&reinterpret_cast<InputState*>(state)->overflowed, 1);
                }
            }
            stopped = mask == 0 && may_stop;
        }

        if (column < shared_state[HERE]) {
            const int first = shared_state[TAKEN] * TILE;
#pragma unroll 8
            for (int n = threadIdx.x / TILE; n < neurons_out; n += THREADS / TILE)
                to[size_t(n) * pitch + first + column] =
                    stopped ? narrow(SCALAR(0))
                            : stored_of(features[row_of_neuron(n) * TILE + column]);
            if (threadIdx.x < TILE && (mask >> column & 1u)) active[first + column] = 1;
        }
    }
    end_step<THREADS>(state, active, ids, next_source, after, policy,
                      reinterpret_cast<int*>(features));
}
