// Runs CUDA C++ kernels on the CPU, for tests: one fiber for each thread of a block.
//
// A kernel file is compiled unchanged by g++ or clang (C++17, Linux) after this header. Blocks run
// one after another; in a block every thread is a fiber with a stack of its own, which runs until
// it meets a barrier or a warp operation and goes on when all that must meet there have come.
//
// An error, with what went wrong: a barrier that some threads never reach, a warp operation whose
// mask names lanes that have left or wait elsewhere, a shuffle from a lane outside the mask.
// Shared memory, static and dynamic, is filled with 0xFF (NaN; -1) before each block, so that
// reading before writing shows. Asynchronous copies arrive when their thread waits for them and no
// sooner; until then their place holds 0xFF, so that a missing wait shows. Lanes, warps and blocks
// run in rising or falling order: what is right in one order alone is a race.
//
// Not modelled: memory ordering, races within one order, grid-wide synchronisation, half
// precision, tensor cores, textures.
#pragma once
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
// One block at a time: a static variable is shared by the block. The section makes all of them
// one range that can be poisoned; a byte of it exists even where a kernel has none.
#define __shared__ static __attribute__((section("cuda_shared")))
#define DYNAMIC_SHARED(type, name) \
    type* name = reinterpret_cast<type*>(cuda_emulation::state().dynamic.data())

__attribute__((section("cuda_shared"), used)) static unsigned char cuda_shared_anchor;
extern unsigned char __start_cuda_shared[] __attribute__((visibility("hidden")));
extern unsigned char __stop_cuda_shared[] __attribute__((visibility("hidden")));

inline float half_to_float(unsigned short h) {
    _Float16 x;
    std::memcpy(&x, &h, sizeof x);
    return float(x);
}
inline unsigned short float_to_half(float f) {
    const _Float16 x = _Float16(f);
    unsigned short h;
    std::memcpy(&h, &x, sizeof h);
    return h;
}

struct uint3 { unsigned x, y, z; };
struct __attribute__((may_alias, aligned(8))) uint2 { unsigned x, y; };
struct __attribute__((may_alias, aligned(16))) uint4 { unsigned x, y, z, w; };

namespace cuda_emulation {

enum class Status { running, at_barrier, in_warp_operation, finished };
enum class Operation { none, sync, index, up, down, exclusive_or, ballot };

// A copy to shared memory that has been started; it arrives with its group.
struct Copy {
    void* to;
    const void* from;
    size_t bytes, group;
};

struct Fiber {
    void* stack_pointer = nullptr;
    ucontext_t context;
    void* stack = nullptr;
    uint3 thread{};
    unsigned linear = 0;
    Status status = Status::finished;
    Operation operation = Operation::none;
    unsigned mask = 0;
    uint64_t value = 0, result = 0;
    int argument = 0, predicate = 0;
    std::vector<Copy> copies;
    size_t groups = 0;  // closed so far
};

struct State {
    std::vector<Fiber> fibers;
    ucontext_t scheduler;
    void* scheduler_stack = nullptr;
    Fiber* current = nullptr;
    uint3 block{}, block_size{}, grid_size{};
    unsigned threads = 0;
    std::vector<unsigned char> dynamic;
    std::function<void()> body;
    std::exception_ptr error;
    bool falling = false;
};
constexpr size_t STACK_BYTES = 64 * 1024;
constexpr size_t GUARD_BYTES = 4096;
inline State& state() { static State s; return s; }

// ucontext makes a system call for each switch; on x86-64 a switch is six pushes and pops.
// AddressSanitizer follows stacks through ucontext alone.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__)
#define CUDA_EMULATION_ASSEMBLY 1
extern "C" void cuda_emulation_switch(void** save, void* load);
__asm__(".text\n.weak cuda_emulation_switch\n.type cuda_emulation_switch,@function\n"
        "cuda_emulation_switch:\n"
        "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
        "movq %rsp,(%rdi)\nmovq %rsi,%rsp\n"
        "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n"
        ".size cuda_emulation_switch,.-cuda_emulation_switch\n");
#endif

inline void suspend() {
    State& s = state();
#ifdef CUDA_EMULATION_ASSEMBLY
    cuda_emulation_switch(&s.current->stack_pointer, s.scheduler_stack);
#else
    swapcontext(&s.current->context, &s.scheduler);
#endif
}

inline void run_thread() {
    State& s = state();
    try {
        s.body();
    } catch (...) {
        s.error = std::current_exception();
    }
    s.current->status = Status::finished;
    suspend();
    std::abort();  // a finished fiber is never resumed
}

inline void start(Fiber& fiber) {
    if (!fiber.stack) {
        fiber.stack = mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (fiber.stack == MAP_FAILED) { fiber.stack = nullptr; throw std::bad_alloc(); }
        mprotect(fiber.stack, GUARD_BYTES, PROT_NONE);  // an overflow faults, and harms no other
    }
    fiber.status = Status::running;
    fiber.copies.clear();
    fiber.groups = 0;
#ifdef CUDA_EMULATION_ASSEMBLY
    void** top = reinterpret_cast<void**>(static_cast<char*>(fiber.stack) + STACK_BYTES);
    *--top = nullptr;  // a return address: at entry the stack is aligned as after a call
    *--top = reinterpret_cast<void*>(&run_thread);
    for (int i = 0; i < 6; ++i) *--top = nullptr;
    fiber.stack_pointer = top;
#else
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack;
    fiber.context.uc_stack.ss_size = STACK_BYTES;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, run_thread, 0);
#endif
}

