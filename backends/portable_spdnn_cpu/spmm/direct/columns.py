"""Products of columns of A, in CSC.

A row of B stays in registers, and is added, times each entry of a column of A, to the row of C that
the entry names. The last vector of a row ends where the row does: what it shares with the one
before is computed twice, from what both have loaded before either is stored. Bound: a load and a
store of C for each vector.
"""

from __future__ import annotations

from llvmlite import ir

from portable_spdnn_cpu.spmm.direct.job_words import B_ROW, OUT_ROW, ROWS
from portable_spdnn_cpu.spmm.direct.sparse_microkernel import SparseMicrokernel
from portable_spdnn_cpu.spmm.emitter import Value

STEP = 4  # entries


class Columns(SparseMicrokernel):
    """Emits the products of columns of A. Columns of B fill a vector at least."""

    overlaps = True

    def start(self) -> None:
        """Emit that rows of C are zero, or hold what sums are added to, and have their bias."""
        builder = self.builder
        anew = builder.not_(self.accumulates)
        with builder.if_then(anew), self.loop(self.zero, self.words[ROWS]) as row:
            zeros = [ir.Constant(self.vector_type, None)] * self.vectors
            self._store(zeros, self.row_of(self.out, row, OUT_ROW))
        with builder.if_then(self.finishes), self.loop(self.zero, self.words[ROWS]) as row:
            bias = self.spread(self.bias(row), self.vector_type.count)
            target = self.row_of(self.out, row, OUT_ROW)
            self._store([self.plus(bias, before) for before in self.load_row(target)], target)

    def multiply(self, number: Value, first: Value, stop: Value) -> None:
        """Emit the entries of a column of A, times a row of B."""
        builder = self.builder
        with builder.if_then(builder.icmp_signed("<", first, stop)):
            row = self.load_row(self.row_of(self.B, number, B_ROW))
            self.by_steps(first, stop, STEP, lambda entry, _: self._add(row, entry))

    def _add(self, row: list[Value], entry: Value) -> None:
        """Emit an entry times a row of B, added to a row of C."""
        index, factor = self.entry(entry, self.words[ROWS])
        target = self.row_of(self.out, index, OUT_ROW)
        before = self.load_row(target)
        sums = [self.multiply_add(factor, *both) for both in zip(row, before, strict=True)]
        self._store(sums, target)

    def _store(self, values: list[Value], address: Value) -> None:
        for number, value in enumerate(values[:-1]):
            self.store(value, self.add(address, number * self.vector_bytes))
        self.store(values[-1], self.add(address, self.last))
