"""Products of rows of A, in CSR, with a single column of B, where gathers are fast.

B is gathered, eight entries at once, under a mask of the indices that are within B. Bound: the
gather, half a cycle or more for each entry, and some thirty instructions for a row. Short rows need
no branch that depends on how many entries they have.
"""

from __future__ import annotations

from llvmlite import ir

from portable_spdnn_cpu.spmm.direct.job_words import INDICES, VALUES, K
from portable_spdnn_cpu.spmm.direct.rows import Rows
from portable_spdnn_cpu.spmm.emitter import BIT, Value

GATHERED = 8  # entries; their addresses fill a vector of 64 bytes


class Dots(Rows):
    """Emits the products of rows of A with a column."""

    def start(self) -> None:
        """Emit that all indices that were seen, none, are within B."""
        everywhere = ir.Constant(ir.VectorType(BIT, GATHERED), [1] * GATHERED)
        self.within = self.slot(everywhere.type)
        self.builder.store(everywhere, self.within)

    def end(self) -> None:
        """Emit that A is refused if an index was not within B."""
        bits = ir.IntType(GATHERED)
        found = self.builder.bitcast(self.builder.load(self.within), bits)
        self.refuse_unless(self.builder.icmp_unsigned("==", found, bits(-1)))

    def sums(self, first: Value, stop: Value) -> list[Value]:
        """Return the sum of a row times a single column."""
        builder = self.builder
        kind, indices = self.vector(GATHERED), ir.VectorType(self.index_type, GATHERED)
        slots = [self.slot(kind), self.slot(kind)]

        def add_entries(entry: Value, chain: int, mask: Value | None) -> None:
            at = self.add(self.words[INDICES], self.times(entry, self.index_type.width // 8))
            value_at = self.add(self.words[VALUES], self.times(entry, self.itemsize))
            if mask is None:
                found, values = self.load(indices, at), self.load(kind, value_at)
            else:
                found = self.load_some(indices, at, mask)
                values = self.load_some(kind, value_at, mask)
            good = self.below(found, self.words[K])
            builder.store(builder.and_(builder.load(self.within), good), self.within)
            items = self.gather(self.B, found, good if mask is None else builder.and_(good, mask))
            total = self.multiply_add(values, items, builder.load(slots[chain]))
            builder.store(total, slots[chain])

        for slot in slots:
            builder.store(ir.Constant(kind, None), slot)
        step = len(slots) * GATHERED
        whole = self.whole_steps(first, stop, step)
        with self.loop(first, whole, step) as entry:
            for chain in range(len(slots)):
                add_entries(self.add(entry, chain * GATHERED), chain, None)
        with self.loop(whole, stop, GATHERED) as entry:
            add_entries(entry, 0, self.first_lanes(GATHERED, builder.sub(stop, entry)))
        total = self.sum_of(slots)
        return [self.lane_sum(total)]
