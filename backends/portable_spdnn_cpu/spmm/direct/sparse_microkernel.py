"""What products with A in CSR and in CSC share: indices are checked as they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

from portable_spdnn_cpu.activations import NONE
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.spmm.direct.job_words import (
    ACTIVATION,
    B_ROW,
    BIAS,
    BIAS_STEP,
    HAS_EPILOGUE,
    HELD,
    HOLDS_ZEROS,
    INDICES,
    INDPTR,
    OUT,
    OUT_ROW,
    VALUES,
    B,
)  # fmt: skip
from portable_spdnn_cpu.spmm.emitter import BIT, WORD, Emitter, Value

DOUBLE = ir.DoubleType()
# How far ahead entries of A are prefetched, in entries. Loads of B, which lie anywhere, keep a
# processor from doing so by itself: with a single column, 20,000 rows of 32 entries take two thirds
# of the time without it on a Zen 4, half as far ahead. From memory that takes 1.1 times as long as
# this on a Zen 5.
AHEAD = 512


class SparseMicrokernel(Emitter):
    """What both forms have in common.

    Parameters
    ----------
    builder, itemsize
        As of `Emitter`.
    index_type : llvmlite.ir.IntType
        Of offsets and indices.
    words : list of LLVM values
        Those of the job.
    sizes : tuple of int
        How many vectors a row of C has, and of how many bytes; no vectors: a single column.

    Attributes
    ----------
    column : LLVM word
        The first column.
    overlaps : bool
        Of a class: whether the last vector of a row ends where the row does, so that it may hold
        columns of the one before. Else a mask says which of its lanes count.
    """

    overlaps = False

    def __init__(
        self,
        builder: Any,
        itemsize: int,
        index_type: Value,
        words: list[Value],
        sizes: tuple[int, int],
    ) -> None:
        super().__init__(builder, itemsize)
        self.index_type, self.words = index_type, words
        self.vectors, self.vector_bytes = sizes
        self.vector_type = self.vector(self.vector_bytes // itemsize if self.vectors else 1)

    def emit(self, begin: Value, end: Value, column: Value, columns: Value) -> Value:
        """Return whether all of A that was read is within the arrays."""
        builder, words = self.builder, self.words
        self.refuse, last = (builder.append_basic_block(name) for name in ("refuse", "last"))
        self.column, shift = column, self.times(column, self.itemsize)
        self.B, self.out, self.held = (self.add(words[at], shift) for at in (B, OUT, HELD))
        self.place_last_vector(columns)
        self.holds_zeros, self.finishes = (
            builder.trunc(words[at], BIT) for at in (HOLDS_ZEROS, HAS_EPILOGUE)
        )
        self.has_residual = builder.icmp_signed("!=", words[HELD], self.zero)
        self.bounded = builder.icmp_signed("==", words[ACTIVATION], self.number(NONE))
        self.start()
        self.multiply_all(begin, end)
        builder.branch(last)
        done = builder.block
        builder.position_at_end(self.refuse)
        builder.branch(last)
        builder.position_at_end(last)
        valid = builder.phi(BIT)
        valid.add_incoming(BIT(1), done)
        valid.add_incoming(BIT(0), self.refuse)
        return valid

    def place_last_vector(self, columns: Value) -> None:
        """Set `last`, `left` and `mask` for so many columns.

        They are the last vector's distance from the first in bytes, how many of its lanes count,
        and a mask of these, or None.
        """
        if self.overlaps and self.vectors:
            end = self.times(columns, self.itemsize)
            self.last: Value | int = self.builder.sub(end, self.number(self.vector_bytes))
            self.left, self.mask = self.number(self.vector_type.count), None
            return
        before = max(0, self.vectors - 1)
        self.last = before * self.vector_bytes
        self.left = self.builder.sub(columns, self.number(before * self.vector_type.count))
        self.mask = self.lanes_below(self.left, self.vector_type.count)

    def start(self) -> None:
        """Emit what is done before all rows or columns."""

    def multiply_all(self, begin: Value, end: Value) -> None:
        """Emit rows or columns begin .. end - 1 of A."""
        with self.loop(begin, end) as number:
            self._multiply_one(number)

    def multiply_nonempty(self, begin: Value, end: Value) -> None:
        """Emit rows or columns begin .. end - 1 of A that have an entry.

        The offsets of some that follow each other are compared at once: a bit says of each whether
        it has an entry, and the processor steps from one that is set to the next. Where most have
        none that takes less time than a branch for each.
        """
        builder, together = self.builder, WORD.width
        kind, size = ir.VectorType(self.index_type, together), self.index_type.width // 8
        whole = self.whole_steps(begin, end, together)
        with self.loop(begin, whole, together) as number:
            at = self.add(self.words[INDPTR], self.times(number, size))
            filled = builder.icmp_unsigned(
                "!=", self.load(kind, at), self.load(kind, self.add(at, size))
            )
            with self.each_bit(builder.bitcast(filled, WORD)) as place:
                self._multiply_one(self.add(number, place))
        with self.loop(whole, end) as number:
            is_filled = builder.icmp_unsigned(
                "!=", self.offset(number), self.offset(self.add(number, 1))
            )
            with builder.if_then(is_filled):
                self._multiply_one(number)

    def _multiply_one(self, number: Value) -> None:
        """Emit a row or column of A."""
        self.multiply(number, self.offset(number), self.offset(self.add(number, 1)))

    @contextmanager
    def each_bit(self, bits: Value) -> Iterator[Value]:
        """Emit a loop over the numbers of the bits of a word that are set."""
        builder, left = self.builder, self.slot(WORD)
        test, body, after = (builder.append_basic_block(f"{n}_bit") for n in ("test", "each", "no"))
        builder.store(bits, left)
        builder.branch(test)
        builder.position_at_end(test)
        found = builder.load(left)
        builder.cbranch(builder.icmp_unsigned("!=", found, WORD(0)), body, after)
        builder.position_at_end(body)
        yield builder.cttz(found, BIT(1))
        builder.store(builder.and_(found, builder.sub(found, WORD(1))), left)
        builder.branch(test)
        builder.position_at_end(after)

    def offset(self, number: Value) -> Value:
        """Return where the entries of a row or column of A begin, as a word."""
        return self.load_word(self.index_type, self.words[INDPTR], number)

    def multiply(self, number: Value, first: Value, stop: Value) -> None:
        """Emit what is done for a row or column of A."""
        raise NotImplementedError

    def row_of(self, matrix: Value, number: Value, step: int) -> Value:
        """Return the address of a row of B or C, whose rows are words[step] bytes apart."""
        # An item where there is one column: a constant, which addresses are scaled by at no cost.
        apart = self.words[step] if self.vectors else self.itemsize
        return self.add(matrix, self.times(number, apart))

    def refuse_unless(self, condition: Value) -> None:
        """Go on where a condition holds; refuse A where it does not."""
        following = self.builder.append_basic_block("valid")
        branch = self.builder.cbranch(condition, following, self.refuse)
        branch.set_weights([1000, 1])  # else loops with many of them would seem to end soon
        self.builder.position_at_end(following)

    def index(self, number: Value, extent: Value | None) -> Value:
        """Return the index of an entry; if there is an extent, it is below, or A is refused."""
        index = self.load_word(self.index_type, self.words[INDICES], number)
        if extent is not None:
            self.refuse_unless(self.builder.icmp_unsigned("<", index, extent))
        return index

    def below(self, indices: Value, extent: Value) -> Value:
        """Return which of a vector of indices are below an extent."""
        narrow = self.index_type != WORD
        limit = self.builder.trunc(extent, self.index_type) if narrow else extent
        limits = self.spread(limit, indices.type.count)
        return self.builder.icmp_unsigned("<", indices, limits)

    def check_indices(self, first: Value, count: int, extent: Value) -> None:
        """Go on if the indices of so many entries are below an extent; refuse A if not."""
        builder = self.builder
        lanes = 1 << (count.bit_length() - 1)
        bits, size = ir.IntType(lanes), self.index_type.width // 8
        good = bits(-1)
        for place in sorted({0, count - lanes}):  # vectors that overlap where there are not as many
            at = self.add(self.words[INDICES], self.times(self.add(first, place), size))
            found = self.below(self.load(ir.VectorType(self.index_type, lanes), at), extent)
            good = builder.and_(good, builder.bitcast(found, bits))
        self.refuse_unless(builder.icmp_unsigned("==", good, bits(-1)))

    def entry(self, number: Value, extent: Value | None) -> tuple[Value, Value]:
        """Return the index of an entry, as `index` does, and its value spread over a vector."""
        index = self.index(number, extent)
        at = self.add(self.words[VALUES], self.times(number, self.itemsize))
        return index, self.spread(self.load(self.scalar, at), self.vector_type.count)

    def term(self, entry: Value, extent: Value | None) -> Value:
        """Return the product of an entry of A in CSR and its item of a single column of B."""
        index, factor = self.entry(entry, extent)
        [item] = self.load_row(self.row_of(self.B, index, B_ROW))
        return self.builder.fmul(factor, item)

    def add_term(self, entry: Value, extent: Value | None, item: Value) -> None:
        """Emit that an entry of A in CSC times an item is added to a single column of C."""
        index, factor = self.entry(entry, extent)
        target = self.row_of(self.out, index, OUT_ROW)
        [total] = self.load_row(target)
        self.store(self.plus(total, self.builder.fmul(factor, item)), target)

    def bias(self, row: Value) -> Value:
        """Return the bias of a row of C."""
        at = self.add(self.words[BIAS], self.times(row, self.words[BIAS_STEP]))
        return self._narrowed(self.load(DOUBLE, at))

    def bound(self, word: int) -> Value:
        """Return a bound, LOWER or UPPER."""
        return self._narrowed(self.builder.bitcast(self.words[word], DOUBLE))

    def _narrowed(self, value: Value) -> Value:
        """Return a float64 in the type of C."""
        return value if self.scalar == DOUBLE else self.builder.fptrunc(value, self.scalar)

    def whole_steps(self, first: Value, stop: Value, step: int) -> Value:
        """Return where whole steps end: `step` is a power of two."""
        return self.add(first, self.builder.and_(self.builder.sub(stop, first), self.number(-step)))

    def by_steps(
        self, first: Value, stop: Value, step: int, add: Callable[[Value, int], None]
    ) -> None:
        """Emit add(entry, number in its step) for entries by steps, and one by one at the end.

        Entries are asked for ahead where a row of B is at most BLOCK_BYTES: others take longer.
        """
        whole = self.whole_steps(first, stop, step)
        with self.loop(first, whole, step) as entry:
            if self.vectors * self.vector_bytes <= BLOCK_BYTES:
                self.ask_ahead(entry, step)
            for place in range(step):
                add(self.add(entry, place), place)
        if step > 1:
            with self.loop(whole, stop) as entry:
                add(entry, 0)

    def ask_ahead(self, entry: Value, count: int) -> None:
        """Emit that so many entries are prefetched that come AHEAD later."""
        later = self.add(entry, AHEAD)
        for word, size in ((VALUES, self.itemsize), (INDICES, self.index_type.width // 8)):
            self.prefetch_items(self.words[word], later, count, size)

    def load_row(self, address: Value, mask: Value | None = None) -> list[Value]:
        """Return the vectors of a row of B or C; of the last one the lanes that a mask names."""
        found = [
            self.load(self.vector_type, self.add(address, n * self.vector_bytes))
            for n in range(self.vectors - 1)
        ]
        last = self.add(address, self.last)
        if mask is None:
            return [*found, self.load(self.vector_type, last)]
        return [*found, self.load_some(self.vector_type, last, mask)]
