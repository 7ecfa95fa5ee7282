"""Writing large results: lines are prefetched, or stores are non-temporal.

A processor of x86 reads a line that is not in a cache before it writes to it. Where rows of a
result are written in pieces, one panel of columns after the other, hardware prefetchers do not
foresee which lines come next, or fetch those of other panels besides. So results of more than
PREFETCH_BYTES are prefetched by instructions, and those of NONTEMPORAL_BYTES and more are written
by non-temporal stores, past the caches: lines that are written whole are then not read at all. What
products gain: docs/results/pruned_products.md, "Large results".
"""

from __future__ import annotations

import sys
from typing import Any

from llvmlite import binding, ir
from numba.core import cgutils, types

from portable_spdnn_cpu.jit.compilation import Emission, intrinsic, kernel_part
from portable_spdnn_cpu.jit.intrinsics import prefetch_to_write
from portable_spdnn_cpu.jit.target import VECTOR_BYTES, is_x86, is_zen
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.machine.cpu_info import cache_bytes

MIB = 1 << 20


def limits_here() -> tuple[int, int]:
    """Return PREFETCH_BYTES and NONTEMPORAL_BYTES of the processor that kernels are compiled for.

    To prefetch lines saves time on an Intel Xeon once the second-level cache does not hold what a
    product works on. On a Zen 5 products of A as it is take 1.03 to 1.08 times as long with it for
    results of 1 to 6 MiB, and 0.7 to 1.03 times for 8 to 65 MiB that do not start on a line; the
    stream 0.99 to 1.03 times up to 4 MiB, and 0.8 to 1.04 from 8 on. On a Zen 3 the stream takes
    0.85 to 1.12 times as long for 2 to 3 MiB, 0.91 to 1.0 for 4, and 0.7 to 0.95 for 8.

    Of a result that is written past the caches the next layer reads from memory what it would find
    in one: on a Xeon it takes as much longer below 32 MiB as such stores save. On a Zen 3 whose
    last cache of 32 MiB others use too, 18 streamed products into 16 to 24 MiB take 0.82 to 1.06
    times as long with them, 0.96 in the median, 14 of A as it is into an `out` 0.45 to 1.17, 0.84
    in the median, and three layers one after the other with results of 12 to 24 MiB 0.95 in the
    median of 27. On other processors than x86 it was not measured, and there are none.
    """
    if is_zen() and VECTOR_BYTES < 64:
        return 4 * MIB, 12 * MIB
    prefetch = 8 * MIB if is_zen() else cache_bytes(2) // 2
    return prefetch, 32 * MIB if is_x86(binding.get_default_triple()) else sys.maxsize


# Bytes of a result beyond which its lines are prefetched, and from which stores are non-temporal.
PREFETCH_BYTES, NONTEMPORAL_BYTES = limits_here()
# Bytes of a row from which its lines are prefetched: hardware foresees where narrower rows go.
PREFETCH_ROW_BYTES = 512


def store_nontemporal(builder: Any, value: Any, pointer: Any) -> None:
    """Store a vector to an address that is a multiple of its bytes, by a non-temporal store.

    Such stores are not ordered with others: `store_fence` is to follow before another thread may
    read.
    """
    bits = 32 if isinstance(value.type.element, ir.FloatType) else 64
    store = builder.store(value, pointer, align=value.type.count * bits // 8)
    store.set_metadata("nontemporal", builder.module.add_metadata([ir.IntType(32)(1)]))


@intrinsic
def store_fence(typingctx: Any) -> Emission:
    """Let non-temporal stores come before all that is stored later: SFENCE of x86."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if is_x86(binding.get_default_triple()):
            kind = ir.FunctionType(ir.VoidType(), [])
            name = "llvm.x86.sse.sfence"
            builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [])
        return context.get_dummy_value()

    return types.void(), codegen


@kernel_part
def prefetch_items_to_write(array: Any, first: int, count: int) -> None:
    """Prefetch the cache lines of array[first : first + count], which are to be written.

    Where these do not start on a line, the last one may be left out. Lines beyond the array do no
    harm.
    """
    for item in range(first, first + count, BLOCK_BYTES // array.itemsize):
        prefetch_to_write(array, item)
