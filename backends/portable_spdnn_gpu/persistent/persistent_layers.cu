// Many fused layers in one launch, for narrow networks: a tile of inputs never leaves its
// multiprocessor.
//
// Idea: a block takes TILE inputs and carries them through all layers of the run. Their features
// lie in shared memory, [neuron][input], in one buffer: a thread keeps its sums of a layer in
// registers until all have read, then writes its outputs over them. No launch, no word from the
// host and no traffic of features stand between two layers: what remains of one is two barriers.
// Blocks take tiles until none is left; a tile whose inputs have all died ends where no
// layer to come revives them.
//
// Rows of A (outputs) are computed in clusters of 16 that share columns (clusters.py); rows that
// share with none are put in sixteens too. A lane holds 8 rows of its cluster and 4 inputs: 32
// sums for 12 numbers read. A warp takes CLUSTERS clusters at a time, a group: their common
// columns side by side, then what each row has alone, row by row. What is shorter than its
// neighbours ends in entries of weight 0 at a row of features that is always 0.
//
// Weights are read once for TILE inputs, past shared memory: of a column's 16 weights
// each lane reads its 8, and lanes that need the same meet in one access. A layer's weights are
// together in memory; at the start of a layer the running blocks divide the next one among them
// and ask for it to be brought to L2, since all of them come to it at about the same time and none
// would find it there. A warp reads what it must know of the next layer (its header) while
// it computes this one.
//
// Bound (sm_90, from its published rates; 1,024 neurons with 32 connections, TILE 16, float): a
// layer of a tile is 4,096 cycles of multiply-adds, about 3,600 of L1 and shared memory (7 accesses
// for 32 multiply-adds of a warp), and 139 KiB from L2, 3,000 to 5,000 cycles when all
// multiprocessors ask. Two barriers and the first reads behind them add several hundred: about 3
// microseconds a layer, whatever the number of tiles up to that of multiprocessors. Estimated, not
// measured. Rows that share nothing read 4 numbers for 4 multiply-adds: shared memory bounds, at a
// quarter of the arithmetic.
//
// Configuration:
// TILE 16, 8: inputs of a block. A weight read serves TILE multiply-adds, and below 16 the reads
//             of weights bound; above, the 1,800 inputs that remain of the challenge's 60,000
//             would be fewer tiles than multiprocessors (113 of 132 at 16). 8 where 16 do not fit.
// THREADS:    128, 256 or 512: as many warps as the widest layer has groups, so that several
//             blocks of narrow layers share a multiprocessor.
// GROUPS:     of a warp, at most: 1, or 2 where 16 warps are not enough. 32 sums each, in float
//             alone: sums in double would take the registers of two.
// BLOCKS:     512 threads on a multiprocessor at least: 128 registers each, for the sums and two
//             to four steps of weights on their way.
#include "common.cuh"

#ifndef PREFETCH_L2
#define PREFETCH_L2(address) asm volatile("prefetch.global.L2 [%0];" ::"l"(address))
#endif

#define CLUSTER 16
#define ROWS 8
#define COLUMNS 4
#define STEPS 4                               // entries that are read together
#define AHEAD (STEPS / GROUPS)                // steps whose weights are on their way
#define HALVES (CLUSTER / ROWS)
#define LANES (HALVES * TILE / COLUMNS)       // of a cluster
#define CLUSTERS (32 / LANES)                 // of a group
#define PARTS (CLUSTERS * HALVES)             // of a group: 8 rows each
#define WARPS (THREADS / 32)
#define BLOCKS (512 / THREADS)
#define LINE 128
#define UNIT 16
#define HEADER 16
#define NO_ROW 0xffffu
// The lanes that hold inputs 4 q to 4 q + 3.
#define LANES_OF(q) ((FULL_WARP / ((1u << LANES) - 1u) * 3u) << (2 * (q)))
#define UNUSABLE_BIT 0x80000000u

// What a header says of a group, in the order of its integers.
enum {
    BEGIN,       // where its data begin, in UNITs
    COMMON,      // common entries of a cluster, in STEPS
    OWN,         // 8: where the own entries of rows 0 to r of a part end, in STEPS
    NEXT = OWN + ROWS,  // where the data of the next layer begin, in UNITs
    NEXT_LINES,  // and how many lines they are
    MAY_STOP     // whether no later layer revives a dead input
};

// What the threads of a block tell each other, beside two words of a bit for each input that lives,
// of two layers by turns. They are read again wherever they are needed: registers are short.
enum { TAKEN, HERE, RUNNING, NOTES };

// Four numbers, moved in one access: the compiler does so by its own vectors alone.
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
// The same from memory that no launch changes.
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

__device__ __forceinline__ void widen_four(const Four<STORED>& from, SCALAR (&to)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = widen(from.x[i]);
}

