"""Products of rows of A, in CSR, with a single column of B.

Rows of few entries go in blocks. First all entries of a block are multiplied, whatever row they are
of, and their products kept; then four rows at a time are summed, each in one to six vectors of
which a mask leaves out what is of other rows. So no branch depends on how many entries a row has,
which would be foreseen in a benchmark alone. Bound: some four instructions for an entry and twelve
for a row, and the loads of masks and of products that lie across two cache lines. A longer row is
multiplied and summed at once; either way its sum is the same, but for the sign of a zero.
"""

from __future__ import annotations

import functools
import itertools

from llvmlite import ir

from portable_spdnn_cpu.spmm.direct.job_words import (
    B_ROW,
    INDICES,
    INDPTR,
    OUT_ROW,
    ROWS,
    VALUES,
    K,
)
from portable_spdnn_cpu.spmm.direct.rows import Rows
from portable_spdnn_cpu.spmm.emitter import BIT, INT32, Value

STEP = 8  # entries that are multiplied together
TOGETHER, PART = 4, 32  # rows that are summed together, and the bytes of a row in a vector
# Entries up to which four rows are summed together, and those that rows of their block have on
# average at most where that pays, as measured on a Zen 3.
WIDTHS = {4: 3, 8: 7, 16: 12}
# The same of the widest, by the bytes of a value; with more, where all rows of a block are short.
WIDEST, MOST = 24, {4: 19, 8: 15}
BLOCK_ROWS = 64
BLOCK_ENTRIES = BLOCK_ROWS * WIDEST
LENGTHS = 16  # rows whose lengths are looked at together


