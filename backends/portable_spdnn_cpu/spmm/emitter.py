"""Emitting LLVM code with addresses as numbers: what generators build on.

No part of it knows Numba's types, so that a test can assemble the code for any processor.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from portable_spdnn_cpu.jit.intrinsics import prefetch_line
from portable_spdnn_cpu.jit.loops import loop
from portable_spdnn_cpu.jit.vectors import (
    broadcast,
    call,
    load_first,
    load_masked,
    multiply_add,
    store_first,
    store_masked,
)
from portable_spdnn_cpu.layout.large_results import store_nontemporal
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES

Value = Any  # an LLVM value or type; llvmlite has no types
WORD = ir.IntType(64)
INT32, INT16, BYTE, BIT = (ir.IntType(bits) for bits in (32, 16, 8, 1))


class Emitter:
    """A builder with the operations of the generators. Addresses and distances are in bytes.

    Parameters
    ----------
    builder : llvmlite.ir.IRBuilder
    itemsize : int
        Bytes of a value: 4 or 8.
    """

    def __init__(self, builder: Any, itemsize: int) -> None:
        self.builder, self.itemsize = builder, itemsize
        self.scalar = ir.FloatType() if itemsize == 4 else ir.DoubleType()
        self.zero = self.number(0)

    def number(self, value: int) -> Value:
        """Return a constant word."""
        return ir.Constant(WORD, value)

    def add(self, first: Value, second: Value | int) -> Value:
        """Return the sum of words, or of a word and a constant."""
        second = self.number(second) if isinstance(second, int) else second
        return self.builder.add(first, second)

    def times(self, first: Value, second: Value | int) -> Value:
        """Return the product of words, or of a word and a constant."""
        second = self.number(second) if isinstance(second, int) else second
        return self.builder.mul(first, second)

    def vector(self, lanes: int) -> Value:
        """Return the type of a vector of values."""
        return ir.VectorType(self.scalar, lanes)

    def load(self, kind: Value, address: Value, align: int = 1) -> Value:
        """Load what is at an address; `align`: what the address is known to be a multiple of."""
        pointer = self.builder.inttoptr(address, kind.as_pointer())
        return self.builder.load(pointer, align=align)

    def pointer(self, kind: Value, base: Value, index: Value) -> Value:
        """Return a pointer to item `index` of an array of a type at an address."""
        return self.builder.gep(self.builder.inttoptr(base, kind.as_pointer()), [index])

    def load_word(self, kind: Value, base: Value, index: Value | int) -> Value:
        """Load item `index` of an array of unsigned integers, as a word."""
        size = kind.width // 8
        at = self.add(base, size * index if isinstance(index, int) else self.times(index, size))
        found = self.load(kind, at, size)
        return found if kind == WORD else self.builder.zext(found, WORD)

    def store(self, value: Value, address: Value, align: int = 1) -> None:
        """Store a value at an address."""
        pointer = self.builder.inttoptr(address, value.type.as_pointer())
        self.builder.store(value, pointer, align=align)

    def load_first(self, kind: Value, address: Value, count: int) -> Value:
        """Load the first `count` lanes of a vector, and zeros; no byte of others is touched."""
        pointer = self.builder.inttoptr(address, kind.as_pointer())
        return load_first(self.builder, kind, pointer, self.number(count))

    def store_nontemporal(self, value: Value, address: Value) -> None:
        """Store a vector to an address that is a multiple of its bytes, by a non-temporal store."""
        pointer = self.builder.inttoptr(address, value.type.as_pointer())
        store_nontemporal(self.builder, value, pointer)

    def store_first(self, value: Value, address: Value, count: Value | int) -> None:
        """Store the first `count` lanes of a vector; no byte of others is touched."""
        pointer = self.builder.inttoptr(address, self.scalar.as_pointer())
        store_first(self.builder, value, pointer, count)

    def store_some(self, value: Value, address: Value, mask: Value) -> None:
        """Store the lanes of a vector that a mask names; no byte of others is touched."""
        pointer = self.builder.inttoptr(address, value.type.as_pointer())
        store_masked(self.builder, value, pointer, mask)

    def prefetch(self, address: Value, written: bool = False) -> None:
        """Prefetch the cache line of an address, which may be of no array.

        `written`: whether it is to be written.
        """
        prefetch_line(self.builder, self.builder.inttoptr(address, BYTE.as_pointer()), written)

    def prefetch_items(self, array: Value, first: Value, count: int, size: int) -> None:
        """Begin to load the cache lines of so many items, of so many bytes, from a number on.

        `array` is the address of the first item. Lines beyond its end do no harm.
        """
        start = self.add(array, self.times(first, size))
        for line in range(0, count * size, BLOCK_BYTES):
            self.prefetch(self.add(start, line))

    def lanes_below(self, count: Value, lanes: int, start: int = 0) -> Value:
        """Return a mask of lanes whose numbers, from `start` on, are below `count`, an integer."""
        numbers = ir.Constant(ir.VectorType(count.type, lanes), list(range(start, start + lanes)))
        return self.builder.icmp_signed("<", numbers, self.spread(count, lanes))

    def load_some(self, kind: Value, address: Value, mask: Value) -> Value:
        """Load the lanes that a mask names, and zeros; no byte of others is touched."""
        pointer = self.builder.inttoptr(address, kind.as_pointer())
        return load_masked(self.builder, kind, pointer, mask)

    def load_expanded(self, kind: Value, address: Value, mask: Value) -> Value:
        """Load values that lie one after the other to the lanes that a mask names, zeros to others.

        By an instruction of AVX-512; LLVM emits a branch for each lane where there is none.
        """
        pointer = self.builder.inttoptr(address, kind.element.as_pointer())
        operands = [pointer, mask, ir.Constant(kind, None)]
        function = ir.FunctionType(kind, [operand.type for operand in operands])
        name = f"llvm.masked.expandload.v{kind.count}f{8 * self.itemsize}"
        return self.call(name, function, operands)

    def gather(self, base: Value, positions: Value) -> Value:
        """Gather the items at positions after an address, by the processor's instruction."""
        lanes = positions.type.count
        words = ir.VectorType(WORD, lanes)
        if positions.type != words:
            positions = self.builder.zext(positions, words)
        distances = self.builder.mul(positions, ir.Constant(words, [self.itemsize] * lanes))
        addresses = self.builder.add(self.spread(base, lanes), distances)
        pointers = ir.VectorType(self.scalar.as_pointer(), lanes)
        kind = self.vector(lanes)
        every = ir.Constant(ir.VectorType(BIT, lanes), [1] * lanes)
        none = ir.Constant(kind, ir.Undefined)
        operands = [self.builder.inttoptr(addresses, pointers), INT32(self.itemsize), every, none]
        function = ir.FunctionType(kind, [operand.type for operand in operands])
        name = f"llvm.masked.gather.v{lanes}f{8 * self.itemsize}.v{lanes}p0"
        return self.call(name, function, operands)

    def load_each(self, base: Value, positions: list[Value]) -> Value:
        """Load the items at positions after an address, one by one, into the lanes of a vector."""
        found = ir.Constant(self.vector(len(positions)), ir.Undefined)
        for lane, position in enumerate(positions):
            item = self.load(self.scalar, self.add(base, self.times(position, self.itemsize)))
            found = self.builder.insert_element(found, item, INT32(lane))
        return found

    def call(self, name: str, kind: Value, arguments: list[Value]) -> Value:
        """Call a function or instruction of LLVM's by name."""
        return call(self.builder, name, kind, arguments)

    def spread(self, value: Value, lanes: int) -> Value:
        """Return a vector of which each lane holds a value."""
        return broadcast(self.builder, ir.VectorType(value.type, lanes), value)

    def shuffle(self, first: Value, second: Value, lanes: list[int]) -> Value:
        """Return lanes of two vectors, those of the second numbered after the first's."""
        chosen = ir.Constant(ir.VectorType(INT32, len(lanes)), lanes)
        return self.builder.shuffle_vector(first, second, chosen)

    def interleave(self, vectors: list[Value]) -> list[Value]:
        """Return the items of vectors by turns: the first of each, then the second of each, ...

        As many vectors as were given, a power of two: a perfect shuffle for each factor of 2.
        """
        lanes, half = vectors[0].type.count, len(vectors) // 2
        low = [lane // 2 + lanes * (lane % 2) for lane in range(lanes)]
        high = [lane + lanes // 2 for lane in low]
        for _ in range(half.bit_length()):
            pairs = zip(vectors[:half], vectors[half:], strict=True)
            vectors = [self.shuffle(*pair, chosen) for pair in pairs for chosen in (low, high)]
        return vectors

    def plus(self, first: Value, second: Value) -> Value:
        """Return the sum of values."""
        return self.builder.fadd(first, second)

    def multiply_add(self, first: Value, second: Value, total: Value) -> Value:
        """Return first x second + total."""
        return multiply_add(self.builder, first, second, total)

    def sum_of(self, slots: list[Value]) -> Value:
        """Return the sum of what some slots hold, as many as a power of two."""
        terms = [self.builder.load(slot) for slot in slots]
        while len(terms) > 1:  # by pairs: so that additions do not wait for each other
            terms = [self.plus(*pair) for pair in zip(terms[::2], terms[1::2], strict=True)]
        return terms[0]

    def lane_sum(self, total: Value) -> Value:
        """Return the sum of a vector's lanes, as many as a power of two, as a vector of one."""
        while total.type.count > 1:  # by halves
            half = total.type.count // 2
            parts = (list(range(start, start + half)) for start in (0, half))
            total = self.plus(*(self.shuffle(total, total, lanes) for lanes in parts))
        return total

    def slot(self, kind: Value) -> Value:
        """Return a place on the stack, which LLVM makes a register where it can.

        It is zero where the function begins.
        """
        return cgutils.alloca_once(self.builder, kind)

    def memory(self, kind: Value, count: int) -> Value:
        """Return the address of an array on the stack, of so many items that are not set.

        It starts on a cache line.
        """
        with self.builder.goto_entry_block():  # not in a loop, which would take more each time
            slot = self.builder.alloca(ir.ArrayType(kind, count))
            slot.align = BLOCK_BYTES
            return self.address_of(slot)

    def address_of(self, slot: Value) -> Value:
        """Return the address of a place on the stack."""
        return self.builder.ptrtoint(slot, WORD)

    def loop(
        self, begin: Value, end: Value, step: Value | int = 1
    ) -> AbstractContextManager[Value]:
        """Emit a loop over begin, begin + step, ... below `end`, words all."""
        step = self.number(step) if isinstance(step, int) else step
        return loop(self.builder, begin, end, step)

    def least(self, first: Value, second: Value) -> Value:
        """Return the smaller of two signed words."""
        return self.builder.select(self.builder.icmp_signed("<", first, second), first, second)