inline void resume(Fiber& fiber) {
    State& s = state();
    s.current = &fiber;
#ifdef CUDA_EMULATION_ASSEMBLY
    cuda_emulation_switch(&s.scheduler_stack, fiber.stack_pointer);
#else
    swapcontext(&s.scheduler, &fiber.context);
#endif
    if (s.error) std::rethrow_exception(std::exchange(s.error, nullptr));
}

inline uint64_t warp_operation(Operation operation, unsigned mask, uint64_t value, int argument) {
    Fiber& fiber = *state().current;
    if (!(mask >> (fiber.linear % 32) & 1u))
        throw std::logic_error("warp operation: the calling lane is not in its own mask");
    fiber.status = Status::in_warp_operation;
    fiber.operation = operation;
    fiber.mask = mask;
    fiber.value = value;
    fiber.argument = argument;
    suspend();
    return fiber.result;
}

inline int source_lane(const Fiber& fiber, int lane) {
    switch (fiber.operation) {
        case Operation::index: return fiber.argument & 31;
        case Operation::up: return lane < fiber.argument ? lane : lane - fiber.argument;
        case Operation::down: return lane + fiber.argument > 31 ? lane : lane + fiber.argument;
        case Operation::exclusive_or: return lane ^ fiber.argument;
        default: return lane;
    }
}

// Whether all lanes that the operation of `fiber` names have come to it.
inline bool all_there(const Fiber& fiber, unsigned base, unsigned lanes) {
    for (unsigned k = 0; k < 32; ++k) {
        if (!(fiber.mask >> k & 1u)) continue;
        if (k >= lanes) continue;  // a block whose last warp is not full: no such thread exists
        const Fiber& other = state().fibers[base + k];
        if (other.status == Status::finished)
            throw std::logic_error("warp operation: a lane named in the mask has exited");
        if (other.status == Status::at_barrier)
            throw std::logic_error("warp operation: a lane named in the mask waits at a barrier");
        if (other.status != Status::in_warp_operation || other.mask != fiber.mask ||
            other.operation != fiber.operation)
            return false;
    }
    return true;
}

