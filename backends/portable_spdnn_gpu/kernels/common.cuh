// What every kernel file shares. Defined by the compiler's options: SCALAR (float or double).
//
// NVRTC and the emulation in tests/cuda_emulation read the same text; the emulation defines
// DYNAMIC_SHARED itself, because a host compiler has no extern __shared__ arrays.
#pragma once

#ifndef DYNAMIC_SHARED
#define DYNAMIC_SHARED(type, name)                                  \
    extern __shared__ __align__(16) unsigned char dynamic_shared[]; \
    type* name = reinterpret_cast<type*>(dynamic_shared)
#endif

#define FULL_WARP 0xffffffffu

// min(max(sum + bias, 0), y_max); every comparison with NaN is false, so that NaN passes.
__device__ __forceinline__ SCALAR activate(SCALAR sum, SCALAR bias, SCALAR y_max) {
    SCALAR y = sum + bias;
    y = y <= SCALAR(0) ? SCALAR(0) : y;
    return y > y_max ? y_max : y;
}
