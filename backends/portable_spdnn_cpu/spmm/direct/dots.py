"""Products of rows of A, in CSR, with a single column of B.

Rows of few entries go in blocks. First all entries of a block are multiplied, whatever row they are
of, and their products kept; then four rows at a time are summed, each in as many steps as the
longest row of the block takes, of which masks leave out what is of other rows. So branches depend
on the longest row of a block, and on each four rows only where that has more than 24 entries;
branches on each row would be predicted in a benchmark alone. Bound: some four
instructions for an entry and ten for a row of up to eight, and loads of products, which lie across
two cache lines. A longer row is multiplied and summed at once; either way its sum is the same, but
for the sign of a zero.
"""

from __future__ import annotations

import functools

from llvmlite import ir
from numba.core import cgutils

from portable_spdnn_cpu.jit.grouped_loads import load_numbers
from portable_spdnn_cpu.jit.partial_vectors import HAS_FAST_MASKS
from portable_spdnn_cpu.machine.cpu_info import cache_bytes
from portable_spdnn_cpu.spmm.direct.job_words import (
    B_ROW,
    ENTRIES,
    INDICES,
    INDPTR,
    OUT_ROW,
    ROWS,
    VALUES,
    K,
)  # fmt: skip
from portable_spdnn_cpu.spmm.direct.rows import Rows
from portable_spdnn_cpu.spmm.emitter import INT32, Value