// Adds the entries of a group to the sums of this lane. features: this lane's 4 inputs of neuron
// 0. data: what follows rows and biases of the group.
__device__ __forceinline__ void add_group(const unsigned char* __restrict__ data, int header,
                                          const Four<STORED>* features, int lane,
                                          SCALAR (&sums)[ROWS][COLUMNS]) {
    const int cluster = lane / LANES, part = cluster * HALVES + (lane & 1);
    const int common = __shfl_sync(FULL_WARP, header, COMMON);
    const Four<unsigned short>* columns = fours<unsigned short>(data) + cluster;
    data += size_t(common) * (CLUSTERS * STEPS * sizeof(unsigned short));
    const Four<STORED>* weights = fours<STORED>(data) + cluster * (CLUSTER / 4) + (lane & 1) * 2;
    data += size_t(common) * (STEPS * CLUSTERS * CLUSTER * sizeof(STORED));
    for (int k = 0; k < common; ++k) {
        const Four<unsigned short> at = load_constant(columns + k * CLUSTERS);
#pragma unroll
        for (int begin = 0; begin < STEPS; begin += AHEAD) {
            Four<STORED> loaded[AHEAD][2];
#pragma unroll
            for (int j = 0; j < AHEAD; ++j)
#pragma unroll
                for (int h = 0; h < 2; ++h)
                    loaded[j][h] = load_constant(
                        weights + (k * STEPS + begin + j) * (CLUSTERS * CLUSTER / 4) + h);
#pragma unroll
            for (int j = 0; j < AHEAD; ++j) {
                SCALAR y[COLUMNS];
                widen_four(load(features + at.x[begin + j] * (TILE / COLUMNS)), y);
#pragma unroll
                for (int r = 0; r < ROWS; ++r) {
                    const SCALAR weight = widen(loaded[j][r / 4].x[r % 4]);
#pragma unroll
                    for (int i = 0; i < COLUMNS; ++i) sums[r][i] += weight * y[i];
                }
            }
        }
    }

    const int own = __shfl_sync(FULL_WARP, header, OWN + ROWS - 1);
    if (own == 0) return;
    columns = fours<unsigned short>(data) + part;
    data += size_t(own) * (PARTS * STEPS * sizeof(unsigned short));
    weights = fours<STORED>(data) + part;
    int k = 0;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const int end = __shfl_sync(FULL_WARP, header, OWN + r);
#pragma unroll(2 / GROUPS)
        for (; k < end; ++k) {
            const Four<unsigned short> at = load_constant(columns + k * PARTS);
            SCALAR weight[STEPS];
            widen_four(load_constant(weights + k * PARTS), weight);
#pragma unroll
            for (int j = 0; j < STEPS; ++j) {
                SCALAR y[COLUMNS];
                widen_four(load(features + at.x[j] * (TILE / COLUMNS)), y);
#pragma unroll
                for (int i = 0; i < COLUMNS; ++i) sums[r][i] += weight[j] * y[i];
            }
        }
    }
}

