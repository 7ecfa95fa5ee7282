// What every kernel file shares. Defined by the compiler's options: SCALAR (float or double), the
// type of sums; HALF_STORAGE 1 where features and weights are kept in half precision.
//
// NVRTC and the emulation in tests/cuda_emulation read the same text; the emulation defines
// DYNAMIC_SHARED and the conversions of half precision itself.
#pragma once

#ifndef DYNAMIC_SHARED
#define DYNAMIC_SHARED(type, name)                                  \
    extern __shared__ __align__(16) unsigned char dynamic_shared[]; \
    type* name = reinterpret_cast<type*>(dynamic_shared)
__device__ __forceinline__ float half_to_float(unsigned short h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}
__device__ __forceinline__ unsigned short float_to_half(float f) {
    unsigned short h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}
#endif

#define FULL_WARP 0xffffffffu

#if HALF_STORAGE
typedef unsigned short STORED;
// NaN, or an infinity, which half precision meets beyond 65,504.
#define UNUSABLE(x) (!((x) - (x) == SCALAR(0)))
__device__ __forceinline__ SCALAR widen(STORED x) { return half_to_float(x); }
__device__ __forceinline__ STORED narrow(SCALAR x) { return float_to_half(x); }
#else
typedef SCALAR STORED;
#define UNUSABLE(x) ((x) != (x))
__device__ __forceinline__ SCALAR widen(STORED x) { return x; }
__device__ __forceinline__ STORED narrow(SCALAR x) { return x; }
#endif

// What launches of a network tell each other about its inputs, on the device: four integers for
// each layer.
struct InputState {
    int count;    // inputs that the layer computes
    int gathers;  // whether they lie apart: input i at source[i], else at i
    int alive;    // of them, those with a nonzero feature before the layer
    int nans;     // whether the layer made a feature of no use: NaN
};

// min(max(sum + bias, 0), y_max); every comparison with NaN is false, so that NaN passes.
__device__ __forceinline__ SCALAR activate(SCALAR sum, SCALAR bias, SCALAR y_max) {
    SCALAR y = sum + bias;
    y = y <= SCALAR(0) ? SCALAR(0) : y;
    return y > y_max ? y_max : y;
}

// Where the input of a column lies in the features before the layer. Columns beyond the last one
// read the first, so that loops need not ask.
__device__ __forceinline__ int place_of(int column, const InputState& inputs,
                                        const int* __restrict__ source) {
    if (column >= inputs.count) return inputs.gathers ? source[0] : 0;
    return inputs.gathers ? source[column] : column;
}

// Notes that a column has a nonzero feature (NaN is one) after the layer, or one of no use.
__device__ __forceinline__ void mark(bool nonzero, bool unusable, int column,
                                     unsigned char* __restrict__ alive, int* state) {
    if (nonzero) alive[column] = 1;
    if (unusable) atomicOr(&reinterpret_cast<InputState*>(state)->nans, 1);
}
