"""Loops over rows of weights, for a panel of columns: what `microkernels` emits, row after row.

Each is a function of its own: within the kernel their loops would have too few registers, and loads
from the stack compete with those of the panel.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

from llvmlite import ir
from numba.core import cgutils, types

from portable_spdnn_cpu.jit.compilation import Emission, intrinsic
from portable_spdnn_cpu.jit.flags import Flags
from portable_spdnn_cpu.jit.grouped_loads import split_numbers
from portable_spdnn_cpu.jit.intrinsics import prefetch_line
from portable_spdnn_cpu.jit.loops import hidden, loop
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.spmm.stream.microkernels import (
    PAIR,
    WORD,
    RowsEmitter,
    Value,
    chains,
)

INT16, INT32 = ir.IntType(16), ir.IntType(32)


@intrinsic
def sum_rows(
    typingctx: Any, packed: Any, vectors: Any, vector_bytes: Any, dtype: Any, visits: Any, top: Any,
    bottom: Any, offsets: Any, values: Any, entry: Any, panel: Any, sums: Any, later: Any, far: Any,
) -> Emission:  # fmt: skip
    """Add the entries of packed rows in a block, times a panel, to the sums of these rows.

    Parameters
    ----------
    packed : tuple
        Where it is empty nothing is emitted.
    vectors : tuple
        Its length is the panel's width in vectors. Numba compiles for each type of argument, and a
        tuple's length is part of its type.
    vector_bytes : int, constant
        Of a vector: a register, or several.
    dtype : type
        Of values.
    visits, offsets, values : int
        Addresses of what `packing.StreamPart` has.
    top, bottom, entry : int
        Which visits, and the number of their first entry.
    panel, sums : int
        Addresses of columns of B, a row after the other, and of the sums of row 0, likewise;
        aligned on vectors, and read and written in whole ones.
    later : bool
        Whether to start with the sums that are there, and not with 0.
    far : bool
        Whether sums of rows that come next are prefetched.
    """
    if not isinstance(vector_bytes, types.IntegerLiteral):
        return None  # type: ignore[return-value]  # Numba asks again with constants
    word, bit = types.intp, types.boolean
    signature = types.void(packed, vectors, vector_bytes, dtype, *[word] * 8, bit, bit)
    names = (
        "visits", "top", "bottom", "offsets", "values", "entry", "panel", "sums", "later", "far",
    )  # fmt: skip

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if len(packed):
            given = dict(zip(names, args[4:], strict=True))

            def emit(inner: Any, of: SimpleNamespace) -> None:
                rows = _Rows(inner, len(vectors), vector_bytes.literal_value, dtype.dtype, of)
                rows.each_packed(of.bottom, rows.sum)
                inner.ret_void()

            _call_apart(builder, "sum_rows", ir.VoidType(), given, emit)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def finish_rows(
    typingctx: Any, packed: Any, vectors: Any, skips: Any, dtype: Any, visits: Any, top: Any,
    stop: Any, offsets: Any, values: Any, entry: Any, panel: Any, stride: Any, panels: Any,
    columns: Any, skipped: Any, sums: Any, later: Any, far: Any, out: Any, out_stride: Any,
    bias: Any, residual: Any, residual_stride: Any, bounded: Any, lower: Any, upper: Any,
    nontemporal: Any, prefetches: Any,
) -> Emission:  # fmt: skip
    """Sum as `sum_rows` does, in vectors of 64 bytes, and write rows of C.

    Returns where it stopped: at `stop`, or a row beyond where two go together.

    Parameters
    ----------
    packed : tuple
        Empty where weights are as they are given: then `visits`, `offsets` and `values` are the
        addresses of A's indptr of int64, indices of int32 and data, rows are visited by their
        numbers, and `entry` is of no account.
    vectors, dtype, visits, top, offsets, values, entry, panel, sums, later, far
        As `sum_rows` has them.
    stop : int
        The visit before which to stop.
    stride, panels : int
        Items from a row of the panel to the next, and how many panels, which lie beside each other,
        a row meets; one if it is packed.
    columns, skipped : int
        How many columns of each panel are stored, but for so many at the beginning of the first:
        less than a vector. All vectors but the last are within `columns`. Where the tuple `skips`
        is empty `skipped` is 0, and no code is emitted for it.
    out, out_stride, residual, residual_stride : int
        Addresses of row 0 of C and of the residual, 0 if there is none, at the panel's first
        column, and items to the next row.
    bias : int
        Address of an item for each row; 0 if there is none.
    bounded, lower, upper : bool, numbers
        Whether what is stored is between `lower` and `upper`; NaN passes.
    nontemporal : bool
        Whether whole vectors, which then are aligned in C, are written by non-temporal stores.
    prefetches : bool
        Whether lines of C of rows that come next are prefetched.
    """
    word, bit, element = types.intp, types.boolean, dtype.dtype
    signature = word(
        packed, vectors, skips, dtype, *[word] * 12, bit, bit, *[word] * 5, bit, element, element,
        bit, bit,
    )  # fmt: skip
    names = (
        "visits", "top", "stop", "offsets", "values", "entry", "panel", "stride", "panels",
        "columns", "skipped", "sums", "later", "far", "out", "out_stride", "bias", "residual",
        "residual_stride", "bounded", "lower", "upper", "nontemporal", "prefetches",
    )  # fmt: skip

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        given = dict(zip(names, args[4:], strict=True))

        def emit(inner: Any, of: SimpleNamespace) -> None:
            rows = _FinishedRows(inner, len(vectors), BLOCK_BYTES, element, of)
            rows.skips = len(skips) > 0
            if len(packed):
                inner.ret(rows.each_packed(of.stop, rows.finish_packed))
            else:
                rows.each_as_given()
                inner.ret(of.stop)

        return _call_apart(builder, "finish_rows", WORD, given, emit)

    return signature, codegen


def _call_apart(
    builder: Any,
    name: str,
    result: Value,
    given: dict[str, Value],
    emit: Callable[[Any, SimpleNamespace], None],
) -> Value:
    """Call a function of its own, which is emitted here, with what it is given."""
    kind = ir.FunctionType(result, [value.type for value in given.values()])
    function = ir.Function(builder.module, kind, builder.module.get_unique_name(name))
    function.linkage = "internal"
    function.attributes.add("noinline")
    inner = ir.IRBuilder(function.append_basic_block("entry"))
    emit(inner, SimpleNamespace(**dict(zip(given, function.args, strict=True))))
    return builder.call(function, list(given.values()))


class _Visit(NamedTuple):
    """One row that is visited, or two: their numbers, first entry, and how many entries each has.

    `following` emits, and returns, the numbers of two rows that come next.
    """

    emitter: RowsEmitter
    rows: list[Value]
    following: Callable[[], list[Value]]
    entry: Value
    count: Value


class _Rows:
    """Emits loops over rows. `of`: what the function is given, by name."""

    def __init__(
        self, builder: Any, vectors: int, vector_bytes: int, element: Any, of: SimpleNamespace
    ) -> None:
        self.builder, self.vectors, self.vector_bytes, self.of = builder, vectors, vector_bytes, of
        self.scalar = ir.FloatType() if element.bitwidth == 32 else ir.DoubleType()
        self.width = WORD(vectors * vector_bytes // (element.bitwidth // 8))
        self.values, self.panel, self.sums = (
            self._pointer(self.scalar, address) for address in (of.values, of.panel, of.sums)
        )
        self.flags = Flags(builder, self.conditions())

    def conditions(self) -> dict[str, Value]:
        """Return the flags' conditions, by name."""
        return {"later": self.of.later, "far": self.of.far}

    def each_packed(self, stop: Value, emit: Callable[[_Visit], None]) -> Value:
        """Emit a loop over rows of a block, two at a time where they are a pair; return its end."""
        builder, of = self.builder, self.of
        visit, entry = cgutils.alloca_once(builder, WORD), cgutils.alloca_once(builder, WORD)
        builder.store(of.top, visit)
        builder.store(of.entry, entry)
        test, body, after = (
            builder.append_basic_block(f"{name}_rows") for name in ("test", "some", "after")
        )
        builder.branch(test)
        builder.position_at_end(test)
        at, first = builder.load(visit), builder.load(entry)
        builder.cbranch(builder.icmp_signed("<", at, stop), body, after)
        builder.position_at_end(body)
        row, count = self._visit(at, 0)
        pair = builder.and_(count, WORD(PAIR))

        def emit_rows(rows: int) -> None:
            entries = builder.xor(count, WORD(PAIR)) if rows == 2 else count
            emitter = self.emitter(rows)
            numbers = [row, *(self._visit(at, each)[0] for each in range(1, rows))]

            def following() -> list[Value]:
                return [self._visit(at, rows + each)[0] for each in range(2)]

            emit(_Visit(emitter, numbers, following, first, entries))
            builder.store(builder.add(at, WORD(rows)), visit)
            builder.store(builder.add(first, builder.mul(entries, WORD(rows))), entry)

        if chains(self.vectors, self.vector_bytes) == 1:
            emit_rows(1)
        else:
            is_pair = builder.icmp_signed("!=", pair, WORD(0))
            with builder.if_else(is_pair, likely=True) as (two, one):
                with two:
                    emit_rows(2)
                with one:
                    emit_rows(1)
        builder.branch(test)
        builder.position_at_end(after)
        return at

    def sum(self, visit: _Visit) -> None:
        """Emit that entries of one or two rows, packed, are added to the sums of these."""
        with self.builder.if_then(self.flags["far"], likely=False):
            for row in visit.following():
                self._prefetch(self.sums, self._sums_at(row))
        for row, slots in zip(visit.rows, self.add_packed(visit), strict=True):
            visit.emitter.keep(slots, self.sums, self._sums_at(row))

    def add_packed(self, visit: _Visit) -> list[list[Value]]:
        """Emit that entries of one or two rows, packed, are summed; returns the sums of each."""
        emitter = visit.emitter
        starts = [self._sums_at(row) for row in visit.rows]
        emitter.begin(self.sums, starts, self.flags["later"])
        offsets = self._pointer(INT16, self.of.offsets)
        emitter.add_packed(self.panel, offsets, self.values, visit.entry, visit.count)
        return emitter.join()

    def _visit(self, visit: Value, distance: int) -> tuple[Value, Value]:
        """Return the row and the number of entries of a visit, by one load."""
        visits = self._pointer(WORD, self.of.visits)
        at = self.builder.gep(visits, [self.builder.add(visit, WORD(distance))])
        word = hidden(self.builder, self.builder.load(at, align=4))  # else it would be two loads
        row, count = split_numbers(self.builder, word, 32)
        return row, count

    def _sums_at(self, row: Value) -> Value:
        return self.builder.mul(row, self.width)

    def _prefetch(self, data: Value, position: Value) -> None:
        """Emit that a row of a panel, to be written, is prefetched."""
        emitter = self.emitter()
        for number in range(self.vectors):
            prefetch_line(self.builder, emitter.at(data, position, number), written=True)

    def emitter(self, rows: int = 1) -> RowsEmitter:
        """Return what emits the sums of one row, or of two."""
        return RowsEmitter(self.builder, self.vectors, self.scalar, rows, self.vector_bytes)

    def _pointer(self, kind: Value, address: Value) -> Value:
        return self.builder.inttoptr(address, kind.as_pointer())


