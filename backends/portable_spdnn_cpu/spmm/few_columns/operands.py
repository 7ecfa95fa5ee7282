"""What the generated function of a product is given, and what it does to finished sums."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, cast

from llvmlite import ir

from portable_spdnn_cpu.jit.vectors import clamped
from portable_spdnn_cpu.spmm.emitter import INT32, WORD, Emitter, Value
from portable_spdnn_cpu.spmm.few_columns.specs import Spec

# The arguments of the generated function: addresses of what is listed next, words all.
ARGUMENTS = ("part", "operands")
# Addresses, and strides in bytes. A residual at address 0 is none.
OPERANDS = (
    "B", "B_row", "B_column",
    "out", "out_row", "out_column",
    "residual", "residual_row", "residual_column",
)  # fmt: skip
# What is done of a product: the addresses of the table and of the scratch memory; parts
# first .. end - 1 of A; and whether B is copied to the scratch memory before.
PART = ("table", "scratch", "first", "end", "copy")
# What A was packed into, words all: addresses of the arrays that `lanes`, `sliced` and `rows`
# describe, and numbers.
TABLE = (
    "values", "places", "windows", "starts", "rows", "visits", "first_entries", "bias", "bounds",
    "parts", "height", "depth", "plane", "blocks", "block_rows", "sums",
)  # fmt: skip

# How far ahead entries of A are prefetched, in bytes of their values. Measured on a Zen 5, in a
# loop over more weights than the last cache holds, with 90 % zeros: products in lanes take 0.9 of
# the time with one column, 0.65 with two, 0.45 with four and 0.35 with eight, and row by row 0.5 to
# 0.8; half or twice as far ahead gains less. Of a matrix that stays in a cache they take 0.97 to
# 1.1.
AHEAD_BYTES = 8192


class Operands(Emitter):
    """The arguments of the generated function, by name, and its epilogue.

    Parameters
    ----------
    function : llvmlite.ir.Function
        Empty yet, with the arguments `ARGUMENTS`.
    spec : Spec

    Attributes
    ----------
    values, places
        Addresses of the entries of A, which a form loads before it uses them.
    """

    values: Value
    places: Value

    def __init__(self, function: Any, spec: Spec) -> None:
        super().__init__(ir.IRBuilder(function.append_basic_block("entry")), spec.itemsize)
        self.spec = spec
        given = dict(zip(ARGUMENTS, function.args, strict=True))
        self.argument = {
            name: self.load_word(WORD, given[argument], place)
            for argument, names in (("part", PART), ("operands", OPERANDS))
            for place, name in enumerate(names)
        }
        self.lower, self.upper = (
            self.load(self.scalar, self.add(self.table("bounds"), side * self.itemsize))
            for side in (0, 1)
        )
        self.columns_of_out = self._column_offsets("out_column")

    def table(self, name: str) -> Value:
        """Return an entry of the table."""
        return self.load_word(WORD, self.argument["table"], TABLE.index(name))

    def row_index(self, position: Value) -> Value:
        """Return an item of `rows`: a row of C."""
        return self.load_word(INT32, self._rows, position)

    def read_rows(self) -> None:
        """Load what `row_index` needs; once, before all loops."""
        self._rows = self.table("rows")

    def clamp(self, value: Value) -> Value:
        """Return min(max(value, lower), upper) in each lane; NaN stays."""
        lanes = value.type.count
        lower, upper = (self.spread(bound, lanes) for bound in (self.lower, self.upper))
        return clamped(self.builder, value, lower, upper)

    def if_copied(self) -> AbstractContextManager[None]:
        """Emit what is done where B is to be copied."""
        wanted = self.builder.icmp_unsigned("!=", self.argument["copy"], self.zero)
        return cast(AbstractContextManager[None], self.builder.if_then(wanted))

    def has_residual(self) -> Value:
        """Return whether there is a residual."""
        return self.builder.icmp_unsigned("!=", self.argument["residual"], self.zero)

    def residual(self, row: Value, column: int) -> Value:
        """Load an entry of the residual."""
        row_at = self.times(row, self.argument["residual_row"])
        column_at = self.times(self.argument["residual_column"], column)
        at = self.add(self.argument["residual"], self.add(row_at, column_at))
        return self.load(self.scalar, at)

    def is_adjacent(self, step: str) -> Value:
        """Return whether items are neighbours along an axis, given the name of its stride."""
        return self.builder.icmp_unsigned("==", self.argument[step], self.number(self.itemsize))

    def prefetch_entries(self, first: Value, count: int, place_bytes: int) -> None:
        """Prefetch so many entries of A, AHEAD_BYTES of values after a first one, if the spec does.

        The values lie at `values`, and the places, of so many bytes each, at `places`.
        """
        if self.spec.prefetches:
            later = self.add(first, AHEAD_BYTES // self.itemsize)
            self.prefetch_items(self.values, later, count, self.itemsize)
            self.prefetch_items(self.places, later, count, place_bytes)

    def row_of_out(self, row: Value) -> Value:
        """Return the address of a row of C."""
        return self.add(self.argument["out"], self.times(row, self.argument["out_row"]))

    def store_row(self, row: Value, values: list[Value]) -> None:
        """Store the scalars of a row of C, in any order of C."""
        start = self.row_of_out(row)
        for value, offset in zip(values, self.columns_of_out, strict=True):
            self.store(value, self.add(start, offset))

    def _column_offsets(self, name: str) -> list[Value]:
        return [self.times(self.argument[name], n) for n in range(self.spec.columns)]
