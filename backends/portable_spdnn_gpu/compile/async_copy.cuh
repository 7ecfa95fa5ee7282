// Copies from device memory to shared memory that go on while the thread does other work.
//
// A thread starts copies, closes a group of them with commit_copies, and waits until all but its
// last PENDING groups have arrived. What others have copied is there after they have waited and
// all have met at a barrier. From sm_80 on the data pass by the registers (cp.async); before,
// each copy is done where it is started, and the waits are nothing.
//
// The emulation in tests/cuda_emulation defines these functions itself (ASYNC_COPIES): there
// a copy arrives as late as it may.
#pragma once

#ifndef ASYNC_COPIES
#define ASYNC_COPIES

// Other sizes than 4, 8 and 16 bytes cannot be asynchronous: a feature in half precision.
template <int BYTES> struct CopiedBytes;
template <> struct CopiedBytes<2> { typedef unsigned short Type; };
template <> struct CopiedBytes<4> { typedef unsigned Type; };
template <> struct CopiedBytes<8> { typedef unsigned long long Type; };
template <> struct __align__(16) CopiedBytes<16> {
    typedef CopiedBytes Type;
    unsigned x, y, z, w;
};

// Both addresses are multiples of BYTES.
template <int BYTES>
__device__ __forceinline__ void copy_async(void* shared, const void* global) {
#if __CUDA_ARCH__ >= 800
    const unsigned to = unsigned(__cvta_generic_to_shared(shared));
    if constexpr (BYTES == 16) {  // by L2 alone: L1 would keep what shared memory holds anyway
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global)
                     : "memory");
        return;
    } else if constexpr (BYTES >= 4) {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(global),
                     "n"(BYTES)
                     : "memory");
        return;
    }
#endif
    typedef typename CopiedBytes<BYTES>::Type Type;
    *static_cast<Type*>(shared) = *static_cast<const Type*>(global);
}

__device__ __forceinline__ void commit_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

template <int PENDING>
__device__ __forceinline__ void wait_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

#endif
