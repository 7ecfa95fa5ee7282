// What every kernel file shares: types of sums and storage, the state of a batch, the epilogue.
//
// The compiler's options define SCALAR (float or double), the type of sums, and HALF_STORAGE 1
// where features and weights are kept in half precision.
//
// NVRTC and the emulation in tests/cuda_emulation read the same text; the emulation defines
// DYNAMIC_SHARED and the conversions of half precision itself.
#pragma once

#ifndef DYNAMIC_SHARED
#define DYNAMIC_SHARED(type, name)                                  \
    extern __shared__ __align__(16) unsigned char dynamic_shared[]; \
    type* name = reinterpret_cast<type*>(dynamic_shared)
// In assembly: cuda_fp16.h, which has these as functions, is not among the headers that NVRTC is
// given. `rn` rounds to the nearest number, ties to even, as NumPy does.
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

// The lanes that meet in a warp intrinsic: all of them. Since sm_70 the lanes of a warp may run
// apart, and an intrinsic waits for those that its mask names.
#define FULL_WARP 0xffffffffu

#if HALF_STORAGE
typedef unsigned short STORED;
// A feature has overflowed if it is NaN or infinite: beyond 65,504 half precision rounds to
// infinity.
#define OVERFLOWED(x) (!((x) - (x) == SCALAR(0)))
// The same of a number that is still to be rounded, and whether it rounds to zero: 2^-25 and 65,520
// lie halfway to the first number that half precision has, and to the first that it has not.
#define ROUNDS_TO_ZERO(x) (fabs(x) <= SCALAR(2.98023223876953125e-8))
#define WILL_OVERFLOW(x) (!(fabs(x) < SCALAR(65520)))
__device__ __forceinline__ SCALAR widen(STORED x) { return half_to_float(x); }
__device__ __forceinline__ STORED narrow(SCALAR x) { return float_to_half(x); }
#else
typedef SCALAR STORED;
// A feature has overflowed if it is NaN: an infinite one is a result like others.
#define OVERFLOWED(x) ((x) != (x))
#define ROUNDS_TO_ZERO(x) ((x) == SCALAR(0))
#define WILL_OVERFLOW(x) OVERFLOWED(x)
__device__ __forceinline__ SCALAR widen(STORED x) { return x; }
__device__ __forceinline__ STORED narrow(SCALAR x) { return x; }
#endif

// How the launches of a network tell each other about its inputs without asking the host: five
// integers in device memory, which the list of inputs (input_lists.cuh) writes before each step.
struct InputState {
    int count;       // inputs that the step computes: the columns of its features
    int gathers;     // whether column i is read at source[i] in the features before, else at i
    int active;      // of the inputs before the list, those with a nonzero feature
    int overflowed;  // whether a feature of the step overflowed
    int ended;       // blocks of the step's last launch that have ended
};

// What a launch is told of the list behind its step: which inputs of the batch the columns are,
// where the next step reads them, its InputState, and whether and how it lists (input_lists.cuh).
#define LIST_PARAMETERS int *ids, int *next_source, int *after, int policy

// What follows a sum is compiled by EPILOGUE: 0 nothing, 1 the bias and bounds, which is all that
// linear and ReLU layers need, 2 bias, residual, one activation and bounds. ACTIVATION is then one
// of these codes: the places in portable_spdnn.epilogue.ACTIVATIONS, which has the formulas.
#define ACTIVATION_NONE 0
#define ACTIVATION_RELU 1
#define ACTIVATION_GELU 2
#define ACTIVATION_GELU_TANH 3
#define ACTIVATION_SILU 4
#define ACTIVATION_HARDSWISH 5
#define ACTIVATION_SIGMOID 6
#define ACTIVATION_TANH 7

// min(max(y, lower), upper). Every comparison with NaN is false, so that NaN passes; from sm_80 on
// there are instructions that do both, of float alone.
__device__ __forceinline__ SCALAR bounded(SCALAR y, SCALAR lower, SCALAR upper) {
#if __CUDA_ARCH__ >= 800
    if constexpr (sizeof(SCALAR) == sizeof(float)) {
        float x;
        asm("max.NaN.f32 %0, %1, %2;" : "=f"(x) : "f"(float(y)), "f"(float(lower)));
        asm("min.NaN.f32 %0, %1, %2;" : "=f"(x) : "f"(x), "f"(float(upper)));
        return x;
    }
#endif
    y = y <= lower ? lower : y;
    return y > upper ? upper : y;
}

#if EPILOGUE == 2
// 1 + erf(x) is erfc(-x), which does not cancel; below -1000 gelu, silu and hardswish are 0, where
// infinity times 0 would be NaN.
__device__ __forceinline__ SCALAR activated(SCALAR z) {
#if ACTIVATION == ACTIVATION_NONE
    return z;
#elif ACTIVATION == ACTIVATION_RELU
    return z <= SCALAR(0) ? SCALAR(0) : z;
#elif ACTIVATION == ACTIVATION_SIGMOID
    return SCALAR(1) / (SCALAR(1) + SCALAR(exp(-z)));
#elif ACTIVATION == ACTIVATION_TANH
    return SCALAR(tanh(z));
#else
    if (z < SCALAR(-1000)) return SCALAR(0);
#if ACTIVATION == ACTIVATION_GELU
    return SCALAR(0.5) * z * SCALAR(erfc(SCALAR(-0.70710678118654752) * z));
#elif ACTIVATION == ACTIVATION_GELU_TANH
    const SCALAR inner = z + SCALAR(0.044715) * z * z * z;
    return z / (SCALAR(1) + SCALAR(exp(SCALAR(-1.5957691216057308) * inner)));
#elif ACTIVATION == ACTIVATION_SILU
    return z / (SCALAR(1) + SCALAR(exp(-z)));
#else  // ACTIVATION_HARDSWISH
    return z * (bounded(z + SCALAR(3), SCALAR(0), SCALAR(6)) / SCALAR(6));
#endif
#endif
}
#endif

// What a kernel is told of the epilogue, beside the bias: the last parameters of a product.
#define EPILOGUE_PARAMETERS SCALAR lower, SCALAR upper, int adds, \
    const STORED* __restrict__ residual

// The result of a sum that belongs at `at`, an index into features and residual alike.
#if EPILOGUE == 2
#define FINISHED(sum, bias, at) \
    bounded(activated((sum) + (bias) + (adds ? widen(residual[at]) : SCALAR(0))), lower, upper)
#else
#define FINISHED(sum, bias, at) bounded((sum) + (bias), lower, upper)
#endif

// Where a column is read in the features before the step. Columns beyond the last one read the
// first, so that inner loops need no test; what they compute is not written.
__device__ __forceinline__ int place_of(int column, const InputState& inputs,
                                        const int* __restrict__ source) {
    if (column >= inputs.count) return inputs.gathers ? source[0] : 0;
    return inputs.gathers ? source[column] : column;
}

// Marks a column as active if it has a nonzero feature (NaN is one) after the step, and the step if
// one of its features overflowed. Blocks write the same marks of a column: a plain store suffices.
__device__ __forceinline__ void mark(bool nonzero, bool overflowed, int column,
                                     unsigned char* __restrict__ active, int* state) {
    if (nonzero) active[column] = 1;
    if (overflowed) atomicOr(&reinterpret_cast<InputState*>(state)->overflowed, 1);
}