// Completes every warp operation whose lanes have all come; whether there was one.
inline bool complete_warp_operations(unsigned base, unsigned lanes) {
    State& s = state();
    bool any = false;
    for (unsigned l = 0; l < lanes; ++l) {
        Fiber& fiber = s.fibers[base + l];
        if (fiber.status != Status::in_warp_operation || !all_there(fiber, base, lanes)) continue;
        const unsigned mask = lanes == 32 ? fiber.mask : fiber.mask & ((1u << lanes) - 1u);
        unsigned ballot = 0;
        for (unsigned k = 0; k < lanes; ++k)
            if ((mask >> k & 1u) && s.fibers[base + k].value) ballot |= 1u << k;
        for (unsigned k = 0; k < lanes; ++k) {
            if (!(mask >> k & 1u)) continue;
            Fiber& other = s.fibers[base + k];
            const int source = source_lane(other, int(k));
            if (!(mask >> source & 1u))
                throw std::logic_error("shuffle from a lane outside the mask");
            other.result = other.operation == Operation::ballot
                               ? ballot : s.fibers[base + unsigned(source)].value;
        }
        for (unsigned k = 0; k < lanes; ++k)
            if (mask >> k & 1u) s.fibers[base + k].status = Status::running;
        any = true;
    }
    return any;
}

inline bool run_warp(unsigned base) {
    State& s = state();
    const unsigned lanes = std::min(32u, s.threads - base);
    bool progress = false;
    do {
        for (unsigned i = 0; i < lanes; ++i) {
            Fiber& fiber = s.fibers[base + (s.falling ? lanes - 1 - i : i)];
            if (fiber.status != Status::running) continue;
            resume(fiber);
            progress = true;
        }
    } while (complete_warp_operations(base, lanes));
    return progress;
}

inline void release_barrier() {
    State& s = state();
    uint64_t any = 0, all = 1, count = 0;
    for (unsigned i = 0; i < s.threads; ++i) {
        const bool predicate = s.fibers[i].predicate != 0;
        any |= predicate;
        all &= predicate;
        count += predicate;
    }
    for (unsigned i = 0; i < s.threads; ++i) {
        s.fibers[i].result = any | all << 1 | count << 2;
        s.fibers[i].status = Status::running;
    }
}

inline void run_block() {
    State& s = state();
    for (unsigned i = 0; i < s.threads; ++i) start(s.fibers[i]);
    std::fill(s.dynamic.begin(), s.dynamic.end(), 0xFF);
    std::memset(__start_cuda_shared, 0xFF, size_t(__stop_cuda_shared - __start_cuda_shared));
    const unsigned warps = (s.threads + 31) / 32;
    for (;;) {
        bool progress = false;
        for (unsigned w = 0; w < warps; ++w)
            progress |= run_warp(32 * (s.falling ? warps - 1 - w : w));
        unsigned finished = 0, waiting = 0;
        for (unsigned i = 0; i < s.threads; ++i) {
            finished += s.fibers[i].status == Status::finished;
            waiting += s.fibers[i].status == Status::at_barrier;
        }
        if (finished == s.threads) return;
        if (waiting && waiting == s.threads - finished) {
            if (finished)
                throw std::logic_error("__syncthreads: some threads of the block have exited");
            release_barrier();
        } else if (!progress) {
            throw std::logic_error("deadlock: threads wait at different barriers");
        }
    }
}

// `dynamic_limit`: bytes of dynamic shared memory that have been asked for.
inline void launch(uint3 grid, uint3 block, size_t dynamic_bytes, size_t dynamic_limit,
                   std::function<void()> body) {
    State& s = state();
    s.grid_size = grid;
    s.block_size = block;
    s.threads = block.x * block.y * block.z;
    s.body = std::move(body);
    s.error = nullptr;
    if (s.threads == 0 || s.threads > 1024) throw std::invalid_argument("a block has 1 to 1024 threads");
    if (!grid.x || !grid.y || !grid.z || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535)
        throw std::invalid_argument("a grid has 1 to 2^31 - 1, 65535 and 65535 blocks");
    if (dynamic_bytes > std::max(dynamic_limit, size_t(48 * 1024)))
        throw std::invalid_argument("more than 48 KiB of dynamic shared memory must be asked for");
    if (s.fibers.size() < s.threads) s.fibers.resize(s.threads);
    s.dynamic.assign(dynamic_bytes, 0);
    s.dynamic.shrink_to_fit();  // AddressSanitizer sees the end
    for (unsigned i = 0; i < s.threads; ++i) {
        s.fibers[i].linear = i;
        s.fibers[i].thread = {i % block.x, i / block.x % block.y, i / (block.x * block.y)};
    }
    for (unsigned z = 0; z < grid.z; ++z)
        for (unsigned y = 0; y < grid.y; ++y)
            for (unsigned x = 0; x < grid.x; ++x) {
                s.block = {s.falling ? grid.x - 1 - x : x, y, z};
                run_block();
            }
}

