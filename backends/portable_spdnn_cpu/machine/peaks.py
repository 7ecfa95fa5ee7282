"""Kernels that measure what the processor can do at most: multiply-adds, and reads of each memory.

Written as the others are, in explicit vectors, so that what they reach is what a kernel of this
toolchain could reach.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types

from portable_spdnn.kernel_model import Limits
from portable_spdnn_cpu.jit.compilation import Array, Emission, intrinsic, kernel
from portable_spdnn_cpu.jit.target import VECTOR_BYTES
from portable_spdnn_cpu.jit.vectors import broadcast
from portable_spdnn_cpu.machine.cpu_info import aligned_empty, cache_bytes
from portable_spdnn_cpu.machine.thread_pool import ThreadPool
from portable_spdnn_cpu.machine.timing import seconds_each

# Sums that do not wait for each other: enough to hide a latency of 4 to 5 cycles where two
# multiply-adds begin in each, and few enough for 16 registers.
FMA_CHAINS = 12
READ_CHAINS = 8
FMA_ROUNDS = 1 << 12  # of one repetition: a few microseconds
# Of one timing. That of multiply-adds is shorter than the slices that a scheduler gives: so some of
# many are whole where other programs use the core.
SECONDS, FMA_SECONDS = 0.03, 1e-3
REPEATS, FMA_REPEATS = 5, 60
LANES = VECTOR_BYTES // 4
BEYOND_CACHE = 1 << 28  # bytes a thread, larger than any third-level cache's share


@intrinsic
def fma_chains(typingctx: Any, rounds: Any, factor: Any, term: Any) -> Emission:
    """Do `rounds` fused multiply-adds in each of FMA_CHAINS vectors; returns a lane of the sum."""
    signature = types.float32(types.intp, types.float32, types.float32)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        vector = ir.VectorType(ir.FloatType(), LANES)
        rounds, factor, term = args
        factors, terms = (broadcast(builder, vector, scalar) for scalar in (factor, term))
        # Stack slots, which LLVM promotes to registers; unequal, so that none is left out.
        sums = [
            cgutils.alloca_once_value(builder, ir.Constant(vector, [float(chain)] * LANES))
            for chain in range(FMA_CHAINS)
        ]
        with cgutils.for_range(builder, rounds):
            for place in sums:
                product = builder.fmul(builder.load(place), factors, flags=("contract",))
                builder.store(builder.fadd(product, terms, flags=("contract",)), place)
        return _sum_lane(builder, sums)

    return signature, codegen


@intrinsic
def read_all(typingctx: Any, array: Any) -> Emission:
    """Read an array of float32 once, a whole number of READ_CHAINS vectors; returns a lane."""
    signature = types.float32(array)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        vector = ir.VectorType(ir.FloatType(), LANES)
        source = context.make_array(sig.args[0])(context, builder, args[0])
        count = builder.extract_value(source.shape, 0)
        sums = [
            cgutils.alloca_once_value(builder, ir.Constant(vector, None))
            for _ in range(READ_CHAINS)
        ]
        zero = ir.Constant(count.type, 0)
        step = ir.Constant(count.type, READ_CHAINS * LANES)
        with cgutils.for_range_slice(builder, zero, count, step, count.type) as (start, _):
            for chain, place in enumerate(sums):
                offset = builder.add(start, ir.Constant(count.type, chain * LANES))
                pointer = builder.bitcast(builder.gep(source.data, [offset]), vector.as_pointer())
                value = builder.load(pointer, align=4)
                builder.store(builder.fadd(builder.load(place), value), place)
        return _sum_lane(builder, sums)

    return signature, codegen


def _sum_lane(builder: Any, sums: list[Any]) -> Any:
    total = builder.load(sums[0])
    for place in sums[1:]:
        total = builder.fadd(total, builder.load(place))
    # That the sums are used keeps the compiler from leaving them out.
    return builder.extract_element(total, ir.Constant(ir.IntType(32), 0))


@kernel
def repeat_fma(rounds: int, factor: Any, term: Any) -> Any:
    """Call `fma_chains`; the arguments keep the compiler from knowing the sums."""
    return fma_chains(rounds, factor, term)


@kernel
def repeat_reads(array: Array, times: int) -> Any:
    """Read an array `times` times over."""
    total = np.float32(0)
    for _ in range(times):
        total += read_all(array)
    return total


def measure(pool: ThreadPool) -> Limits:
    """Measure all limits, on all threads of the pool together; takes some seconds."""
    threads = pool.threads
    l1, l2, l3 = (cache_bytes(level) for level in (1, 2, 3))
    memory = _read_rate(pool, BEYOND_CACHE)
    return Limits(
        flops=fma_rate(pool),
        l1=_read_rate(pool, l1 // 2),
        l2=_read_rate(pool, l1 + (l2 - l1) // 2),
        # The third level is shared: its half, divided among the threads.
        l3=_read_rate(pool, max(2 * l2, l3 // 2 // threads)) if l3 > 2 * l2 else memory,
        memory=memory,
    )


def fma_rate(pool: ThreadPool) -> float:
    """Return float32 operations per second of fused multiply-adds, on as many threads as a pool's.

    Measured once for each number of threads.
    """
    return _fma_rate(pool.threads)


@functools.cache
def _fma_rate(threads: int) -> float:
    return fma_rate_now(ThreadPool(threads), FMA_REPEATS)


def fma_rate_now(pool: ThreadPool, repeats: int = FMA_REPEATS // 4) -> float:
    """Measure what `fma_rate` returns, now: the fastest of some loops of a millisecond each."""
    # Below one, so that sums stay finite; the compiler does not know the values.
    factor, term = np.float32(0.999), np.float32(0.5)

    def work(thread: int, times: int) -> None:
        repeat_fma(FMA_ROUNDS * times, factor, term)

    flops = pool.threads * FMA_ROUNDS * FMA_CHAINS * LANES * 2
    return flops / seconds_each(pool, work, FMA_SECONDS, repeats)


def _read_rate(pool: ThreadPool, size: int) -> float:
    """Return bytes per second that all threads read from arrays of `size` bytes each."""
    block = READ_CHAINS * LANES
    items = max(size // 4 // block, 1) * block
    arrays: list[Array] = [np.empty(0, np.float32)] * pool.threads

    def fill(thread: int) -> None:  # first touched by the thread that reads it
        arrays[thread] = aligned_empty((items,), np.float32)
        arrays[thread][:] = 1

    pool.run(fill)

    def work(thread: int, times: int) -> None:
        repeat_reads(arrays[thread], times)

    return pool.threads * items * 4 / seconds_each(pool, work, SECONDS, REPEATS)