class _FinishedRows(_Rows):
    """Emits loops over rows that are written to C."""

    skips: bool  # whether the first panel may begin before column 0

    def __init__(
        self, builder: Any, vectors: int, vector_bytes: int, element: Any, of: SimpleNamespace
    ) -> None:
        super().__init__(builder, vectors, vector_bytes, element, of)
        self.out, self.bias, self.residual = (
            self._pointer(self.scalar, address) for address in (of.out, of.bias, of.residual)
        )

    def conditions(self) -> dict[str, Value]:
        """Return the flags' conditions, by name."""
        builder, of = self.builder, self.of
        return super().conditions() | {
            "has_bias": builder.icmp_signed("!=", of.bias, WORD(0)),
            "has_residual": builder.icmp_signed("!=", of.residual, WORD(0)),
            "bounded": of.bounded,
            "nontemporal": of.nontemporal,
            "prefetches": of.prefetches,
            "any_far": builder.or_(of.far, of.prefetches),
            "whole": builder.icmp_signed(">=", of.columns, self.width),
        }

    def finish_packed(self, visit: _Visit) -> None:
        """Emit that one or two rows, packed, are summed and written."""
        builder = self.builder
        with builder.if_then(self.flags["any_far"], likely=False):
            following = visit.following()
            for data, is_far, at in (
                (self.sums, "far", self._sums_at), (self.out, "prefetches", self._out_at)
            ):  # fmt: skip
                with builder.if_then(self.flags[is_far]):
                    for row in following:
                        self._prefetch(data, at(row))
        self._limit(visit.emitter, self.of.skipped, reads_b=False)
        for row, slots in zip(visit.rows, self.add_packed(visit), strict=True):
            self._write(visit.emitter, slots, row, WORD(0))

    def each_as_given(self) -> None:
        """Emit a loop over rows of weights as they are given, each of which meets all panels."""
        builder, of = self.builder, self.of
        indices, indptr = self._pointer(INT32, of.offsets), self._pointer(WORD, of.visits)
        with loop(builder, of.top, of.stop, WORD(1)) as row:
            after = builder.add(row, WORD(1))
            with builder.if_then(self.flags["prefetches"], likely=False):
                start = self._out_at(after)  # beyond the last row it does no harm
                with loop(builder, WORD(0), of.panels, WORD(1)) as panel:
                    shift = builder.mul(panel, self.width)
                    self._prefetch(self.out, builder.add(start, shift))
            first, stop = (builder.load(builder.gep(indptr, [each])) for each in (row, after))
            with loop(builder, WORD(0), of.panels, WORD(1)) as panel:
                emitter = self.emitter()
                is_first = builder.icmp_signed("==", panel, WORD(0))
                skipped = builder.select(is_first, of.skipped, WORD(0))
                self._limit(emitter, skipped, reads_b=True)
                emitter.begin(self.sums, [self._sums_at(row)], self.flags["later"])
                shift = builder.mul(panel, self.width)
                columns = builder.gep(self.panel, [shift])
                emitter.add_as_given(columns, of.stride, indices, self.values, first, stop)
                [slots] = emitter.join()
                self._write(emitter, slots, row, shift)

    def _limit(self, emitter: RowsEmitter, skipped: Value, reads_b: bool) -> None:
        """Emit which lanes are there."""
        emitter.limit(self.of.columns)
        emitter.whole = self.flags["whole"]
        if self.skips:
            emitter.skip(skipped, reads_b)

    def _write(self, emitter: RowsEmitter, slots: list[Value], row: Value, shift: Value) -> None:
        """Emit that the sums of a row are finished and written, `shift` items behind `out`."""
        builder, of = self.builder, self.of
        with builder.if_then(self.flags["has_bias"]):
            emitter.add_bias(slots, builder.load(builder.gep(self.bias, [row])))
        with builder.if_then(self.flags["has_residual"], likely=False):
            start = builder.add(builder.mul(row, of.residual_stride), shift)
            emitter.add_residual(slots, self.residual, start)
        with builder.if_then(self.flags["bounded"]):
            emitter.clamp(slots, of.lower, of.upper)
        start = builder.add(self._out_at(row), shift)
        with builder.if_else(self.flags["nontemporal"], likely=False) as (nontemporal, as_usual):
            with nontemporal:
                emitter.store(slots, self.out, start, nontemporal=True)
            with as_usual:
                emitter.store(slots, self.out, start)

    def _out_at(self, row: Value) -> Value:
        return self.builder.mul(row, self.of.out_stride)