inline int barrier(int predicate) {
    Fiber& fiber = *state().current;
    fiber.predicate = predicate;
    fiber.status = Status::at_barrier;
    suspend();
    return int(fiber.result);
}

inline void start_copy(void* to, const void* from, size_t bytes) {
    if (uintptr_t(to) % bytes || uintptr_t(from) % bytes)
        throw std::logic_error("copy_async: an address is not a multiple of the size");
    Fiber& fiber = *state().current;
    fiber.copies.push_back({to, from, bytes, fiber.groups});
    std::memset(to, 0xFF, bytes);
}

// Lets all groups but the last `pending` arrive. Copies that no group was closed over stay.
inline void finish_copies(size_t pending) {
    Fiber& fiber = *state().current;
    const auto arrives = [&](const Copy& copy) { return copy.group + pending < fiber.groups; };
    for (const Copy& copy : fiber.copies)
        if (arrives(copy)) std::memcpy(copy.to, copy.from, copy.bytes);
    fiber.copies.erase(std::remove_if(fiber.copies.begin(), fiber.copies.end(), arrives),
                       fiber.copies.end());
}

template <class T> uint64_t to_bits(T value) {
    static_assert(sizeof(T) <= 8);
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    return bits;
}
template <class T> T from_bits(uint64_t bits) {
    T value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// One letter for a type, as NumPy's; * before it for a pointer.
template <class T> std::string letter() {
    using U = std::remove_cv_t<T>;
    if constexpr (std::is_pointer_v<U>) return "*" + letter<std::remove_pointer_t<U>>();
    else if constexpr (std::is_same_v<U, float>) return "f";
    else if constexpr (std::is_same_v<U, double>) return "d";
    else if constexpr (std::is_same_v<U, int>) return "i";
    else if constexpr (std::is_same_v<U, unsigned>) return "I";
    else if constexpr (std::is_same_v<U, unsigned short>) return "H";
    else if constexpr (std::is_same_v<U, unsigned char>) return "B";
    else if constexpr (std::is_same_v<U, long long>) return "q";
    else if constexpr (std::is_same_v<U, unsigned long long>) return "Q";
    else static_assert(!sizeof(U), "a parameter of a type that launches do not pass");
}

template <class... P> std::string parameters(void (*)(P...)) {
    std::string all;
    ((all += letter<P>() + " "), ...);
    return all;
}
template <class... P, size_t... I>
void call(void (*kernel)(P...), void** arguments, std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_cv_t<P>*>(arguments[I])...);
}
// As cuLaunchKernel takes them: `arguments` points at each value. Returns what went wrong.
template <class... P>
const char* launch_kernel(void (*kernel)(P...), const unsigned* sizes, size_t dynamic_bytes,
                          size_t dynamic_limit, bool falling, void** arguments) {
    static std::string message;
    state().falling = falling;
    try {
        launch({sizes[0], sizes[1], sizes[2]}, {sizes[3], sizes[4], sizes[5]}, dynamic_bytes,
               dynamic_limit, [&] { call(kernel, arguments, std::index_sequence_for<P...>{}); });
    } catch (const std::exception& error) {
        message = error.what();
        return message.c_str();
    }
    return nullptr;
}

}  // namespace cuda_emulation

