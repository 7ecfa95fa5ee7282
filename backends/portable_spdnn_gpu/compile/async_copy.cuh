// Copies from device memory to shared memory that go on while the thread does other work.
//
// A thread starts copies, closes a group of them with commit_copies, and waits with wait_copies
// until all but its last PENDING groups have arrived. It sees only its own copies then: what other
// threads have copied is there after they have waited too and all have met at a barrier. From
// sm_80 on the data do not pass through registers (cp.async); before, each copy is done where it
// is started, and waits do nothing.
//
// The emulation in tests/cuda_emulation defines these functions itself (ASYNC_COPIES): there a
// copy arrives as late as it may.
#pragma once

#ifndef ASYNC_COPIES
#define ASYNC_COPIES

// cp.async takes 4, 8 and 16 bytes alone; a single feature in half precision is copied plainly.
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
    // cp.async takes an address within shared memory, of 32 bits, and no generic pointer.
    const unsigned to = unsigned(__cvta_generic_to_shared(shared));
    if constexpr (BYTES == 16) {  // through L2 alone: in L1 the data would be kept twice
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

// Here and below "memory" keeps the compiler from moving accesses to shared memory across.
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