STEP = 8  # entries that are multiplied together
TOGETHER = 4  # rows that are summed together
WIDTHS = 4, 8, 16, 24, 32  # entries that each of them may have
# Rows of a block are summed together if they have at most MOST entries on average, by the bytes of
# a value, or none has more than SHORT, as measured on a Zen 4.
MOST, SHORT = {4: 24, 8: 20}, 24
LENGTHS = 16  # rows whose lengths are looked at together
# Rows of a block: LENGTHS where those of A have more entries than LONG on average, or FAR_LONG
# where B is larger than the first-level cache. Products of more rows would leave that cache before
# they are summed.
BLOCK_ROWS, LONG, FAR_LONG = 64, 12, 4
BLOCK_ENTRIES = BLOCK_ROWS * SHORT  # at most: SHORT is not below MOST
# Terms of a sum that are loaded together, by the bytes of a term: those of a step where masks are
# fast, else as many as a register of 32 bytes holds.
PART = {4: STEP, 8: STEP if HAS_FAST_MASKS else STEP // 2}


class Dots(Rows):
    """Emits the products of rows of A with a column, whose items are loaded one by one."""

    def start(self) -> None:
        """Emit where the last step may begin, and memory for what a block needs."""
        builder = self.builder
        self.last_step = builder.sub(self.offset(self.words[ROWS]), self.number(STEP))
        # Vectors that begin with the last products of a block reach beyond them.
        self.products, self.block_sums, self.rest = (
            self.memory(self.scalar, count)
            for count in (BLOCK_ENTRIES + WIDTHS[-1], BLOCK_ROWS, STEP)
        )
        self.lengths = self.memory(INT32, BLOCK_ROWS)
        masks = ir.ArrayType(ir.IntType(8 * self.itemsize), 2 * WIDTHS[-1])
        constant = ir.Constant(masks, [-1] * WIDTHS[-1] + [0] * WIDTHS[-1])
        address = self.address_of(cgutils.global_constant(builder.module, "masks", constant))
        self.masks = self.add(address, WIDTHS[-1] * self.itemsize)

    def multiply_all(self, begin: Value, end: Value) -> None:
        """Emit rows of C."""
        builder = self.builder
        size_of_B = self.times(self.words[K], self.itemsize)
        is_near = builder.icmp_unsigned("<=", size_of_B, self.number(cache_bytes(1)))
        long = builder.select(is_near, self.number(LONG), self.number(FAR_LONG))
        limit = builder.mul(self.words[ROWS], long)
        are_long = builder.icmp_unsigned(">", self.words[ENTRIES], limit)
        block_rows = builder.select(are_long, self.number(LENGTHS), self.number(BLOCK_ROWS))
        with self.loop(begin, end, block_rows) as row:
            after = self.least(self.add(row, block_rows), end)
            first, stop = self.offset(row), self.offset(after)
            longest = self._keep_lengths(row, after)
            most = self.times(builder.sub(after, row), MOST[self.itemsize])
            few = builder.icmp_unsigned("<=", builder.sub(stop, first), most)
            short = builder.icmp_unsigned("<=", longest, self.index_type(SHORT))
            with builder.if_else(builder.or_(few, short)) as (block, one_by_one):
                with block:
                    self._multiply_block(row, after, first, stop, longest)
                with one_by_one:
                    super().multiply_all(row, after)

    def _keep_lengths(self, begin: Value, end: Value) -> Value:
        """Emit that lengths of rows are kept, in 32 bits, where they fit; returns the longest."""
        builder, size = self.builder, self.index_type.width // 8
        many = self.slot(ir.VectorType(self.index_type, LENGTHS))
        single = self.slot(ir.VectorType(self.index_type, 1))

        def keep(row: Value, longest: Value) -> None:
            kind = longest.type.pointee
            at = self.add(self.words[INDPTR], self.times(row, size))
            lengths = builder.sub(self.load(kind, self.add(at, size)), self.load(kind, at))
            builder.store(self.largest(lengths, builder.load(longest)), longest)
            if self.index_type != INT32:
                lengths = builder.trunc(lengths, ir.VectorType(INT32, kind.count))
            place = self.times(builder.sub(row, begin), INT32.width // 8)
            self.store(lengths, self.add(self.lengths, place), INT32.width // 8)

        for slot in (many, single):
            builder.store(ir.Constant(slot.type.pointee, None), slot)
        whole = self.whole_steps(begin, end, LENGTHS)
        with self.loop(begin, whole, LENGTHS) as row:
            keep(row, many)
        with self.loop(whole, end) as row:
            keep(row, single)
        longest = self.folded(builder.load(many), self.largest)
        return builder.extract_element(self.largest(builder.load(single), longest), INT32(0))

    def _multiply_block(
        self, begin: Value, end: Value, first: Value, stop: Value, longest: Value
    ) -> None:
        """Emit rows of C whose entries are first .. stop - 1."""
        builder = self.builder
        self._keep_products(first, stop)
        out = self.row_of(self.out, begin, OUT_ROW)
        sums = builder.select(self.finishes, self.block_sums, out)
        sums = builder.sub(sums, self.times(begin, self.itemsize))
        products = builder.sub(self.products, self.times(first, self.itemsize))
        lengths = builder.sub(self.lengths, self.times(begin, INT32.width // 8))
        whole = self.whole_steps(begin, end, TOGETHER)

        def emit(width: int, *wider: int) -> None:
            if not wider:
                with self.loop(begin, whole, TOGETHER) as row:
                    self._sum_four_if_short(row, width, products, lengths, sums)
                return
            fits = builder.icmp_unsigned("<=", longest, self.index_type(width))
            with builder.if_else(fits) as (short, longer):
                with short, self.loop(begin, whole, TOGETHER) as row:
                    self._sum_four(row, width, products, lengths, sums)
                with longer:
                    emit(*wider)

        emit(*WIDTHS)
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
        rest = self.whole_steps(first, self.add(within, STEP - 1), STEP)
        self._multiply_each(rest, stop, products)

    def _multiply_each(self, first: Value, stop: Value, products: Value) -> None:
        """Emit that products of entries are kept, one by one."""
        with self.loop(first, stop) as entry:
            index, factor = self.entry(entry, self.words[K])
            [item] = self.load_row(self.row_of(self.B, index, B_ROW))
            target = self.add(products, self.times(entry, self.itemsize))
            self.store(self.builder.fmul(factor, item), target)

    def _sum_four_if_short(
        self, row: Value, width: int, products: Value, lengths: Value, sums: Value
    ) -> None:
        """Emit that sums of four rows are stored: together if none has more than `width` terms."""
        builder, bits = self.builder, ir.IntType(TOGETHER)
        at = self.add(lengths, self.times(row, INT32.width // 8))
        found = self.load(ir.VectorType(INT32, TOGETHER), at, INT32.width // 8)
        beyond = builder.icmp_unsigned(">", found, self.spread(INT32(width), TOGETHER))
        fits = builder.icmp_unsigned("==", builder.bitcast(beyond, bits), bits(0))
        with builder.if_else(fits) as (together, longer):
            with together:
                self._sum_four(row, width, products, lengths, sums)
            with longer:
                self._sum_rows(row, self.add(row, TOGETHER), sums)

    def _sum_four(
        self, row: Value, width: int, products: Value, lengths: Value, sums: Value
    ) -> None:
        """Emit that sums of four rows are stored, of at most `width` terms each."""
        lanes, found = min(width, PART[self.itemsize]), []
        for number in range(TOGETHER):
            one = self.add(row, number)
            count = self.load_word(INT32, lengths, one)
            at = self.add(products, self.times(self.offset(one), self.itemsize))
            terms = [self._terms(at, count, lane, lanes) for lane in range(0, width, lanes)]
            # In the order of `sums`, in which STEP lanes are added at once.
            parts = min(STEP // lanes, len(terms))
            totals = (functools.reduce(self.plus, terms[part::parts]) for part in range(parts))
            found.append(functools.reduce(self.plus, totals))
        if lanes == 2 * TOGETHER and self.itemsize == 8:
            halves = [list(range(TOGETHER)), list(range(TOGETHER, 2 * TOGETHER))]
            found, lanes = [self._added(each, each, halves) for each in found], TOGETHER
        a, b, c, d = found
        if lanes == 2 * TOGETHER:
            halves = [[0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]]
            ac, bd = self._added(a, c, halves), self._added(b, d, halves)
            total = self._added(ac, bd, [[0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15]])
            total = self._added(total, total, [[0, 2, 4, 6], [1, 3, 5, 7]])
        else:
            halves = [[0, 1, 4, 5], [2, 3, 6, 7]]
            ab, cd = self._added(a, b, halves), self._added(c, d, halves)
            total = self._added(ab, cd, [[0, 2, 4, 6], [1, 3, 5, 7]])
        self.store(total, self.add(sums, self.times(row, self.itemsize)))

    def _added(self, first: Value, second: Value, lanes: list[list[int]]) -> Value:
        """Return the sum of two choices of the lanes of two vectors."""
        return self.plus(*(self.shuffle(first, second, chosen) for chosen in lanes))

    def _sum_rows(self, begin: Value, end: Value, sums: Value) -> None:
        """Emit that sums of rows of any length are stored, one after the other."""
        with self.loop(begin, end) as row:
            first, stop = self.offset(row), self.offset(self.add(row, 1))
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

    def _terms(self, at: Value, count: Value, lane: int, lanes: int) -> Value:
        """Return some products of a row from lane `lane` on, and zeros from `count` on."""
        at = self.add(at, lane * self.itemsize)
        if not HAS_FAST_MASKS:
            return self._first_lanes_of(self.load(self.vector(lanes), at), count, lane)
        mask = self.first_lanes(lanes, self.builder.trunc(count, INT32), lane)
        return self.load_some(self.vector(lanes), at, mask)

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
        # Loaded once more: to take them out of the vector would take longer.
        pointer = self.pointer(self.index_type, self.words[INDICES], first)
        for lane, index in enumerate(load_numbers(self.builder, pointer, STEP)):
            item = self.load(self.scalar, self.row_of(self.B, index, B_ROW))
            found = self.builder.insert_element(found, item, INT32(lane))
        return found


class GatheredDots(Dots):
    """The same by the processor's gathers, where these are fast."""

    def items(self, first: Value, indices: Value) -> Value:
        """Return the items of B that indices name."""
        return self.gather(self.B, indices)
