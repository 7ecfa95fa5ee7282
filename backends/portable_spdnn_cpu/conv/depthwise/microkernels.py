"""The depthwise microkernel: a register tile of some rows of a plane by a vector of columns.

The weights of the channel's kernel are in registers, as far as these suffice. What the rows of the
tile see is loaded once for all of them: where strides are 1, a tile of R rows by a kernel of h x w
takes (R + h - 1) w loads for R h w multiply-adds. Images have zeros around them here, so that
nothing is masked. Most loads are not aligned; those that cross a cache line take twice as long.

Bound: for 3 x 3 kernels and R = 4, 36 multiply-adds against 18 loads. With vectors of 64 bytes 12
of these count twice: 30 operations where a processor begins two of each in a cycle. Large planes
are bound by the cache or the memory that they come from.
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
    phases: Any,
    pitch: Any,
    columns: Any,
    weights: Any,
    first_weight: Any,
    out: Any,
    to: Any,
    end: Any,
    bias: Any,
    lower: Any,
    upper: Any,
) -> Emission:
    """Convolve rows of one plane with one kernel, add a number, and clamp.

    Parameters
    ----------
    extent, step : tuple
        As long as the kernel has rows, and as many columns, and a vertical step: known as code is
        emitted.
    size : tuple of int
        Rows and columns of the result.
    phases : ndarray of one dimension
        The image with zeros around it, and what tiles see beyond the last row.
    pitch : int
        Items from one of its rows to the next.
    columns : ndarray of int64, shape (kernel columns,)
        What pixel (0, 0) sees of it by each column of the kernel's first row.
    weights : ndarray of one dimension
        From `first_weight` on, row by row.
    out : ndarray of one dimension
        From `to` on. Vectors are stored whole, and end in what is stored later; items from `end` on
        are not touched.
    bias, lower, upper : float
    """
    word, number = types.intp, out.dtype
    signature = types.void(
        extent, step, size, phases, word, columns, weights, word, out, word, word,
        number, number, number,
    )  # fmt: skip
    extents = len(extent), len(step)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        emitter = VectorEmitter(context, builder, sig.args[3].dtype)
        data = [emitter.data(sig.args[n], args[n]) for n in (3, 5, 6, 8)]
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
        self.phases, self.columns, weights, self.out = data
        self.rows, self.row_length = sizes
        self.pitch, self.to, self.end = args[4], args[9], args[10]
        self.bias, self.lower, self.upper = (emitter.spread(args[n]) for n in (11, 12, 13))
        self.weights = [
            emitter.spread(self._load(weights, self.builder.add(args[7], WORD(entry))))
            for entry in range(self.extent**2)
        ]

    def emit(self) -> None:
        """Emit strips of rows, and in each of them tiles of columns, from the last to the first.

        So what a vector stores beyond its row is stored after it.
        """
        builder, zero, lanes = self.builder, WORD(0), WORD(self.emitter.lanes)
        starts = [self._load(self.columns, WORD(entry)) for entry in range(self.extent)]
        tiles = builder.udiv(builder.add(self.row_length, WORD(self.emitter.lanes - 1)), lanes)
        last = builder.mul(builder.sub(tiles, WORD(1)), lanes)
        with cgutils.for_range_slice(builder, zero, self.rows, WORD(ROWS), WORD) as (row, _):
            seen = builder.mul(row, builder.mul(self.pitch, WORD(self.step)))
            lines = [builder.add(start, seen) for start in starts]
            with cgutils.for_range_slice(builder, zero, tiles, WORD(1), WORD) as (number, _):
                column = builder.sub(last, builder.mul(number, lanes))
                self._emit_tile(row, column, [builder.add(line, column) for line in lines])

    def _emit_tile(self, row: Value, column: Value, starts: list[Value]) -> None:
        """Emit a register tile; see `emit`."""
        builder, emitter = self.builder, self.emitter
        lanes, sums = WORD(emitter.lanes), [self.bias] * ROWS
        # Else LLVM computes before the loop where each load begins, for which registers run out.
        opaque = ir.InlineAsm(ir.FunctionType(WORD, [WORD]), "", "=r,0", side_effect=True)
        pitch = builder.call(opaque, [self.pitch])
        offset = WORD(0)
        for place in range(self.step * (ROWS - 1) + self.extent):
            for entry, start in enumerate(starts):
                value = emitter.load(emitter.at(self.phases, builder.add(start, offset)))
                for output in range(ROWS):
                    line = place - self.step * output
                    if 0 <= line < self.extent:
                        weight = self.weights[line * self.extent + entry]
                        sums[output] = emitter.multiply_add(weight, value, sums[output])
            offset = builder.add(offset, pitch)
        sums = [emitter.clamped(total, self.lower, self.upper) for total in sums]
        place = builder.add(builder.mul(row, self.row_length), builder.add(self.to, column))
        places = [place]
        for _ in range(ROWS - 1):
            places.append(builder.add(places[-1], self.row_length))
        behind = builder.add(places[-1], lanes)
        whole = builder.and_(
            builder.icmp_signed("<=", builder.add(row, WORD(ROWS)), self.rows),
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
