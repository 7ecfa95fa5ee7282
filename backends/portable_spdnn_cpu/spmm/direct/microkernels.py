"""Microkernels: products with A in CSR or CSC, whose structure is checked as it is read.

*Rows*, of CSR. The sums of a row of C stay in registers. An entry is an index, compared with the
rows that B has, and a value that is spread over a vector; it meets a row of B. Several chains of
sums hide the time that an addition takes where a row of B is but few vectors. Bound: about six
instructions for an entry of up to one vector; beyond, the loads of B, which lie across two cache
lines where B's rows do not start on them.

*Dots*, of CSR and a single column. B is gathered, eight entries at once, under a mask of the
indices that are within B. Bound: the gather, half a cycle or more for each entry.

*Columns*, of CSC. A row of B stays in registers, and is added, times each entry of a column of A,
to the row of C that the entry names. Rows of C are whole vectors: masked stores are not forwarded
to later loads. Bound: a load and a store of C for each vector.

An offset or index outside of the arrays ends the work before it is used as an address. An entry
that is stored twice counts twice, as in SciPy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types

from portable_spdnn_cpu.jit.compilation import intrinsic
from portable_spdnn_cpu.jit.target import VECTOR_BYTES, VECTOR_REGISTERS
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.spmm.direct.job_words import (
    B_ROW,
    ENTRIES,
    INDICES,
    INDPTR,
    OUT,
    OUT_ROW,
    REFUSED,
    ROWS,
    VALUES,
    B,
    K,
)
from portable_spdnn_cpu.spmm.emitter import BIT, INT32, WORD, Emitter, Value

CSR, CSC = (), (0,)  # constants for Numba, to which a tuple's length is part of its type
GATHERED = 8  # entries; their addresses fill a vector of 64 bytes


@intrinsic
def multiply(
    typingctx: Any,
    form: Any,
    vectors: Any,
    vector_bytes: Any,
    dtype: Any,
    index_dtype: Any,
    words: Any,
    begin: Any,
    end: Any,
    column: Any,
    columns: Any,
) -> Any:
    """Multiply rows, or columns, begin .. end - 1 of A, for some columns of B and C.

    Returns false where A's structure is invalid; C is not complete then.

    Parameters
    ----------
    form : tuple
        CSR or CSC: of A. In CSC rows of C are whole vectors.
    vectors, vector_bytes : int, constants
        How many vectors, of how many bytes, so many columns take, of which only the last may be
        partly filled. No vectors: a single column, which is gathered in CSR.
    dtype, index_dtype : types
        Of values, and of offsets and indices.
    words : pointer
        To those of the job.
    begin, end, column, columns : int
    """
    if not all(isinstance(number, types.IntegerLiteral) for number in (vectors, vector_bytes)):
        return None  # Numba asks again with constants
    emitter = _Rows if len(form) == len(CSR) else _Columns
    sizes = vectors.literal_value, vector_bytes.literal_value
    itemsize, index_bits = dtype.dtype.bitwidth // 8, index_dtype.dtype.bitwidth
    signature = types.boolean(
        form, vectors, vector_bytes, dtype, index_dtype, words, *[types.intp] * 4
    )

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        given = [builder.load(builder.gep(args[5], [WORD(number)])) for number in range(REFUSED)]
        return emitter(builder, itemsize, ir.IntType(index_bits), given, sizes).emit(*args[6:])

    return signature, codegen


class _Form(Emitter):
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
        How many vectors a row of C has, and of how many bytes.
    """

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
        shift = self.times(column, self.itemsize)
        self.B, self.out = self.add(words[B], shift), self.add(words[OUT], shift)
        before = max(0, self.vectors - 1) * self.vector_type.count
        self.mask = self.first_lanes(
            self.vector_type.count, builder.sub(columns, self.number(before))
        )
        self.start()
        with self.loop(begin, end) as number:
            first = self.load_word(self.index_type, words[INDPTR], number)
            stop = self.load_word(self.index_type, words[INDPTR], self.add(number, 1))
            # As unsigned numbers negative ones are large.
            self.refuse_unless(builder.icmp_unsigned("<=", first, stop))
            self.refuse_unless(builder.icmp_unsigned("<=", stop, words[ENTRIES]))
            self.multiply(number, first, stop)
        builder.branch(last)
        done = builder.block
        builder.position_at_end(self.refuse)
        builder.branch(last)
        builder.position_at_end(last)
        valid = builder.phi(BIT)
        valid.add_incoming(BIT(1), done)
        valid.add_incoming(BIT(0), self.refuse)
        return valid

    def start(self) -> None:
        """Emit what is done before all rows or columns."""

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
        self.builder.cbranch(condition, following, self.refuse)
        self.builder.position_at_end(following)

    def entry(self, number: Value, extent: Value) -> tuple[Value, Value]:
        """Return the index of an entry, checked, and its value spread over a vector."""
        index = self.load_word(self.index_type, self.words[INDICES], number)
        self.refuse_unless(self.builder.icmp_unsigned("<", index, extent))
        at = self.add(self.words[VALUES], self.times(number, self.itemsize))
        return index, self.spread(self.load(self.scalar, at), self.vector_type.count)

    def by_steps(
        self, first: Value, stop: Value, step: int, add: Callable[[Value, int], None]
    ) -> None:
        """Emit add(entry, number in its step) for entries by steps, and one by one at the end."""
        whole = self.add(
            first, self.builder.and_(self.builder.sub(stop, first), self.number(-step))
        )
        with self.loop(first, whole, step) as entry:
            for place in range(step):
                add(self.add(entry, place), place)
        if step > 1:
            with self.loop(whole, stop) as entry:
                add(entry, 0)

    def load_row(self, address: Value, mask: Value | None = None) -> list[Value]:
        """Return the vectors of a row of B or C; of the last one the lanes that a mask names."""
        *whole, last = (
            self.add(address, n * self.vector_bytes) for n in range(max(1, self.vectors))
        )
        found = [self.load(self.vector_type, at) for at in whole]
        if mask is None:
            return [*found, self.load(self.vector_type, last)]
        return [*found, self.load_some(self.vector_type, last, mask)]


