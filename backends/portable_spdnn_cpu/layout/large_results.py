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

# Bytes of a result beyond which its lines are prefetched. On an Intel Xeon that saves time once the
# second-level cache does not hold what a product works on. On a Zen 5 products of A as it is take
# 1.03 to 1.08 times as long with it for results of 1 to 6 MB, and 0.7 to 1.03 times for 8 to 65 MB
# that do not start on a line; the stream 0.99 to 1.03 times up to 4 MB, and 0.8 to 1.04 from 8 on.
# On a Zen 3 the stream takes 0.85 to 1.12 times as long for 2 to 3 MB, and 0.7 to 0.95 for 8.
PREFETCH_BYTES = cache_bytes(2) // 2
# Bytes of a result from which stores are non-temporal, on x86: elsewhere it was not measured. Of
# smaller ones the next layer reads from memory what it would find in a cache, and takes as much
# longer as the stores save. On a Zen 3 with a last cache of 32 MiB, which others use too, products
# into 16 to 24 MB take 0.82 to 1.0 times as long so, and three layers one after the other, with
# results of 12 to 24 MB, mostly 0.83 to 1.0 times.
NONTEMPORAL_BYTES = 1 << 25 if is_x86(binding.get_default_triple()) else sys.maxsize
if is_zen():
    PREFETCH_BYTES = 1 << 23
    if VECTOR_BYTES < 64:
        PREFETCH_BYTES, NONTEMPORAL_BYTES = 1 << 22, 3 << 22
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
