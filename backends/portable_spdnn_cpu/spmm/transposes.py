"""Between arrays in Fortran order and rows: by squares in registers."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from portable_spdnn_cpu.jit.compilation import Array, job_kernel, kernel_part
from portable_spdnn_cpu.jit.jobs import array_at, code_address
from portable_spdnn_cpu.jit.target import is_zen
from portable_spdnn_cpu.layout.large_results import NONTEMPORAL_BYTES, store_fence
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.machine.cpu_info import cache_bytes
from portable_spdnn_cpu.tiles.copies import (
    LINE_SQUARES,
    TRANSPOSE_BYTES,
    transpose_from_tile,
    transpose_into_tile,
    transpose_nontemporal,
)

# Constants for Numba, to which a tuple's length is part of its type.
INTO_TILE, FROM_TILE, NONTEMPORAL_FROM_TILE = (), (0,), (0, 0)
# Bytes of a column in Fortran order from which stores are non-temporal though columns begin within
# a cache line: with 2,048 bytes layers took 0.94 of the time, with 1,024 1.3 times as long on an
# Intel Xeon.
LEAST_SPLIT_BYTES = 2048
# Copies of more than NEAR_BYTES, with rows of more than a cache line, are made ROWS_TURNED rows at
# a time, whole squares. On an Intel Xeon with 2 MiB of second-level cache a copy of 15,603 x 43
# items of float64 took 0.46 of the time so, and a product with a B of 256 x 200 of float32, of 213
# kB, 1.12 times as long. All columns are read by turns then: of more than MOST_STREAMS, which no
# processor prefetches, layers with panels of 26,234 x 128 from memory took 1.5 times as long. On a
# Zen 5 products took up to twice as long with 21 to 60 columns, and 0.9 to 1.5 times with fewer.
NEAR_BYTES, ROWS_TURNED = cache_bytes(2) // 8, 16
MOST_STREAMS = 0 if is_zen() else 64


@kernel_part
def load_columns(
    source: int,
    source_stride: int,
    address: int,
    stride: int,
    width: int,
    first: int,
    stop: int,
    columns: int,
    dtype: Any,
) -> None:
    """Copy rows first .. stop - 1 of an array in Fortran order to rows at an address.

    `source` is where its first column begins, and `source_stride` are the items to the next. Rows
    at the address are `stride` items apart, and zero from `columns` to `width`.
    """
    # Row k of the source is row k of a tile that would begin `first` rows before the address.
    itemsize = array_at(0, 1, dtype).itemsize
    tile = array_at(address - first * stride * itemsize, (stop, stride), dtype)
    lines = array_at(source, (columns, source_stride), dtype)
    # Else each line of a copy is fetched for each of the squares that it holds a row of.
    is_large = (stop - first) * stride * itemsize > NEAR_BYTES
    is_large &= BLOCK_BYTES < columns * itemsize <= MOST_STREAMS * itemsize
    together = ROWS_TURNED if is_large else max(1, stop - first)
    for begin in range(first, stop, together):
        end = min(begin + together, stop)
        _transpose(INTO_TILE, tile, lines, begin, end, columns, begin)
        if columns < width:
            for k in range(begin, end):
                tile[k, columns:width] = 0


@kernel_part
def store_columns(
    target: int,
    target_stride: int,
    address: int,
    width: int,
    begin: int,
    end: int,
    columns: int,
    size: int,
    dtype: Any,
) -> None:
    """Write rows begin .. end - 1 of a tile of sums to an array in Fortran order.

    `target` is where its first column begins, and `target_stride` are the items to the next.
    `address` is where row 0 of the tile would be; it is `width` items wide. `size`: the bytes of
    the whole array, which is written by non-temporal stores if caches do not hold it.
    """
    tile = array_at(address, (end, width), dtype)
    lines = array_at(target, (columns, target_stride), dtype)
    itemsize = tile.itemsize
    has_squares = columns * itemsize >= TRANSPOSE_BYTES
    # All columns begin at the same place within a cache line, or on one.
    column = target_stride * itemsize
    begin_alike = column % BLOCK_BYTES == 0 and target % itemsize == 0
    on_line = begin + -(target // itemsize + begin) % (BLOCK_BYTES // itemsize)
    pays = on_line == begin or column >= LEAST_SPLIT_BYTES
    if size >= NONTEMPORAL_BYTES and has_squares and begin_alike and pays:
        _transpose(NONTEMPORAL_FROM_TILE, tile, lines, begin, end, columns, on_line)
        store_fence()
    else:
        _transpose(FROM_TILE, tile, lines, begin, end, columns, begin)


# Linked into kernels, transposes would be up to two thirds of the code of each. So these call them
# by their addresses: products take as long, and first ones compile less.


@functools.cache
def loading_code(dtype: np.dtype[Any]) -> int:
    """Return the address of `load_columns` for `call_code`, for items of a type."""
    return code_address(_load_columns, "i" * 8, dtype.type)


@functools.cache
def storing_code(dtype: np.dtype[Any]) -> int:
    """Return the address of `store_columns` for `call_code`, for items of a type."""
    return code_address(_store_columns, "i" * 8, dtype.type)


@job_kernel
def _load_columns(
    source: int, source_stride: int, address: int, stride: int, width: int, first: int, stop: int,
    columns: int, dtype: Any,
) -> None:  # fmt: skip
    """Do what `load_columns` does, which, a `kernel_part`, has no address."""
    load_columns(source, source_stride, address, stride, width, first, stop, columns, dtype)


@job_kernel
def _store_columns(
    target: int, target_stride: int, address: int, width: int, begin: int, end: int, columns: int,
    size: int, dtype: Any,
) -> None:  # fmt: skip
    """Do what `store_columns` does, which, a `kernel_part`, has no address."""
    store_columns(target, target_stride, address, width, begin, end, columns, size, dtype)


@kernel_part
def _transpose(
    direction: tuple[int, ...], tile: Array, lines: Array, begin: int, end: int, columns: int,
    on_line: int,
) -> None:  # fmt: skip
    """Let rows begin .. end - 1 of a tile be columns of lines, or the other way round.

    Non-temporal stores begin at row `on_line`, which is the first of a cache line in each column;
    squares of rows before it may reach beyond it, and are stored over. Others do not read it.
    """
    # Squares are transposed in registers, of which the last ones may overlap others. In a tile of
    # fewer columns than a square has, `column` is negative: the square begins in the row before,
    # which goes to line 0. That is stored again afterwards, rightly, since lines are stored in
    # their order. The tile's first rows, which would reach before it, are copied item by item.
    side = TRANSPOSE_BYTES // tile.itemsize
    first = begin if columns >= side else begin + side
    if end - first < side or (columns < side and not len(direction)):
        first = end
    for c in range(columns):
        for row in range(begin, first):
            if len(direction):
                lines[c, row] = tile[row, c]
            else:
                tile[row, c] = lines[c, row]
    if first == end:
        return
    for c in range(0, columns, side):
        column = min(c, columns - side)
        start = first
        if len(direction) == 2 and end - on_line >= LINE_SQUARES * side:
            for row in range(first, on_line, side):
                transpose_from_tile(tile, None, row, column, lines, None)
            start = end - (end - on_line) % (LINE_SQUARES * side)
            for row in range(on_line, start, LINE_SQUARES * side):
                transpose_nontemporal(tile, None, row, column, lines, None)
        for place in range(start, end, side):
            row = min(place, end - side)
            if len(direction):
                transpose_from_tile(tile, None, row, column, lines, None)
            else:
                transpose_into_tile(tile, None, row, column, lines, None)