// headers: [layer][GROUPS][WARPS][HEADER]. data: of a group its rows and biases, [PARTS][ROWS]; of
// the common entries columns [COMMON][CLUSTERS][STEPS] and weights [COMMON * STEPS][CLUSTERS]
// [CLUSTER]; of the others columns and weights [own][PARTS][STEPS]. zero_row: the row of features
// that is always 0, beyond the widest layer's. counts: zeros before the launch; the tiles that were
// taken, then three numbers for each layer: inputs alive after it, inputs computed, and
// whether one became of no use.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
resident_layers(const int* __restrict__ headers, const unsigned char* __restrict__ data,
                int layers, int neurons_in, int neurons_out, int zero_row,
                const STORED* __restrict__ from, STORED* __restrict__ to, int pitch, int* state,
                const int* __restrict__ source, unsigned char* __restrict__ alive, SCALAR y_max,
                int* counts) {
    DYNAMIC_SHARED(STORED, features);
    int* notes = reinterpret_cast<int*>(features + size_t(zero_row + 1) * TILE);
    unsigned* living = reinterpret_cast<unsigned*>(notes + NOTES);
    const InputState* inputs = reinterpret_cast<const InputState*>(state);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int quad = lane % LANES / HALVES;  // this lane's inputs are 4 quad to 4 quad + 3
    const int part = lane / LANES * HALVES + (lane & 1);
    const int column = threadIdx.x % TILE;  // the input that this thread brings and takes
    Four<STORED>* mine = reinterpret_cast<Four<STORED>*>(features) + quad;
    const int* my_headers = headers + warp * HEADER + lane % HEADER;
    if (threadIdx.x < TILE) features[zero_row * TILE + threadIdx.x] = narrow(SCALAR(0));
    if (threadIdx.x < 2) living[threadIdx.x] = 0;

    for (int turn = 0;;) {
        __syncthreads();  // the last tile has been taken out
        if (threadIdx.x == 0) {
            notes[TAKEN] = atomicAdd(counts, 1);
            notes[HERE] = min(TILE, inputs->count - notes[TAKEN] * TILE);
            notes[RUNNING] = min((inputs->count + TILE - 1) / TILE, int(gridDim.x));
        }
        __syncthreads();
        if (notes[HERE] <= 0) return;
        const int place = place_of(notes[TAKEN] * TILE + column, *inputs, source);
#pragma unroll 8
        for (int n = threadIdx.x / TILE; n < neurons_in; n += THREADS / TILE)
            features[n * TILE + column] =
                column < notes[HERE] ? from[size_t(n) * pitch + place] : narrow(SCALAR(0));
        int next_header[GROUPS];
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) next_header[g] = my_headers[g * (WARPS * HEADER)];
        __syncthreads();

        bool stopped = false;
        unsigned live = 0;
        for (int layer = 0; layer < layers && !stopped; ++layer) {
            int header[GROUPS];
#pragma unroll
            for (int g = 0; g < GROUPS; ++g) {
                header[g] = next_header[g];
                if (layer + 1 < layers)
                    next_header[g] =
                        my_headers[(size_t(layer + 1) * GROUPS + g) * (WARPS * HEADER)];
            }
            const unsigned char* next =
                data + size_t(__shfl_sync(FULL_WARP, header[0], NEXT)) * UNIT;
            const int lines = __shfl_sync(FULL_WARP, header[0], NEXT_LINES);
            const int running = notes[RUNNING];
            for (int n = notes[TAKEN] % running + threadIdx.x * running; n < lines;
                 n += running * THREADS)
                PREFETCH_L2(next + size_t(n) * LINE);

            SCALAR sums[GROUPS][ROWS][COLUMNS];
            bool nonzero[COLUMNS] = {}, unusable = false;
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
                            y = widen(narrow(activate(y, bias.x[r], y_max)));
                            if (quad * COLUMNS + i < notes[HERE]) {
                                nonzero[i] |= y != SCALAR(0);
                                unusable |= UNUSABLE(y);
                            }
                        }
                }
            }
            bool lives = false;  // of the first TILE lanes: their input
#pragma unroll
            for (int i = 0; i < COLUMNS; ++i) {
                const unsigned votes = __ballot_sync(FULL_WARP, nonzero[i]);
                if (lane % COLUMNS == i && lane < TILE)
                    lives = (votes & LANES_OF(lane / COLUMNS)) != 0;
            }
            live = __ballot_sync(FULL_WARP, lives);
            if (__any_sync(FULL_WARP, unusable)) live |= UNUSABLE_BIT;

            Four<unsigned short> rows[GROUPS][2];
#pragma unroll
            for (int g = 0; g < GROUPS; ++g)
#pragma unroll
                for (int h = 0; h < 2; ++h)
                    rows[g][h] = load_constant(
                        fours<unsigned short>(
                            data + size_t(__shfl_sync(FULL_WARP, header[g], BEGIN)) * UNIT) +
                        part * 2 + h);

            __syncthreads();  // all have read
            if (lane == 0 && live) atomicOr(&living[turn], live);
#pragma unroll
            for (int g = 0; g < GROUPS; ++g)
#pragma unroll
                for (int r = 0; r < ROWS; ++r) {
                    const unsigned row = rows[g][r / 4].x[r % 4];
                    Four<STORED> y;
#pragma unroll
                    for (int i = 0; i < COLUMNS; ++i) y.x[i] = narrow(sums[g][r][i]);
                    if (row != NO_ROW) store(mine + row * (TILE / COLUMNS), y);
                }
            const bool may_stop = __shfl_sync(FULL_WARP, header[0], MAY_STOP) != 0;
            __syncthreads();  // all have written
            live = living[turn];
            turn ^= 1;
            if (threadIdx.x == 0) {
                living[turn] = 0;  // which all read before the last barrier but one
                int* tallies = counts + 1 + 3 * layer;
                atomicAdd(tallies, __popc(live & ~UNUSABLE_BIT));
                atomicAdd(tallies + 1, notes[HERE]);
                if (live & UNUSABLE_BIT) {
                    atomicOr(tallies + 2, 1);
                    atomicOr(&reinterpret_cast<InputState*>(state)->nans, 1);
                }
            }
            stopped = live == 0 && may_stop;
        }

        if (column < notes[HERE]) {
            const int first = notes[TAKEN] * TILE;
#pragma unroll 8
            for (int n = threadIdx.x / TILE; n < neurons_out; n += THREADS / TILE)
                to[size_t(n) * pitch + first + column] =
                    stopped ? narrow(SCALAR(0)) : features[n * TILE + column];
            if (threadIdx.x < TILE && (live >> column & 1u)) alive[first + column] = 1;
        }
    }
}
