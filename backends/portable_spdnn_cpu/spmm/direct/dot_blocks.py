"""Products of rows of A, in CSR, with a single column of B: rows of few entries in blocks.

All entries of a block are multiplied first, whatever row they are of, and their products kept;
then four rows at a time are summed, each in as many steps as nearly all rows of the block take, of
which masks leave out what is of other rows. The few that are longer are summed after that. So
branches depend on blocks and not on rows, on which they would be predicted in a benchmark alone.
Bound: some five instructions for an entry and ten for a row of up to eight, and loads of products,
which lie across two cache lines. However a row is summed, its sum is the same, but for the bits of
a NaN.
"""

from __future__ import annotations

import functools
import itertools

from llvmlite import ir

from portable_spdnn_cpu.jit.target import HAS_FAST_MASKS
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.machine.cpu_info import cache_bytes
from portable_spdnn_cpu.spmm.direct.dots import MOST_TERMS, STEP, Dots
from portable_spdnn_cpu.spmm.direct.job_words import ENTRIES, INDPTR, OUT_ROW, ROWS, K
from portable_spdnn_cpu.spmm.emitter import BYTE, WORD, Value

TOGETHER = 4  # rows that are summed together
WIDTHS = 4, 8, 16, 24, MOST_TERMS  # entries that each of them may have
# A width fits a block of which at most one row in so many has more entries.
ROWS_FOR_ONE_BEYOND = 16
# Rows of a block are summed together if they have at most MOST entries on average, by the bytes of
# a value, or none has more than SHORT, as measured on a Zen 4.
MOST, SHORT = {4: 24, 8: 20}, 24
LENGTHS = 16  # rows whose lengths are looked at together, and of a small block
# Rows of a block: LENGTHS where those of A have more entries than LONG on average, or FAR_LONG
# where B is larger than the first-level cache. Products of more rows would leave that cache before
# they are summed.
BLOCK_ROWS, LONG, FAR_LONG = WORD.width, 12, 4  # a bit of a word for each row
BLOCK_ENTRIES = BLOCK_ROWS * SHORT  # at most: SHORT is not below MOST
# Terms of a sum that are loaded together, by the bytes of a term: those of a step where masks are
# fast, else as many as a register of 32 bytes holds.
PART = {4: STEP, 8: STEP if HAS_FAST_MASKS else STEP // 2}


class DotBlocks(Dots):
    """Emits the products of rows of A with a column, in blocks where rows are short."""

    def start(self) -> None:
        """Emit memory for what a block needs."""
        super().start()
        # Vectors that begin with the last products of a block reach beyond them.
        self.kept, self.block_sums = (
            self.memory(self.scalar, count) for count in (BLOCK_ENTRIES + MOST_TERMS, BLOCK_ROWS)
        )
        self.lengths = self.memory(BYTE, BLOCK_ROWS)
        # A block of fewer rows does not set them all, and all are looked at.
        self.store(ir.Constant(ir.VectorType(BYTE, BLOCK_ROWS), None), self.lengths)

    def multiply_all(self, begin: Value, end: Value) -> None:
        """Emit rows of C."""
        builder = self.builder
        size_of_B = self.times(self.words[K], self.itemsize)
        is_far = builder.icmp_unsigned(">", size_of_B, self.number(cache_bytes(1)))
        long = builder.select(is_far, self.number(FAR_LONG), self.number(LONG))
        limit = builder.mul(self.words[ROWS], long)
        are_long = builder.icmp_unsigned(">", self.words[ENTRIES], limit)
        block_rows = builder.select(are_long, self.number(LENGTHS), self.number(BLOCK_ROWS))
        with self.loop(begin, end, block_rows) as row:
            self._multiply_block(row, self.least(self.add(row, block_rows), end))

    def _multiply_block(self, begin: Value, end: Value) -> None:
        """Emit rows of C, at most BLOCK_ROWS."""
        builder = self.builder
        first, stop, rows = self.offset(begin), self.offset(end), builder.sub(end, begin)
        self._keep_lengths(begin, end)
        most = self.times(rows, MOST[self.itemsize])
        few = builder.icmp_unsigned("<=", builder.sub(stop, first), most)
        short = builder.icmp_unsigned("==", self._rows_beyond(SHORT, rows), self.zero)
        with builder.if_else(builder.or_(few, short)) as (together, one_by_one):
            with together:
                out = self.row_of(self.out, begin, OUT_ROW)
                sums = builder.select(self.finishes, self.block_sums, out)
                sums = builder.sub(sums, self.times(begin, self.itemsize))
                self._sum_block(begin, end, first, stop, sums)
                with builder.if_then(self.finishes), self.loop(begin, end) as row:
                    [total] = self.load_row(self.add(sums, self.times(row, self.itemsize)))
                    target = self.row_of(self.out, row, OUT_ROW)
                    self.store(self._finished(row, [total])[0], target)
            with one_by_one:
                super().multiply_all(begin, end)

    def _keep_lengths(self, begin: Value, end: Value) -> None:
        """Emit that lengths of rows are kept, as MOST_TERMS + 1 where they are more."""
        builder, size = self.builder, self.index_type.width // 8

        def keep(row: Value, count: int) -> None:
            kind = ir.VectorType(self.index_type, count)
            at = self.add(self.words[INDPTR], self.times(row, size))
            lengths = builder.sub(self.load(kind, self.add(at, size)), self.load(kind, at))
            most = self.spread(self.index_type(MOST_TERMS + 1), count)
            lengths = builder.select(builder.icmp_unsigned("<", lengths, most), lengths, most)
            lengths = builder.trunc(lengths, ir.VectorType(BYTE, count))
            self.store(lengths, self.add(self.lengths, builder.sub(row, begin)))

        whole = self.whole_steps(begin, end, LENGTHS)
        with self.loop(begin, whole, LENGTHS) as row:
            keep(row, LENGTHS)
        with self.loop(whole, end) as row:
            keep(row, 1)

    def _rows_beyond(self, width: int, rows: Value) -> Value:
        """Return a bit for each of a block's rows, set where it has more entries than `width`."""
        builder = self.builder
        lengths = self.load(ir.VectorType(BYTE, BLOCK_ROWS), self.lengths)
        found = builder.icmp_unsigned(">", lengths, self.spread(BYTE(width), BLOCK_ROWS))
        every = builder.lshr(WORD(-1), builder.sub(WORD(BLOCK_ROWS), rows))
        return builder.and_(builder.bitcast(found, WORD), every)

    def _sum_block(self, begin: Value, end: Value, first: Value, stop: Value, sums: Value) -> None:
        """Emit that sums of rows of a block are stored, whose entries are first .. stop - 1."""
        builder, rows = self.builder, self.builder.sub(end, begin)
        products = builder.sub(self.kept, self.times(first, self.itemsize))
        self._keep_products(first, stop, products)
        whole = self.whole_steps(begin, end, TOGETHER)
        most_beyond = builder.udiv(rows, WORD(ROWS_FOR_ONE_BEYOND))
        left = self.slot(WORD)  # rows that are still to be summed

        def emit(width: int, *wider: int) -> None:
            beyond = self._rows_beyond(width, rows)
            if not wider:
                sum_all(width, beyond)
                return
            fits = builder.icmp_unsigned("<=", builder.ctpop(beyond), most_beyond)
            with builder.if_else(fits) as (short, longer):
                with short:
                    sum_all(width, beyond)
                with longer:
                    emit(*wider)

        def sum_all(width: int, beyond: Value) -> None:
            with self.loop(begin, whole, TOGETHER) as row:
                self._sum_four(row, width, products, sums)
            builder.store(beyond, left)

        def sum_row(row: Value) -> None:
            def terms(entry: Value) -> Value:
                at = self.add(products, self.times(entry, self.itemsize))
                return self.load(self.vector(STEP), at)

            ends = self.offset(row), self.offset(self.add(row, 1))
            total = self.sum_by_steps(*ends, terms, terms)
            self.store(total, self.add(sums, self.times(row, self.itemsize)))

        if HAS_FAST_MASKS:
            several = self._rows_beyond(1, rows)
            fits = builder.icmp_unsigned("<=", builder.ctpop(several), most_beyond)
            with builder.if_else(fits) as (single, longer):
                with single:
                    self._sum_single_entries(begin, whole, several, products, sums)
                    builder.store(self._rows_beyond(WIDTHS[0], rows), left)
                with longer:
                    emit(*WIDTHS)
        else:
            emit(*WIDTHS)
        with self.each_bit(builder.load(left)) as place:
            sum_row(self.add(begin, place))
        with self.loop(whole, end) as row:
            sum_row(row)

    def _sum_single_entries(
        self, begin: Value, end: Value, several: Value, products: Value, sums: Value
    ) -> None:
        """Emit that sums of rows are stored that nearly all have a single entry, or none.

        The products of such rows are those sums, with zeros between them where rows have none.
        `several` has a bit for each row of more entries, of which the first WIDTHS[0] are summed
        here; whoever calls sums longer rows again.
        """
        builder, lanes = self.builder, BLOCK_BYTES // self.itemsize
        whole = self.whole_steps(begin, end, lanes)
        with self.loop(begin, whole, lanes) as row:
            place = builder.sub(row, begin)
            others = builder.trunc(builder.lshr(several, place), ir.IntType(lanes))
            none_other = builder.icmp_unsigned("==", others, ir.IntType(lanes)(0))
            with builder.if_else(none_other) as (single, mixed):
                with single:
                    kind = ir.VectorType(BYTE, lanes)
                    lengths = self.load(kind, self.add(self.lengths, place))
                    mask = builder.icmp_unsigned("!=", lengths, ir.Constant(kind, None))
                    at = self.add(products, self.times(self.offset(row), self.itemsize))
                    total = self.load_expanded(self.vector(lanes), at, mask)
                    total = self.plus(total, ir.Constant(total.type, None))  # +0 in place of -0
                    self.store(total, self.add(sums, self.times(row, self.itemsize)))
                with mixed, self.loop(row, self.add(row, lanes), TOGETHER) as four:
                    self._sum_four(four, WIDTHS[0], products, sums)
        with self.loop(whole, end, TOGETHER) as row:
            self._sum_four(row, WIDTHS[0], products, sums)

    def _keep_products(self, first: Value, stop: Value, products: Value) -> None:
        """Emit that products of entries are kept, and maybe those of some that follow."""
        builder = self.builder
        within = self.least(stop, self.add(self.last_step, 1))
        within = builder.select(builder.icmp_signed("<", first, within), within, first)
        with self.loop(first, within, STEP) as entry:
            self.ask_ahead(entry, STEP)
            found = self.products(entry)
            self.store(found, self.add(products, self.times(entry, self.itemsize)))
        rest = self.whole_steps(first, self.add(within, STEP - 1), STEP)
        self.keep_each(rest, stop, products)

    def _sum_four(self, row: Value, width: int, products: Value, sums: Value) -> None:
        """Emit that sums of four rows are stored, of at most `width` terms each."""
        lanes, found = min(width, PART[self.itemsize]), []
        offsets = [self.offset(self.add(row, number)) for number in range(TOGETHER + 1)]
        for first, stop in itertools.pairwise(offsets):
            count = self.builder.sub(stop, first)
            at = self.add(products, self.times(first, self.itemsize))
            terms = [self._terms(at, count, lane, lanes) for lane in range(0, width, lanes)]
            # In the order of `sum_by_steps`, in which STEP lanes are added at once.
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
        total = self.plus(total, ir.Constant(total.type, None))  # +0 where all terms are -0
        self.store(total, self.add(sums, self.times(row, self.itemsize)))

    def _added(self, first: Value, second: Value, lanes: list[list[int]]) -> Value:
        """Return the sum of two choices of the lanes of two vectors."""
        return self.plus(*(self.shuffle(first, second, chosen) for chosen in lanes))

    def _terms(self, at: Value, count: Value, lane: int, lanes: int) -> Value:
        """Return some products of a row from lane `lane` on, and zeros from `count` on."""
        terms = self.load(self.vector(lanes), self.add(at, lane * self.itemsize))
        return self.first_lanes_of(terms, count, lane)
