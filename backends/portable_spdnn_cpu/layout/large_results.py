"""Writing results that caches do not hold: lines are prefetched, or stores are non-temporal.

A processor reads a line that is not in a cache before it writes to it. Where rows of a result are
written in pieces, one panel of columns after the other, hardware prefetchers do not foresee which
lines come next, or fetch those of other panels besides. So lines are prefetched by instructions;
and results larger than the caches are written by non-temporal stores, past the caches: lines that
are written whole are then not read at all. Products that write C in panels take 0.6 to 0.9 of the
time so on an Intel Xeon where C has 4 to 32 MB, and 0.3 to 0.8 beyond, the less the fewer entries a
row has.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types

from portable_spdnn_cpu.jit.compilation import Emission, intrinsic, kernel_part
from portable_spdnn_cpu.jit.intrinsics import prefetch_line
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.machine.cpu_info import cache_bytes

# Bytes of a result from which its lines are prefetched, and from which stores are non-temporal.
# The next layer reads the result: where it has fewer bytes, to read it from memory takes as much
# longer as non-temporal stores save.
PREFETCH_BYTES, NONTEMPORAL_BYTES = cache_bytes(2) // 2, 1 << 25
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
    """Let non-temporal stores before this come before all that is stored later."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), codegen


@kernel_part
def prefetch_items_to_write(array: Any, first: int, count: int) -> None:
    """Prefetch the cache lines of so many items, from a number on, which are to be written.

    Lines beyond the array do no harm.
    """
    for item in range(first, first + count, BLOCK_BYTES // array.itemsize):
        prefetch_to_write(array, item)


@intrinsic
def prefetch_to_write(typingctx: Any, array: Any, index: Any) -> Emission:
    """Prefetch the cache line of array[index], which is to be written."""
    signature = types.void(array, types.intp)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        data = context.make_array(sig.args[0])(context, builder, args[0]).data
        place = builder.bitcast(builder.gep(data, [args[1]]), ir.IntType(8).as_pointer())
        prefetch_line(builder, place, written=True)
        return context.get_dummy_value()

    return signature, codegen
