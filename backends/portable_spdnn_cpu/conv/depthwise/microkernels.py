"""The depthwise microkernels: tiles of rows by a vector of columns, and vectors of several rows.

`depthwise.kernel`, compiled once, calls them by address.

*Tiles.* The weights of the channel's kernel are in registers, as far as these suffice. What the
rows of the tile see is loaded once for all of them: where strides are 1, a tile of R rows by a
kernel of h x w takes (R + h - 1) w loads for R h w multiply-adds. The image is read as it is: tiles
at its edges load under masks, and a row of zeros stands for those above and below. Where the
horizontal stride is 2, two vectors are loaded and shuffled to what two columns of the kernel see.

Bound: for 3 x 3 kernels and R = 4, 36 multiply-adds against 18 loads. With vectors of 64 bytes 12
of these count twice, as they cross cache lines: 30 operations where a processor begins two of each
in a cycle. Large planes are bound by the cache or the memory that they come from.

*Narrow planes*, of which two rows or more lie in a vector, where strides are 1 and a result is as
wide as its image, W. Item p of the result then sees, by row u and column v of the kernel, item
p + (u d - top) W + v d - left of the image, whatever row it is in: a vector of neighbouring items
of the result takes one load for each item of the kernel, under a mask that leaves out what is above
or below the image, or of another row. Bound: that load, nearly always across two cache lines: a
cycle for each multiply-add. A plane of 7 x 7 is four vectors of 64 bytes, in tiles it is seven.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types

from portable_spdnn_cpu.conv.spans import WORD, Value, VectorEmitter
from portable_spdnn_cpu.jit.compilation import Emission, intrinsic, job_kernel
from portable_spdnn_cpu.jit.jobs import LENGTH, array_at, code_signature, machine_code
from portable_spdnn_cpu.jit.vectors import broadcast, clamped, multiply_add

INT32 = ir.IntType(32)
NARROW_VECTORS = 4  # of a narrow plane that are computed together


@functools.cache
def plane_code(
    tile_rows: int, extent: int, strides: tuple[int, int], dilation: int, dtype: np.dtype[Any]
) -> int:
    """Return the address of `convolve_plane` for `call_code`.

    Parameters
    ----------
    tile_rows : int
        Of a register tile; 0 for narrow planes.
    extent, strides, dilation : int, tuple of int, int
        Of the square kernel.
    dtype : dtype
        Of images, weights and results.
    """
    return machine_code(
        convolve_plane, plane_signature(tile_rows, extent, strides, dilation, dtype)
    )


def plane_signature(
    tile_rows: int, extent: int, strides: tuple[int, int], dilation: int, dtype: np.dtype[Any]
) -> Any:
    """Return the signature of `convolve_plane` for what `plane_code` takes."""
    constants = *((0,) * number for number in (tile_rows, extent, *strides, dilation)), dtype.type
    return code_signature("i" * 12 + "fff", *constants)


@job_kernel
def convolve_plane(
    height: int, width: int, rows: int, row_length: int, top: int, left: int, image: int,
    zero_row: int, masks: int, weights: int, first_weight: int, out: int,
    bias: float, lower: float, upper: float,
    tile_rows: tuple[int, ...], extent: tuple[int, ...], stride_y: tuple[int, ...],
    stride_x: tuple[int, ...], dilation: tuple[int, ...], dtype: Any,
) -> None:  # fmt: skip
    """Convolve a plane with one kernel, add a number, and clamp.

    Parameters
    ----------
    height, width, rows, row_length : int
        Of the image, rows of the result and their length.
    top, left : int
        Padding above the image and left of it.
    image, zero_row, masks, weights, out : int
        Addresses: of the image; of zeros, as many as it is wide, and a vector more; of narrow
        planes, of what `narrow.masks_of` has; of weights, which from `first_weight` on are the
        kernel's, row by row; and of the result.
    bias, lower, upper : float
    tile_rows, extent, stride_y, stride_x, dilation : tuple
        Their lengths, which Numba knows as it compiles, are the rows of a register tile, none for
        narrow planes, rows and columns of the kernel, strides of 1 or 2, and a dilation, 1 with a
        horizontal stride of 2.
    dtype : type
        Of images, weights and results.
    """
    _emit_plane(
        tile_rows, extent, stride_y, stride_x, dilation,
        (height, width, rows, row_length, top, left),
        array_at(image, LENGTH, dtype), array_at(zero_row, LENGTH, dtype),
        array_at(masks, LENGTH, np.uint16), array_at(weights, LENGTH, dtype), first_weight,
        array_at(out, LENGTH, dtype), dtype(bias), dtype(lower), dtype(upper),
    )  # fmt: skip


@intrinsic
def _emit_plane(
    typingctx: Any, tile_rows: Any, extent: Any, stride_y: Any, stride_x: Any, dilation: Any,
    sizes: Any, image: Any, zero_row: Any, masks: Any, weights: Any, first_weight: Any, out: Any,
    bias: Any, lower: Any, upper: Any,
) -> Emission:  # fmt: skip
    number = out.dtype
    signature = types.void(
        tile_rows, extent, stride_y, stride_x, dilation, sizes, image, zero_row, masks, weights,
        types.intp, out, number, number, number,
    )  # fmt: skip
    extents = len(tile_rows), len(extent), len(stride_y), len(stride_x), len(dilation)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        emitter = VectorEmitter(context, builder, sig.args[6].dtype)
        data = [emitter.data(sig.args[n], args[n]) for n in (6, 7, 8, 9, 11)]
        numbers = cgutils.unpack_tuple(builder, args[5])
        kind = _Plane if extents[0] else _NarrowPlane
        kind(emitter, extents, data, numbers, args[10], args[12:]).emit()
        return context.get_dummy_value()

    return signature, codegen


class _Plane:
    """Emits the loops of `convolve_plane`."""

    def __init__(
        self,
        emitter: VectorEmitter,
        extents: tuple[int, ...],
        data: list[Value],
        numbers: list[Value],
        first_weight: Value,
        finish: list[Value],
    ) -> None:
        self.emitter, self.builder = emitter, emitter.builder
        self.tile_rows, self.extent, self.stride_y, self.stride_x, self.dilation = extents
        self.images, self.zero_row, self.masks, weights, self.out = data
        self.height, self.width, self.rows, self.row_length, self.top, self.left = numbers
        self.end = self.builder.mul(self.rows, self.row_length)
        self.bias, self.lower, self.upper = map(emitter.spread, finish)
        self.weights = [
            emitter.spread(self._load(weights, self.builder.add(first_weight, WORD(entry))))
            for entry in range(self.extent**2)
        ]
        # Where the vectors begin that are loaded of a row for a tile, from the tile's first on.
        self.starts = [self.dilation * column for column in range(self.extent)]
        if self.stride_x == 2:
            pairs = range(0, self.extent, 2)
            self.starts = [start for pair in pairs for start in (pair, pair + emitter.lanes)]

    def emit(self) -> None:
        """Emit strips of rows, and in each of them tiles of columns, from the last to the first.

        So what a vector stores beyond its row is stored after it.
        """
        builder, zero, lanes = self.builder, WORD(0), WORD(self.emitter.lanes)
        tiles = builder.udiv(builder.add(self.row_length, WORD(self.emitter.lanes - 1)), lanes)
        last = builder.mul(builder.sub(tiles, WORD(1)), lanes)
        # Tiles begin between these where all that they load is of the image.
        reach = builder.sub(self.width, WORD(max(self.starts) + self.emitter.lanes))
        strips = cgutils.for_range_slice(builder, zero, self.rows, WORD(self.tile_rows), WORD)
        with strips as (row, _):
            seen = builder.sub(builder.mul(row, WORD(self.stride_y)), self.top)
            lines = self._row_pointers(seen)
            with cgutils.for_range_slice(builder, zero, tiles, WORD(1), WORD) as (number, _):
                column = builder.sub(last, builder.mul(number, lanes))
                start = builder.sub(builder.mul(column, WORD(self.stride_x)), self.left)
                inside = builder.and_(
                    builder.icmp_signed(">=", start, zero), builder.icmp_signed("<=", start, reach)
                )
                with builder.if_else(inside) as (whole, edge):
                    with whole:
                        self._emit_tile(row, column, start, lines, [None] * len(self.starts))
                    with edge:
                        masks = [
                            self._column_mask(builder.add(start, WORD(each)))
                            for each in self.starts
                        ]
                        self._emit_tile(row, column, start, lines, masks)

    def _row_pointers(self, row: Value) -> list[Value]:
        """Return pointers to the rows that a strip sees, to zeros for those that there are not."""
        builder, lines = self.builder, []
        place = builder.mul(row, self.width)
        last = self.stride_y * (self.tile_rows - 1) + self.dilation * (self.extent - 1)
        for _ in range(last + 1):
            in_image = builder.icmp_unsigned("<", row, self.height)
            lines.append(builder.select(in_image, builder.gep(self.images, [place]), self.zero_row))
            row, place = builder.add(row, WORD(1)), builder.add(place, self.width)
        return lines

    def _column_mask(self, start: Value) -> Value:
        """Return the mask of the lanes of a vector from column `start` on that the image has."""
        builder, kind = self.builder, ir.VectorType(INT32, self.emitter.lanes)
        lanes = ir.Constant(kind, list(range(self.emitter.lanes)))
        begin, width = (
            broadcast(builder, kind, builder.trunc(word, INT32)) for word in (start, self.width)
        )
        return builder.icmp_unsigned("<", builder.add(begin, lanes), width)

    def _columns(self, line: Value, start: Value, masks: list[Value]) -> list[Value]:
        """Return what the tile sees of a row of the image by each column of the kernel."""
        builder, emitter = self.builder, self.emitter
        pointers = [emitter.at(line, builder.add(start, WORD(each))) for each in self.starts]
        loaded = [
            emitter.load(pointer) if mask is None else emitter.load_masked(pointer, mask)
            for pointer, mask in zip(pointers, masks, strict=True)
        ]
        if self.stride_x == 1:
            return loaded
        columns = []
        for column in range(self.extent):
            chosen = range(column % 2, 2 * emitter.lanes, 2)
            picks = ir.Constant(ir.VectorType(INT32, emitter.lanes), list(chosen))
            pair = column - column % 2
            columns.append(builder.shuffle_vector(loaded[pair], loaded[pair + 1], picks))
        return columns

    def _emit_tile(
        self, row: Value, column: Value, start: Value, lines: list[Value], masks: list[Value]
    ) -> None:
        """Emit a register tile; see `emit`."""
        builder, emitter = self.builder, self.emitter
        lanes, sums = WORD(emitter.lanes), [self.bias] * self.tile_rows
        for place, line in enumerate(lines):
            # Rows of the tile, and of the kernel, that meet in this row of the image.
            meeting = [
                (output, own)
                for output in range(self.tile_rows)
                for own in range(self.extent)
                if self.stride_y * output + self.dilation * own == place
            ]
            columns = self._columns(line, start, masks) if meeting else []
            for entry, value in enumerate(columns):
                for output, own in meeting:
                    weight = self.weights[own * self.extent + entry]
                    sums[output] = multiply_add(builder, weight, value, sums[output])
        sums = [clamped(builder, total, self.lower, self.upper) for total in sums]
        place = builder.add(builder.mul(row, self.row_length), column)
        places = [place]
        for _ in range(self.tile_rows - 1):
            places.append(builder.add(places[-1], self.row_length))
        behind = builder.add(places[-1], lanes)
        whole = builder.and_(
            builder.icmp_signed("<=", builder.add(row, WORD(self.tile_rows)), self.rows),
            builder.icmp_signed("<=", behind, self.end),
        )
        with builder.if_else(whole, likely=True) as (then, otherwise):
            with then:
                for total, place in zip(sums, places, strict=True):
                    emitter.store(total, emitter.at(self.out, place))
            with otherwise:
                for output, (total, place) in enumerate(zip(sums, places, strict=True)):
                    self._store_row(total, builder.add(row, WORD(output)), column, place)

    def _store_row(self, value: Value, row: Value, column: Value, place: Value) -> None:
        """Store what belongs to a row, if it is one of the result's."""
        builder, emitter = self.builder, self.emitter
        behind = builder.add(place, WORD(emitter.lanes))
        left = builder.sub(self.row_length, column)
        there = builder.icmp_signed("<", row, self.rows)
        before = builder.icmp_signed("<=", behind, self.end)
        with builder.if_then(there), builder.if_else(before, likely=True) as (then, otherwise):
            with then:
                emitter.store(value, emitter.at(self.out, place))
            with otherwise:
                emitter.store_first(value, emitter.at(self.out, place), left)

    def _load(self, array: Value, position: Value) -> Value:
        return self.builder.load(self.builder.gep(array, [position]))


