"""Panels of the stream kernel: rows of B copied together."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numba.core import types

from portable_spdnn_cpu.jit.compilation import Emission, intrinsic, job_kernel, kernel_part
from portable_spdnn_cpu.jit.intrinsics import prefetch
from portable_spdnn_cpu.jit.jobs import LENGTH, array_at, call_code, code_address
from portable_spdnn_cpu.jit.target import VECTOR_BYTES, is_zen, is_zen_4
from portable_spdnn_cpu.layout.large_results import MIB
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.spmm.costs import LAST_CACHE
from portable_spdnn_cpu.spmm.emitter import WORD
from portable_spdnn_cpu.spmm.stream.job_words import (
    B_FORTRAN,
    B_STRIDE,
    COPY_ROWS,
    LINE,
    LOAD_COLUMNS,
    VECTORS,
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


@functools.cache
def copying_code(vectors: int, dtype: np.dtype[Any]) -> int:
    """Return the address of `copy_rows` for `call_code`, for a panel of so many vectors."""
    return code_address(copy_rows, "i" * 7, (0,) * vectors, dtype.type)


@job_kernel
def copy_rows(
    panel: int, stride: int, source: int, source_stride: int, rows: int, columns: int, is_far: int,
    vectors: tuple[int, ...], dtype: Any,
) -> None:  # fmt: skip
    """Copy the beginnings of rows of B to a panel.

    Parameters
    ----------
    panel, stride : int
        The address of the panel's first row, and items to the next.
    source, source_stride : int
        The address of the first item of B that is copied, and items to that of the next row.
    rows, columns : int
        How many are copied. From `columns` on rows of the panel are 0.
    is_far : int
        Not 0: B is prefetched.
    vectors : tuple
        Its length, which Numba knows as it compiles, is the panel's width in vectors.
    dtype : type
        Of items.
    """
    target, items = array_at(panel, LENGTH, dtype), array_at(source, LENGTH, dtype)
    lanes = BLOCK_BYTES // target.itemsize
    ahead = AHEAD_LINES // len(vectors) * source_stride
    for row in range(rows):
        start = row * source_stride
        _copy_row(vectors, target, row * stride, items, start, columns)
        if is_far:  # behind a block these are rows of the next; behind B they do no harm
            for number in range(len(vectors)):
                prefetch(items, start + ahead + number * lanes)


@intrinsic
def _copy_row(
    typingctx: Any, vectors: Any, panel: Any, to: Any, source: Any, start: Any, columns: Any
) -> Emission:
    """panel[to + c] = source[start + c] for c < `columns`, and 0 up to the panel's width.

    All vectors but the last are within `columns`.
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
    words: Any, kind: int, address: int, first: int, stop: int, column: int, columns: int
) -> None:
    """Copy rows first .. stop - 1 of B, from `column` on, to a panel at an address.

    `kind` is where its words are, WHOLE or REST. Where `column` is negative, rows of the panel
    begin with so many zeros, and the last one ends so many items beyond the panel.
    """
    itemsize, stride, source_stride = BLOCK_BYTES // words[LINE], words[WIDTH], words[B_STRIDE]
    skipped = max(0, -column)
    zeros = array_at(address, skipped * itemsize, np.uint8)
    for place in range(zeros.size):
        zeros[place] = 0  # rows that follow, by the one before
    column, columns, address = column + skipped, columns - skipped, address + skipped * itemsize
    if not words[B_FORTRAN]:
        start = words[B] + (first * source_stride + column) * itemsize
        is_far = words[K] * source_stride * itemsize > FAR_B_BYTES
        copied = address, stride, start, source_stride, stop - first, columns, is_far
        call_code(words[kind + COPY_ROWS], copied)
        return
    start = words[B] + column * source_stride * itemsize
    width = words[kind + VECTORS] * words[LINE]
    turned = start, source_stride, address, stride, width, first, stop, columns
    call_code(words[LOAD_COLUMNS], turned)
