"""Writing results that caches do not hold.

A processor reads a line that is not in a cache before it writes to it. Where rows of a result are
written in pieces, one panel of columns after the other, hardware does not foresee which lines come
next, or fetches those of other panels besides. So lines are asked for ahead; and where a result is
larger than the caches, vectors pass them: lines that are written whole are then not read at all.
Products that write C in panels take 0.6 to 0.9 of the time so on an Intel Xeon where C has 4 to 32
MB, and 0.3 to 0.8 beyond, the less the fewer entries a row has.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types

from portable_spdnn_cpu.jit.compilation import Emission, intrinsic, kernel_part
from portable_spdnn_cpu.jit.intrinsics import prefetch_line
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.machine.cpu_info import cache_bytes

# Bytes of a result from which its lines are asked for ahead, and from which vectors pass the
# caches. The next layer reads the result: with less than the latter that takes as much longer as
# the writing saves.
FAR_BYTES, PAST_CACHES = cache_bytes(2) // 2, 1 << 25
WIDE_BYTES = 512  # of a row from which its lines are asked for: where narrow rows go is foreseen


def store_past_caches(builder: Any, value: Any, pointer: Any) -> None:
    """Store a vector to an address that is a multiple of its bytes, past the caches.

    Such stores are not ordered with others: `end_passing_stores` is to follow before another thread
    may read.
    """
    bits = 32 if isinstance(value.type.element, ir.FloatType) else 64
    store = builder.store(value, pointer, align=value.type.count * bits // 8)
    store.set_metadata("nontemporal", builder.module.add_metadata([ir.IntType(32)(1)]))


@intrinsic
def end_passing_stores(typingctx: Any) -> Emission:
    """Let what was stored past the caches come before all that is stored later."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), codegen


@kernel_part
def ask_for_items(array: Any, first: int, count: int) -> None:
    """Begin to load the cache lines of so many items, from a number on, so as to write them.

    Lines beyond the array do no harm.
    """
    for item in range(first, first + count, BLOCK_BYTES // array.itemsize):
        prefetch_to_write(array, item)


@intrinsic
def prefetch_to_write(typingctx: Any, array: Any, index: Any) -> Emission:
    """Begin to load the cache line of array[index], so as to write to it, and go on at once."""
    signature = types.void(array, types.intp)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        data = context.make_array(sig.args[0])(context, builder, args[0]).data
        place = builder.bitcast(builder.gep(data, [args[1]]), ir.IntType(8).as_pointer())
        prefetch_line(builder, place, written=True)
        return context.get_dummy_value()

    return signature, codegen