class _NarrowPlane(_Plane):
    """Emits the loop over groups of vectors of a narrow plane."""

    def emit(self) -> None:
        """Emit the loop, in which NARROW_VECTORS vectors are computed together."""
        builder, lanes = self.builder, self.emitter.lanes
        above = builder.add(builder.mul(self.top, self.width), self.left)
        step = WORD(NARROW_VECTORS * lanes)
        with cgutils.for_range_slice(builder, WORD(0), self.end, step, WORD) as (place, number):
            first_mask = builder.mul(number, WORD(NARROW_VECTORS * self.extent**2))
            start = builder.sub(place, above)
            sums = [self.bias] * NARROW_VECTORS
            for entry, weight in enumerate(self.weights):
                row, column = divmod(entry, self.extent)
                line = builder.add(start, builder.mul(WORD(self.dilation * row), self.width))
                for vector in range(NARROW_VECTORS):
                    mask = builder.add(first_mask, WORD(NARROW_VECTORS * entry + vector))
                    offset = WORD(self.dilation * column + vector * lanes)
                    seen = self._seen(builder.add(line, offset), mask)
                    sums[vector] = multiply_add(builder, weight, seen, sums[vector])
            for vector, total in enumerate(sums):
                begin = builder.add(place, WORD(vector * lanes))
                count = builder.sub(self.end, begin)
                # Not behind a branch: LLVM would move multiply-adds behind it too, and keep what
                # they multiply on the stack.
                is_some = builder.icmp_signed(">", count, WORD(0))
                count = builder.select(is_some, count, WORD(0))
                value = clamped(builder, total, self.lower, self.upper)
                target = self.emitter.at(self.out, begin)
                self.emitter.store_first(value, target, count)

    def _seen(self, place: Value, number: Value) -> Value:
        """Load a vector of the image under one of the masks."""
        builder, emitter = self.builder, self.emitter
        bits = builder.zext(self._load(self.masks, number), WORD)
        return emitter.load_masked(emitter.at(self.images, place), emitter.mask_of(bits))
