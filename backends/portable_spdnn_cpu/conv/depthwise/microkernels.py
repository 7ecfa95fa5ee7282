"""The depthwise microkernel: a register tile of some rows of a plane by a vector of columns.

The weights of the channel's kernel are in registers, as far as these suffice. What the rows of the
tile see is loaded once for all of them: where strides are 1, a tile of R rows by a kernel of h x w
takes (R + h - 1) w loads for R h w multiply-adds. The image is read as it is: tiles at its edges
load under masks, and a row of zeros stands for those above and below. Where the horizontal stride
is 2, two vectors are loaded and shuffled to what two columns of the kernel see.

Bound: for 3 x 3 kernels and R = 4, 36 multiply-adds against 18 loads. With vectors of 64 bytes 12
of these count twice, as they cross cache lines: 30 operations where a processor begins two of each
in a cycle. Large planes are bound by the cache or the memory that they come from.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from portable_spdnn_cpu.conv.spans import WORD, Value, VectorEmitter
from portable_spdnn_cpu.jit.compilation import Emission, intrinsic
from portable_spdnn_cpu.jit.vectors import broadcast, clamped, multiply_add

INT32 = ir.IntType(32)


@intrinsic
def convolve_plane(
    typingctx: Any,
    tile_rows: Any,
    extent: Any,
    stride_y: Any,
    stride_x: Any,
    dilation: Any,
    sizes: Any,
    padding: Any,
    images: Any,
    first: Any,
    zero_row: Any,
    weights: Any,
    first_weight: Any,
    out: Any,
    to: Any,
    bias: Any,
    lower: Any,
    upper: Any,
) -> Emission:
    """Convolve a plane with one kernel, add a number, and clamp.

    Parameters
    ----------
    tile_rows, extent, stride_y, stride_x, dilation : tuple
        Of so many items: rows of a register tile, rows and columns of the kernel, strides of 1 or
        2, and a dilation, 1 with a horizontal stride of 2.
    sizes : tuple of int
        Height and width of the image, rows of the result and their length.
    padding : tuple of int
        Above the image and left of it.
    images : ndarray of one dimension
        The image begins at `first`.
    zero_row : ndarray of one dimension
        Zeros, as many as the image is wide, and a vector more.
    weights : ndarray of one dimension
        From `first_weight` on, row by row.
    out : ndarray of one dimension
        From `to` on.
    bias, lower, upper : float
    """
    word, number = types.intp, out.dtype
    signature = types.void(
        tile_rows, extent, stride_y, stride_x, dilation, sizes, padding, images, word, zero_row,
        weights, word, out, word, number, number, number,
    )  # fmt: skip
    extents = len(tile_rows), len(extent), len(stride_y), len(stride_x), len(dilation)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        emitter = VectorEmitter(context, builder, sig.args[7].dtype)
        data = [emitter.data(sig.args[n], args[n]) for n in (7, 9, 10, 12)]
        numbers = [*cgutils.unpack_tuple(builder, args[5]), *cgutils.unpack_tuple(builder, args[6])]
        _Plane(emitter, extents, data, numbers, args).emit()
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def all_finite(typingctx: Any, values: Any, first: Any, count: Any) -> Emission:
    """Return whether no NaN and no infinity is among values[first : first + count]."""
    signature = types.boolean(values, types.intp, types.intp)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        emitter = VectorEmitter(context, builder, sig.args[0].dtype)
        start = builder.gep(emitter.data(sig.args[0], args[0]), [args[1]])
        zeros = ir.Constant(emitter.vector, None)
        # 0 times a number is NaN where the number is not finite. Some chains, so that additions do
        # not wait for each other.
        chains = [cgutils.alloca_once_value(builder, zeros) for _ in range(4)]

        def add(offset: Value, left: Value | None, chain: Value) -> None:
            value = emitter.read(emitter.at(start, offset), left)
            total = multiply_add(builder, value, zeros, builder.load(chain))
            builder.store(total, chain)

        step = WORD(len(chains) * emitter.lanes)
        whole = builder.sub(args[2], builder.srem(args[2], step))
        with cgutils.for_range_slice(builder, WORD(0), whole, step, WORD) as (offset, _):
            for number, chain in enumerate(chains):
                add(builder.add(offset, WORD(number * emitter.lanes)), None, chain)
        rest = builder.sub(args[2], whole)
        emitter.over_span(
            rest, lambda offset, left: add(builder.add(whole, offset), left, chains[0])
        )
        total = builder.load(chains[0])
        for chain in chains[1:]:
            total = builder.fadd(total, builder.load(chain))
        lanes = builder.bitcast(
            builder.fcmp_unordered("uno", total, total), ir.IntType(emitter.lanes)
        )
        return builder.icmp_unsigned("==", lanes, lanes.type(0))

    return signature, codegen


class _Plane:
    """Emits the loops of `convolve_plane`."""

    def __init__(
        self,
        emitter: VectorEmitter,
        extents: tuple[int, ...],
        data: list[Value],
        numbers: list[Value],
        args: list[Value],
    ) -> None:
        self.emitter, self.builder = emitter, emitter.builder
        self.tile_rows, self.extent, self.stride_y, self.stride_x, self.dilation = extents
        self.images, self.zero_row, weights, self.out = data
        self.height, self.width, self.rows, self.row_length, self.top, self.left = numbers
        self.first, self.to = args[8], args[13]
        self.end = self.builder.add(self.to, self.builder.mul(self.rows, self.row_length))
        self.bias, self.lower, self.upper = (emitter.spread(args[n]) for n in (14, 15, 16))
        self.weights = [
            emitter.spread(self._load(weights, self.builder.add(args[11], WORD(entry))))
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
        place = builder.add(self.first, builder.mul(row, self.width))
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
        place = builder.add(builder.mul(row, self.row_length), builder.add(self.to, column))
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