#define EXPORT_KERNEL(name)                                                                 \
    extern "C" const char* launch_##name(const unsigned* sizes, size_t dynamic_bytes,       \
                                         size_t dynamic_limit, int falling,                 \
                                         void** arguments) {                                \
        return cuda_emulation::launch_kernel(name, sizes, dynamic_bytes, dynamic_limit,     \
                                             falling, arguments);                           \
    }                                                                                       \
    extern "C" const char* parameters_of_##name() {                                         \
        static const std::string all = cuda_emulation::parameters(name);                    \
        return all.c_str();                                                                 \
    }

#define threadIdx (cuda_emulation::state().current->thread)
#define blockIdx (cuda_emulation::state().block)
#define blockDim (cuda_emulation::state().block_size)
#define gridDim (cuda_emulation::state().grid_size)

inline void __syncthreads() { cuda_emulation::barrier(0); }
inline int __syncthreads_or(int p) { return cuda_emulation::barrier(p) & 1; }
inline int __syncthreads_and(int p) { return cuda_emulation::barrier(p) >> 1 & 1; }
inline int __syncthreads_count(int p) { return cuda_emulation::barrier(p) >> 2; }

#define CUDA_EMULATION_WARP(operation, mask, value, argument) \
    cuda_emulation::warp_operation(cuda_emulation::Operation::operation, mask, value, argument)
inline void __syncwarp(unsigned mask = ~0u) { CUDA_EMULATION_WARP(sync, mask, 0, 0); }
#define CUDA_EMULATION_SHUFFLE(name, operation)                                               \
    template <class T> T name(unsigned mask, T value, int argument) {                         \
        return cuda_emulation::from_bits<T>(                                                  \
            CUDA_EMULATION_WARP(operation, mask, cuda_emulation::to_bits(value), argument));  \
    }
CUDA_EMULATION_SHUFFLE(__shfl_sync, index)
CUDA_EMULATION_SHUFFLE(__shfl_up_sync, up)
CUDA_EMULATION_SHUFFLE(__shfl_down_sync, down)
CUDA_EMULATION_SHUFFLE(__shfl_xor_sync, exclusive_or)
inline unsigned __ballot_sync(unsigned mask, int predicate) {
    return unsigned(CUDA_EMULATION_WARP(ballot, mask, predicate != 0, 0));
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }

// As in compile/async_copy.cuh, which defines these where they are not. Two bytes are never
// asynchronous.
#define ASYNC_COPIES
template <int BYTES> void copy_async(void* shared, const void* global) {
    if constexpr (BYTES == 2) std::memcpy(shared, global, 2);
    else cuda_emulation::start_copy(shared, global, BYTES);
}
inline void commit_copies() { ++cuda_emulation::state().current->groups; }
template <int PENDING> void wait_copies() { cuda_emulation::finish_copies(PENDING); }

// Fibers do not preempt each other: an ordinary update is atomic.
template <class T, class U> T atomicAdd(T* at, U value) { T old = *at; *at = T(old + value); return old; }
template <class T, class U> T atomicMax(T* at, U value) { T old = *at; *at = std::max(old, T(value)); return old; }
template <class T, class U> T atomicMin(T* at, U value) { T old = *at; *at = std::min(old, T(value)); return old; }
template <class T, class U> T atomicOr(T* at, U value) { T old = *at; *at = T(old | value); return old; }
template <class T> T atomicCAS(T* at, T compare, T value) { T old = *at; if (old == compare) *at = value; return old; }
// Brings nothing, but what is asked for must exist: the sanitizer sees the read.
#define PREFETCH_L2(address) ((void)*static_cast<const volatile unsigned char*>(address))
// Memory ordering is not modelled: blocks run one after another.
inline void __threadfence() {}
template <class T> T __ldg(const T* at) { return *at; }
template <class T> T __ldcg(const T* at) { return *at; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline float __int_as_float(int x) { return cuda_emulation::from_bits<float>(unsigned(x)); }
inline unsigned __float_as_uint(float x) { return unsigned(cuda_emulation::to_bits(x)); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
using std::memcpy;
using std::max;
using std::min;
