"""The depthwise microkernel: a register tile of some rows of a plane by a vector of columns.

All weights of the channel's kernel are in registers, as far as these suffice. What the rows of the
tile see is loaded once for all of them: where strides are 1, a tile of R rows by a kernel of h x w
takes (R + h - 1) w loads for R h w multiply-adds. Most loads cross a cache line, which takes twice as
long. What is outside of the image is masked in columns; tiles that see rows outside of it, and
those that end after the last row, have code of their own.

Bound: for 3 x 3 kernels and R = 4, 36 multiply-adds against 18 loads, 12 of which count twice: 18 of
36 operations where a processor begins two of each in a cycle. Large planes are bound by the cache
or the memory that they come from.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
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
    columns : ndarray of int64, shape (kernel width, 3)
        Where in a row column 0 of the result sees by each column of the kernel, the first column
        of the result that sees the image by it, and one more than the last.
    weights : ndarray of one dimension
        From `first_weight` on, row by row.
    out : ndarray of one dimension
        From `to` on.
    bias, lower, upper : float
    """
    word, number = types.intp, out.dtype
    signature = types.void(
        extent, step, size, images, word, word, columns, weights, word, out, word,
        number, number, number,
    )  # fmt: skip
    extents = len(extent), len(step)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        emitter = VectorEmitter(context, builder, sig.args[3].dtype)
        data = [emitter.data(sig.args[n], args[n]) for n in (3, 6, 7, 9)]
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
        self.images, self.columns, weights, self.out = data
        self.image_rows, self.rows, self.row_length, self.top = sizes
        self.first, self.pitch, self.to = args[4], args[5], args[10]
        self.bias, self.lower, self.upper = (emitter.spread(args[n]) for n in (11, 12, 13))
        self.weights = [
            emitter.spread(self._load(weights, self.builder.add(args[8], WORD(entry))))
            for entry in range(self.extent**2)
        ]

    def emit(self) -> None:
        """Emit strips of columns, and in each of them tiles of rows."""
        builder, lanes = self.builder, WORD(self.emitter.lanes)
        zero = WORD(0)
        with cgutils.for_range_slice(builder, zero, self.row_length, lanes, WORD) as (column, _):
            inside = self._between(column, zero, self.row_length)
            starts, masks = [], []
            for entry in range(self.extent):
                place, begin, end = (
                    self._load(self.columns, WORD(3 * entry + item)) for item in range(3)
                )
                starts.append(builder.add(builder.add(self.first, place), column))
                masks.append(self._between(column, begin, end))
            target = builder.add(self.to, column)
            step = WORD(ROWS)
            with cgutils.for_range_slice(builder, zero, self.rows, step, WORD) as (row, _):
                seen = builder.sub(builder.mul(row, WORD(self.step)), self.top)
                span = self.step * (ROWS - 1) + self.extent
                end = builder.add(seen, WORD(span))
                whole = builder.and_(
                    builder.and_(
                        builder.icmp_signed(">=", seen, zero),
                        builder.icmp_signed("<=", end, self.image_rows),
                    ),
                    builder.icmp_signed("<=", builder.add(row, step), self.rows),
                )
                with builder.if_else(whole) as (then, otherwise):
                    with then:
                        self._emit_tile(row, seen, target, starts, masks, inside, False)
                    with otherwise:
                        self._emit_tile(row, seen, target, starts, masks, inside, True)

    def _emit_tile(
        self, row: Value, seen: Value, target: Value, starts: list[Value], masks: list[Value],
        inside: Value, border: bool,
    ) -> None:  # fmt: skip
        """Emit a register tile; at a border, rows outside of image or result are left out."""
        builder, emitter = self.builder, self.emitter
        sums = [self.bias] * ROWS
        nothing = ir.Constant(masks[0].type, None)
        for place in range(self.step * (ROWS - 1) + self.extent):
            source = builder.add(seen, WORD(place))
            there = None
            if border:  # a negative number, without its sign, is beyond the last row
                there = builder.icmp_unsigned("<", source, self.image_rows)
            offset = builder.mul(source, self.pitch)
            for entry, (start, mask) in enumerate(zip(starts, masks, strict=True)):
                if there is not None:
                    mask = builder.select(there, mask, nothing)
                pointer = emitter.at(self.images, builder.add(start, offset))
                value = emitter.load_masked(pointer, mask)
                for output in range(ROWS):
                    line = place - self.step * output
                    if 0 <= line < self.extent:
                        weight = self.weights[line * self.extent + entry]
                        sums[output] = emitter.multiply_add(weight, value, sums[output])
        for output, total in enumerate(sums):
            line = builder.add(row, WORD(output))
            value = emitter.clamped(total, self.lower, self.upper)
            place = builder.add(target, builder.mul(line, self.row_length))
            mask = inside
            if border:
                mask = builder.select(builder.icmp_signed("<", line, self.rows), inside, nothing)
            emitter.store_masked(value, emitter.at(self.out, place), mask)

    def _between(self, column: Value, begin: Value, end: Value) -> Value:
        """Return the mask of the lanes, from `column` on, that are in begin .. end - 1."""
        builder, lanes = self.builder, self.emitter.lanes
        # Lanes are counted in 32 bits; bounds far away are brought near.
        low, high = (
            self._bounded(builder.sub(bound, column), 0, lanes) for bound in (begin, end)
        )
        return builder.and_(
            self.emitter.lanes_from(low), self.emitter.lanes_from(high, below=True)
        )

    def _bounded(self, value: Value, least: int, most: int) -> Value:
        builder = self.builder
        for comparison, bound in (("<", WORD(least)), (">", WORD(most))):
            beyond = builder.icmp_signed(comparison, value, bound)
            value = builder.select(beyond, bound, value)
        return value

    def _load(self, array: Value, position: Value) -> Value:
        return self.builder.load(self.builder.gep(array, [position]))