class _Columns(_Form):
    """Emits the products of columns of A."""

    def start(self) -> None:
        with self.loop(self.zero, self.words[ROWS]) as row:
            zeros = [ir.Constant(self.vector_type, None)] * max(1, self.vectors)
            self._store(zeros, self.row_of(self.out, row, OUT_ROW))

    def multiply(self, number: Value, first: Value, stop: Value) -> None:
        mask = self.mask if self.vectors else None
        row = self.load_row(self.row_of(self.B, number, B_ROW), mask)

        def add_entry(entry: Value, _: int) -> None:
            index, factor = self.entry(entry, self.words[ROWS])
            target = self.row_of(self.out, index, OUT_ROW)
            both = zip(row, self.load_row(target), strict=True)
            self._store([self.multiply_add(factor, found, total) for found, total in both], target)

        self.by_steps(first, stop, 4, add_entry)

    def _store(self, values: list[Value], address: Value) -> None:
        for number, value in enumerate(values):
            self.store(value, self.add(address, number * self.vector_bytes))


class _Rows(_Form):
    """Emits the products of rows of A."""

    def multiply(self, number: Value, first: Value, stop: Value) -> None:
        target = self.row_of(self.out, number, OUT_ROW)
        if not self.vectors:
            self.store(self._dot(first, stop), target)
            return
        *whole, last = self._sums(first, stop)
        for place, total in enumerate(whole):
            self.store(total, self.add(target, place * self.vector_bytes))
        self.store_some(last, self.add(target, len(whole) * self.vector_bytes), self.mask)

    def _sums(self, first: Value, stop: Value) -> list[Value]:
        """Return the sums of a row of C."""
        chains = 4
        if self.vector_bytes == BLOCK_BYTES:
            registers = self.vectors * BLOCK_BYTES // VECTOR_BYTES
            chains = 2 if self.vectors <= 4 and 2 * registers <= VECTOR_REGISTERS - 4 else 1
        slots = [[self.slot(self.vector_type) for _ in range(self.vectors)] for _ in range(chains)]

        def add_entry(number: Value, chain: int) -> None:
            index, factor = self.entry(number, self.words[K])
            row = self.load_row(self.row_of(self.B, index, B_ROW), self.mask)
            for slot, found in zip(slots[chain], row, strict=True):
                total = self.multiply_add(factor, found, self.builder.load(slot))
                self.builder.store(total, slot)

        for slot in (slot for chain in slots for slot in chain):
            self.builder.store(ir.Constant(self.vector_type, None), slot)
        self.by_steps(first, stop, chains, add_entry)
        return [self.sum_of(list(chain)) for chain in zip(*slots, strict=True)]

    def _dot(self, first: Value, stop: Value) -> Value:
        """Return the sum of a row times a single column."""
        builder, kind = self.builder, self.vector(GATHERED)
        indices = ir.VectorType(self.index_type, GATHERED)
        slots = [self.slot(kind), self.slot(kind)]
        everywhere = ir.VectorType(BIT, GATHERED)
        within = self.slot(everywhere)
        k = self.words[K]
        limits = self.spread(
            k if self.index_type == WORD else builder.trunc(k, self.index_type), GATHERED
        )

        def add_entries(entry: Value, chain: int, mask: Value | None) -> None:
            at = self.add(self.words[INDICES], self.times(entry, self.index_type.width // 8))
            value_at = self.add(self.words[VALUES], self.times(entry, self.itemsize))
            if mask is None:
                found, values = self.load(indices, at), self.load(kind, value_at)
            else:
                found = self.load_some(indices, at, mask)
                values = self.load_some(kind, value_at, mask)
            good = builder.icmp_unsigned("<", found, limits)
            builder.store(builder.and_(builder.load(within), good), within)
            items = self.gather(self.B, found, good if mask is None else builder.and_(good, mask))
            total = self.multiply_add(values, items, builder.load(slots[chain]))
            builder.store(total, slots[chain])

        for slot in slots:
            builder.store(ir.Constant(kind, None), slot)
        builder.store(ir.Constant(everywhere, [1] * GATHERED), within)
        step = len(slots) * GATHERED
        whole = self.add(first, builder.and_(builder.sub(stop, first), self.number(-step)))
        with self.loop(first, whole, step) as entry:
            for chain in range(len(slots)):
                add_entries(self.add(entry, chain * GATHERED), chain, None)
        with self.loop(whole, stop, GATHERED) as entry:
            add_entries(entry, 0, self.first_lanes(GATHERED, builder.sub(stop, entry)))
        bits = ir.IntType(GATHERED)
        self.refuse_unless(
            builder.icmp_unsigned("==", builder.bitcast(builder.load(within), bits), bits(-1))
        )
        total = self.sum_of(slots)
        while total.type.count > 1:
            half = total.type.count // 2
            parts = (list(range(start, start + half)) for start in (0, half))
            total = self.plus(*(self.shuffle(total, total, lanes) for lanes in parts))
        return builder.extract_element(total, INT32(0))