class Dots(Rows):
    """Emits the products of rows of A with a column, whose items are loaded one by one."""

    def start(self) -> None:
        """Emit where the last step may begin, and memory for what a block needs."""
        builder, rows = self.builder, self.words[ROWS]
        entries = self.load_word(self.index_type, self.words[INDPTR], rows)
        self.last_step = builder.sub(entries, self.number(STEP))
        # Vectors that begin with the last products of a block reach beyond them.
        self.products, self.block_sums, self.rest = (
            self.address_of(self.slot(ir.ArrayType(self.scalar, count)))
            for count in (BLOCK_ENTRIES + WIDEST, BLOCK_ROWS, STEP)
        )
        longest, integer = WIDEST, ir.IntType(8 * self.itemsize)
        masks = ir.ArrayType(integer, 2 * longest)
        slot = self.slot(masks)
        builder.store(ir.Constant(masks, [-1] * longest + [0] * longest), slot)
        self.masks = self.add(self.address_of(slot), longest * self.itemsize)

    def multiply_all(self, begin: Value, end: Value) -> None:
        """Emit rows of C."""
        builder = self.builder
        with self.loop(begin, end, BLOCK_ROWS) as row:
            after = self.least(self.add(row, BLOCK_ROWS), end)
            first, stop = (
                self.load_word(self.index_type, self.words[INDPTR], place) for place in (row, after)
            )
            rows, few = builder.sub(after, row), self.slot(BIT)
            most = self.times(rows, MOST[self.itemsize])
            builder.store(builder.icmp_unsigned("<=", builder.sub(stop, first), most), few)
            whole = builder.icmp_unsigned("==", rows, self.number(BLOCK_ROWS))
            with builder.if_then(builder.and_(whole, builder.not_(builder.load(few)))):
                builder.store(self._are_short(row), few)
            with builder.if_else(builder.load(few)) as (block, one_by_one):
                with block:
                    self._multiply_block(row, after, first, stop)
                with one_by_one:
                    super().multiply_all(row, after)

    def _are_short(self, row: Value) -> Value:
        """Return whether each of BLOCK_ROWS rows has WIDEST entries at most."""
        builder, kind = self.builder, ir.VectorType(self.index_type, LENGTHS)
        size, longest = self.index_type.width // 8, ir.Constant(kind, None)
        for number in range(0, BLOCK_ROWS, LENGTHS):
            at = self.add(self.words[INDPTR], self.times(self.add(row, number), size))
            lengths = builder.sub(self.load(kind, self.add(at, size)), self.load(kind, at))
            longer = builder.icmp_unsigned(">", lengths, longest)
            longest = builder.select(longer, lengths, longest)
        beyond = builder.icmp_unsigned(">", longest, self.spread(self.index_type(WIDEST), LENGTHS))
        bits = ir.IntType(LENGTHS)
        return builder.icmp_unsigned("==", builder.bitcast(beyond, bits), bits(0))

    def _multiply_block(self, begin: Value, end: Value, first: Value, stop: Value) -> None:
        """Emit rows of C whose entries are first .. stop - 1."""
        builder = self.builder
        self._keep_products(first, stop)
        out = self.row_of(self.out, begin, OUT_ROW)
        sums = builder.select(self.finishes, self.block_sums, out)
        sums = builder.sub(sums, self.times(begin, self.itemsize))
        products = builder.sub(self.products, self.times(first, self.itemsize))
        whole = self.whole_steps(begin, end, TOGETHER)
        rows, entries = builder.sub(end, begin), builder.sub(stop, first)
        limits = {}
        for width, most in WIDTHS.items():
            pays = builder.icmp_signed("<=", entries, self.times(rows, most))
            # A limit of 0 admits only rows without entries.
            limit = builder.select(pays, self.index_type(width), self.index_type(0))
            limits[width] = self.spread(limit, TOGETHER)
        limits[WIDEST] = self.spread(self.index_type(WIDEST), TOGETHER)
        with self.loop(begin, whole, TOGETHER) as row:
            self._sum_four(row, limits, products, sums)
        self._sum_rows(whole, end, sums)
        with builder.if_then(self.finishes), self.loop(begin, end) as row:
            target = self.row_of(self.out, row, OUT_ROW)
            [total] = self.load_row(self.add(sums, self.times(row, self.itemsize)))
            [total] = self._finished(row, [total], target)
            self.store(total, target)

    def _keep_products(self, first: Value, stop: Value) -> None:
        """Emit that products of entries are kept, and maybe those of some that follow."""
        builder = self.builder
        products = builder.sub(self.products, self.times(first, self.itemsize))
        within = self.least(stop, self.add(self.last_step, 1))
        within = builder.select(builder.icmp_signed("<", first, within), within, first)
        with self.loop(first, within, STEP) as entry:
            found, values = self._load(entry)
            target = self.add(products, self.times(entry, self.itemsize))
            self.store(builder.fmul(found, values), target)
        steps = self.add(builder.sub(within, first), STEP - 1)
        rest = self.add(first, builder.and_(steps, self.number(-STEP)))
        self._multiply_each(rest, stop, products)

    def _multiply_each(self, first: Value, stop: Value, products: Value) -> None:
        """Emit that products of entries are kept, one by one."""
        with self.loop(first, stop) as entry:
            index, factor = self.entry(entry, self.words[K])
            [item] = self.load_row(self.row_of(self.B, index, B_ROW))
            target = self.add(products, self.times(entry, self.itemsize))
            self.store(self.builder.fmul(factor, item), target)

    def _sum_four(self, row: Value, limits: dict[int, Value], products: Value, sums: Value) -> None:
        """Emit that sums of four rows are stored: together where all are within a limit."""
        builder, kind = self.builder, ir.VectorType(self.index_type, TOGETHER)
        size, bits = self.index_type.width // 8, ir.IntType(TOGETHER)
        at = self.add(self.words[INDPTR], self.times(row, size))
        lengths = builder.sub(self.load(kind, self.add(at, size)), self.load(kind, at))

        def emit(widths: list[int]) -> None:
            if not widths:
                self._sum_rows(row, self.add(row, TOGETHER), sums)
                return
            beyond = builder.bitcast(builder.icmp_unsigned(">", lengths, limits[widths[0]]), bits)
            fits = builder.icmp_unsigned("==", beyond, bits(0))
            with builder.if_else(fits) as (together, longer):
                with together:
                    total = self._sums_of_four(row, widths[0], products)
                    self.store(total, self.add(sums, self.times(row, self.itemsize)))
                with longer:
                    emit(widths[1:])

        emit(list(limits))

    def _sums_of_four(self, row: Value, width: int, products: Value) -> Value:
        """Return the sums of four rows of at most so many entries, as a vector."""
        lanes = min(width, PART // self.itemsize)
        starts = [
            self.load_word(self.index_type, self.words[INDPTR], self.add(row, number))
            for number in range(TOGETHER + 1)
        ]
        found = []
        for start, stop in itertools.pairwise(starts):
            at = self.add(products, self.times(start, self.itemsize))
            count, terms = self.builder.sub(stop, start), list[Value]()
            for lane in range(0, width, lanes):
                term = self.load(self.vector(lanes), self.add(at, lane * self.itemsize))
                terms.append(self._first_lanes_of(term, count, lane))
            # In the order of `sums`, in which STEP lanes are added at once.
            parts = min(STEP // lanes, len(terms))
            totals = [functools.reduce(self.plus, terms[part::parts]) for part in range(parts)]
            found.append(functools.reduce(self.plus, totals))
        a, b, c, d = found
        if lanes == 2 * TOGETHER:
            halves = [[0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]]
            ac, bd = self._added(a, c, halves), self._added(b, d, halves)
            total = self._added(ac, bd, [[0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15]])
            return self._added(total, total, [[0, 2, 4, 6], [1, 3, 5, 7]])
        halves = [[0, 1, 4, 5], [2, 3, 6, 7]]
        ab, cd = self._added(a, b, halves), self._added(c, d, halves)
        return self._added(ab, cd, [[0, 2, 4, 6], [1, 3, 5, 7]])

    def _added(self, first: Value, second: Value, lanes: list[list[int]]) -> Value:
        """Return the sum of two choices of the lanes of two vectors."""
        return self.plus(*(self.shuffle(first, second, chosen) for chosen in lanes))

    def _sum_rows(self, begin: Value, end: Value, sums: Value) -> None:
        """Emit that sums of rows of any length are stored, one after the other."""
        with self.loop(begin, end) as row:
            first, stop = (
                self.load_word(self.index_type, self.words[INDPTR], self.add(row, after))
                for after in (0, 1)
            )
            [total] = self.sums(first, stop)
            self.store(total, self.add(sums, self.times(row, self.itemsize)))

    def sums(self, first: Value, stop: Value) -> list[Value]:
        """Return the sum of a row of any length."""
        builder, kind = self.builder, self.vector(STEP)
        slot = self.slot(kind)
        builder.store(ir.Constant(kind, None), slot)
        whole = self.whole_steps(first, stop, STEP)
        with self.loop(first, whole, STEP) as entry:
            # Not fused: short rows are not either.
            products = builder.fmul(*self._load(entry))
            builder.store(self.plus(builder.load(slot), products), slot)
        total, products = builder.load(slot), self.slot(kind)
        fits = builder.icmp_signed("<=", whole, self.last_step)
        with builder.if_else(fits, likely=True) as (vector, one_by_one):
            with vector:
                builder.store(builder.fmul(*self._load(whole)), products)
            with one_by_one:
                base = builder.sub(self.rest, self.times(whole, self.itemsize))
                self._multiply_each(whole, stop, base)
                builder.store(self.load(kind, self.rest), products)
        rest = self._first_lanes_of(builder.load(products), builder.sub(stop, whole))
        return [self.lane_sum(self.plus(total, rest))]

    def _first_lanes_of(self, terms: Value, count: Value, lane: int = 0) -> Value:
        """Return a vector that begins with a lane of a row, and zeros from `count` of these on."""
        integers = ir.VectorType(ir.IntType(8 * self.itemsize), terms.type.count)
        before = self.times(self.builder.sub(self.number(lane), count), self.itemsize)
        mask = self.load(integers, self.add(self.masks, before))
        kept = self.builder.and_(self.builder.bitcast(terms, integers), mask)
        return self.builder.bitcast(kept, terms.type)

    def _load(self, first: Value) -> tuple[Value, Value]:
        """Return the items of B that entries name, whose indices are checked, and values."""
        builder, bits = self.builder, ir.IntType(STEP)
        at = self.add(self.words[INDICES], self.times(first, self.index_type.width // 8))
        indices = self.load(ir.VectorType(self.index_type, STEP), at)
        good = builder.bitcast(self.below(indices, self.words[K]), bits)
        self.refuse_unless(builder.icmp_unsigned("==", good, bits(-1)))
        at = self.add(self.words[VALUES], self.times(first, self.itemsize))
        return self.items(first, indices), self.load(self.vector(STEP), at)

    def items(self, first: Value, indices: Value) -> Value:
        """Return the items of B that a vector of indices names, of entries from `first` on."""
        found = ir.Constant(self.vector(STEP), ir.Undefined)
        for lane in range(STEP):
            # Loaded once more: to take it out of the vector would take longer.
            index = self.load_word(self.index_type, self.words[INDICES], self.add(first, lane))
            item = self.load(self.scalar, self.row_of(self.B, index, B_ROW))
            found = self.builder.insert_element(found, item, INT32(lane))
        return found


class GatheredDots(Dots):
    """The same by the processor's gathers, where these are fast."""

    def items(self, first: Value, indices: Value) -> Value:
        """Return the items of B that indices name."""
        return self.gather(self.B, indices)
