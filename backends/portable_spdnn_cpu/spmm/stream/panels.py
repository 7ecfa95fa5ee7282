"""Panels of the stream kernel: rows of B copied together."""

from __future__ import annotations

from typing import Any

from numba.core import types

from portable_spdnn_cpu.jit.compilation import Array, Emission, intrinsic, kernel_part
from portable_spdnn_cpu.jit.intrinsics import prefetch
from portable_spdnn_cpu.jit.jobs import LENGTH, array_at, call_code
from portable_spdnn_cpu.jit.target import VECTOR_BYTES, is_zen, is_zen_4
from portable_spdnn_cpu.layout.large_results import MIB
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.spmm.costs import LAST_CACHE
from portable_spdnn_cpu.spmm.emitter import WORD
from portable_spdnn_cpu.spmm.stream.job_words import (
    B_FORTRAN,
    B_STRIDE,
    LOAD_COLUMNS,
    WIDTH,
    B,
    K,
)  # fmt: skip
from portable_spdnn_cpu.spmm.stream.microkernels import RowsEmitter

# Bytes that B spans, gaps between its rows included, beyond which what panels take of its rows is
# prefetched: some lines, each time on another page, which hardware does not foresee. With a last
# cache of 32 MiB that others use as well, products of B of 7 to 17 MB took 0.71 to 1.03 of the time
# so on a Zen 3, and of 1 to 4 MB 0.9 to 1.1; on a Zen 4 of 3 to 17 MB 0.81 to 1.07. AMD's others
# without AVX-512 are taken to be alike; elsewhere B is prefetched that the last cache cannot hold.
if is_zen_4():
    FAR_B_BYTES = 3 * MIB
else:
    FAR_B_BYTES = 4 * MIB if is_zen() and VECTOR_BYTES < 64 else LAST_CACHE
# Lines that are asked for ahead: copies by themselves, of panels of 3, 6 and 12 lines, were the
# fastest with 48 on that Zen 3, or within a twentieth of it.
AHEAD_LINES = 48


@intrinsic
def copy_row(
    typingctx: Any, vectors: Any, panel: Any, to: Any, source: Any, start: Any, columns: Any
) -> Emission:
    """panel[to + c] = source[start + c] for c < `columns`, and 0 up to the panel's width.

    `vectors` and `columns` are as `row_loops.finish_rows` has them.
    """
    width = len(vectors)
    signature = types.void(vectors, panel, types.intp, source, types.intp, types.intp)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        make = context.make_array
        target, origin = (make(sig.args[n])(context, builder, args[n]).data for n in (1, 3))
        row = RowsEmitter(builder, width, target.type.pointee)
        items = WORD(width * row.vector.count)
        row.limit(args[5], builder.icmp_signed(">=", args[5], items))
        for number in range(width):
            value = row.load(row.at(origin, args[4], number), number)
            builder.store(value, row.at(target, args[2], number), align=row.itemsize)
        return context.get_dummy_value()

    return signature, codegen


@kernel_part
def copy_panel(
    vectors: tuple[int, ...],
    words: Array,
    address: int,
    first: int,
    stop: int,
    column: int,
    columns: int,
    dtype: Any,
) -> None:
    """Copy rows first .. stop - 1 of B, from `column` on, to a panel at an address.

    Where `column` is negative, rows of the panel begin with so many zeros, and the last one ends so
    many items beyond the panel.
    """
    itemsize = array_at(0, 1, dtype).itemsize
    skipped = max(0, -column)
    array_at(address, skipped, dtype)[:] = 0  # rows that follow, by the one before
    column, columns, address = column + skipped, columns - skipped, address + skipped * itemsize
    stride = words[WIDTH]
    if not words[B_FORTRAN]:
        panel, B_items = array_at(address, LENGTH, dtype), array_at(words[B], LENGTH, dtype)
        is_far = words[K] * words[B_STRIDE] * itemsize > FAR_B_BYTES
        ahead = AHEAD_LINES // len(vectors) * words[B_STRIDE]
        for k in range(first, stop):
            start = k * words[B_STRIDE] + column
            copy_row(vectors, panel, (k - first) * stride, B_items, start, columns)
            if is_far:  # behind a block these are rows of the next; behind B they do no harm
                for number in range(len(vectors)):
                    prefetch(B_items, start + ahead + number * (BLOCK_BYTES // itemsize))
        return
    start = words[B] + column * words[B_STRIDE] * itemsize
    width = len(vectors) * BLOCK_BYTES // itemsize
    copied = start, words[B_STRIDE], address, stride, width, first, stop, columns
    call_code(words[LOAD_COLUMNS], copied)
