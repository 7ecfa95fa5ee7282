"""The depthwise microkernel: a register tile of some rows of a plane by a vector of columns.

All weights of the channel's kernel are in registers, as far as these suffice. What the rows of the
tile see is loaded once for all of them: where strides are 1, a tile of R rows by a kernel of h x w
takes (R + h - 1) w loads for R h w multiply-adds. Most loads cross a cache line, which takes twice
as long. What is outside of the image is masked in columns; tiles that see rows outside of it, and
those that end after the last row, have code of their own.

Bound: for 3 x 3 kernels and R = 4, 36 multiply-adds against 18 loads, 12 of which count twice: 18
of 36 operations where a processor begins two of each in a cycle. Large planes are bound by the
cache or the memory that they come from.
"""

from __future__ import annotations

from typing import Any

from numba.core import cgutils, types

from portable_spdnn_cpu.conv.spans import WORD, Value, VectorEmitter
from portable_spdnn_cpu.jit.compilation import Emission, intrinsic

ROWS = 4  # of a register tile


@intrinsic
def convolve_plane(
    typingctx: Any,
    extent: Any,
    step: Any,
    size: Any,
    images: Any,
    first: Any,
    pitch: Any,
    columns: Any,
    masks: Any,
    weights: Any,
    first_weight: Any,
    out: Any,
    to: Any,
    bias: Any,
    lower: Any,
    upper: Any,
) -> Emission:
    """Convolve one plane with one kernel, add a number, and clamp.

    Parameters
    ----------
    extent, step : tuple
        As long as the kernel has rows, and as many columns, and a vertical step: known as code is
        emitted.
    size : tuple of int
        Rows of the image; rows and columns of the result; rows of padding above.
    images : ndarray of one dimension
    first, pitch : int
        Where the plane begins in it, and items from one row to the next.
    columns : ndarray of int64, shape (kernel columns,)
        Where in a row of the image column 0 of the result sees by each column of the kernel.
    masks : ndarray of uint16, shape (vectors, kernel columns)
        Bit l is set where lane l of a vector of the result sees the image by a column of the
        kernel.
    weights : ndarray of one dimension
        From `first_weight` on, row by row.
    out : ndarray of one dimension
        From `to` on.
    bias, lower, upper : float
    """
    word, number = types.intp, out.dtype
    signature = types.void(
        extent, step, size, images, word, word, columns, masks, weights, word,
        out, word,
        number, number, number,
    )  # fmt: skip
    extents = len(extent), len(step)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        emitter = VectorEmitter(context, builder, sig.args[3].dtype)
        data = [emitter.data(sig.args[n], args[n]) for n in (3, 6, 7, 8, 10)]
        sizes = cgutils.unpack_tuple(builder, args[2])
        _Plane(emitter, extents, data, sizes, args).emit()
        return context.get_dummy_value()

    return signature, codegen


class _Plane:
    """Emits the loops of `convolve_plane`."""

    def __init__(
        self,
        emitter: VectorEmitter,
        extents: tuple[int, ...],
        data: list[Value],
        sizes: list[Value],
        args: list[Value],
    ) -> None:
        self.emitter, self.builder = emitter, emitter.builder
        self.extent, self.step = extents
        self.images, self.columns, self.masks, weights, self.out = data
        self.image_rows, self.rows, self.row_length, self.top = sizes
        self.first, self.pitch, self.to = args[4], args[5], args[11]
        self.bias, self.lower, self.upper = (emitter.spread(args[n]) for n in (12, 13, 14))
        self.weights = [
            emitter.spread(self._load(weights, self.builder.add(args[9], WORD(entry))))
            for entry in range(self.extent**2)
        ]

    def emit(self) -> None:
        """Emit strips of rows, and in each of them tiles of columns."""
        builder, zero = self.builder, WORD(0)
        places = [self._load(self.columns, WORD(entry)) for entry in range(self.extent)]
        starts = [builder.add(self.first, place) for place in places]
        step = WORD(ROWS)
        with cgutils.for_range_slice(builder, zero, self.rows, step, WORD) as (row, _):
            seen = builder.sub(builder.mul(row, WORD(self.step)), self.top)
            end = builder.add(seen, WORD(self.step * (ROWS - 1) + self.extent))
            whole = builder.and_(
                builder.and_(
                    builder.icmp_signed(">=", seen, zero),
                    builder.icmp_signed("<=", end, self.image_rows),
                ),
                builder.icmp_signed("<=", builder.add(row, step), self.rows),
            )
            with builder.if_else(whole) as (then, otherwise):
                with then:
                    self._emit_strip(row, seen, starts, False)
                with otherwise:
                    self._emit_strip(row, seen, starts, True)

    def _emit_strip(self, row: Value, seen: Value, starts: list[Value], border: bool) -> None:
        """Emit register tiles side by side; at a border, rows outside of the image are left out."""
        builder, lanes = self.builder, WORD(self.emitter.lanes)
        vectors = builder.udiv(builder.add(self.row_length, WORD(self.emitter.lanes - 1)), lanes)
        with cgutils.for_range_slice(builder, WORD(0), vectors, WORD(1), WORD) as (number, _):
            first = builder.mul(number, WORD(self.extent))
            bits = [
                self._load(self.masks, builder.add(first, WORD(entry)))
                for entry in range(self.extent)
            ]
            column = builder.mul(number, lanes)
            places = [builder.add(start, column) for start in starts]
            self._emit_tile(row, seen, column, places, bits, border)

    def _emit_tile(
        self, row: Value, seen: Value, column: Value, starts: list[Value], bits: list[Value],
        border: bool,
    ) -> None:  # fmt: skip
        """Emit a register tile; see `_emit_strip`."""
        builder, emitter = self.builder, self.emitter
        target = builder.add(self.to, column)
        masks = [emitter.mask_of(each) for each in bits]
        sums = [self.bias] * ROWS
        for place in range(self.step * (ROWS - 1) + self.extent):
            source = builder.add(seen, WORD(place))
            if border:  # a negative number, without its sign, is beyond the last row
                there = builder.icmp_unsigned("<", source, self.image_rows)
                masks = self._if_there(there, bits)
            offset = builder.mul(source, self.pitch)
            for entry, (start, mask) in enumerate(zip(starts, masks, strict=True)):
                pointer = emitter.at(self.images, builder.add(start, offset))
                value = emitter.load_masked(pointer, mask)
                for output in range(ROWS):
                    line = place - self.step * output
                    if 0 <= line < self.extent:
                        weight = self.weights[line * self.extent + entry]
                        sums[output] = emitter.multiply_add(weight, value, sums[output])
        left = builder.sub(self.row_length, column)
        for output, total in enumerate(sums):
            line = builder.add(row, WORD(output))
            value = emitter.clamped(total, self.lower, self.upper)
            place = builder.add(target, builder.mul(line, self.row_length))
            count = left
            if border:
                there = builder.icmp_signed("<", line, self.rows)
                count = builder.select(there, left, WORD(0))
            emitter.store_first(value, emitter.at(self.out, place), count)

    def _if_there(self, there: Value, bits: list[Value]) -> list[Value]:
        """Return masks of these bits if a row is there, else empty ones, without a branch."""
        all_or_none = self.builder.sext(there, bits[0].type)
        return [self.emitter.mask_of(self.builder.and_(each, all_or_none)) for each in bits]

    def _load(self, array: Value, position: Value) -> Value:
        return self.builder.load(self.builder.gep(array, [position]))
