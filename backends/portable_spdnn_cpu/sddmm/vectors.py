"""Emitters of LLVM code over blocks of 16 numbers, whatever vectors the processor has.

LLVM splits a block into the processor's own vectors: one for float32 with AVX-512, two with AVX2,
four for float64 with AVX2. How many blocks a microkernel keeps in registers at once follows from
that: see `portable_spdnn_cpu.sddmm.register_tile`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from llvmlite import ir
from numba.core import cgutils, types

from portable_spdnn_cpu.activations import EXPM1
from portable_spdnn_cpu.jit.target import VECTOR_BYTES
from portable_spdnn_cpu.jit.vectors import broadcast, load_first, multiply_add, store_first

Value = Any  # an LLVM value; llvmlite has no types
LANES = 16
WORD = types.intp
INT32 = ir.IntType(32)


class Exponential(NamedTuple):
    """Constants of exp(x) in one type; see `Blocks.exponential`.

    Attributes
    ----------
    least : float
        Where the power of two becomes 0.
    rounder : float
        A number whose last place is 1.
    ln2_high, ln2_low : float
        ln 2 in two parts; the first has so few digits that its multiples are exact.
    terms : tuple of float
        exp(r) = 1 + r + r^2 (terms[0] r^k + ... + terms[k]).
    exponent_bias, mantissa_bits : int
        Of the type.
    """

    least: float
    rounder: float
    ln2_high: float
    ln2_low: float
    terms: tuple[float, ...]
    exponent_bias: int
    mantissa_bits: int


# By the bytes of a number. In float64 the Taylor series, whose error at r = ln(2) / 2 is 1e-17.
EXPONENTIALS = {
    4: Exponential(
        -88.0, 1.5 * 2**23, 0.693359375, -2.12194440e-4, tuple(map(float, EXPM1)), 127, 23
    ),
    8: Exponential(
        -709.0, 1.5 * 2**52, 6.93147180369123816490e-01, 1.90821492927058770002e-10,
        tuple(1 / math.factorial(k) for k in range(14, 1, -1)), 1023, 52,
    ),
}  # fmt: skip


class Blocks:
    """Emits loads, stores and arithmetic on blocks of one type.

    Parameters
    ----------
    context, builder
        Numba's target context and llvmlite's builder.
    element
        Numba's type of a number: float32 or float64.
    """

    def __init__(self, context: Any, builder: Any, element: Any) -> None:
        self.context, self.builder = context, builder
        self.scalar = context.get_value_type(element)
        self.itemsize = element.bitwidth // 8
        self.vector = ir.VectorType(self.scalar, LANES)
        self.zero = ir.Constant(self.vector, None)
        self.least = self.constant(-math.inf)

    def data(self, kind: Any, array: Value) -> Value:
        """Return the pointer to the first item of an array."""
        return self.context.make_array(kind)(self.context, self.builder, array).data

    def at(self, pointer: Value, offset: Value, shift: int = 0) -> Value:
        """Return a pointer `offset` + `shift` items further on."""
        return self.builder.gep(pointer, [self.add(offset, shift) if shift else offset])

    def add(self, word: Value, number: int) -> Value:
        """Return a word plus a constant."""
        return self.builder.add(word, ir.Constant(word.type, number))

    def times(self, word: Value, number: int) -> Value:
        """Return a word times a constant."""
        return self.builder.mul(word, ir.Constant(word.type, number))

    def load_word(self, pointer: Value) -> Value:
        """Load a number that is not negative, of an integer type up to 64 bits."""
        return self.builder.zext(self.builder.load(pointer), ir.IntType(64))

    def load(self, pointer: Value) -> Value:
        """Load the block that begins at a number, aligned as numbers are."""
        kind = self.vector.as_pointer()
        return self.builder.load(self.builder.bitcast(pointer, kind), align=self.itemsize)

    def store(self, value: Value, pointer: Value) -> None:
        """Store a block; see `load`."""
        kind = self.vector.as_pointer()
        self.builder.store(value, self.builder.bitcast(pointer, kind), align=self.itemsize)

    def store_first(self, value: Value, pointer: Value, count: Value) -> None:
        """Store the first `count` lanes of a block, or of a part of one; nothing beyond them."""
        store_first(self.builder, value, pointer, count, self.itemsize)

    def load_first(self, pointer: Value, count: Value, lanes: int = LANES) -> Value:
        """Load the first `count` lanes of a block, or of a part of one; zeros follow, not read."""
        vector = ir.VectorType(self.scalar, lanes)
        return load_first(self.builder, vector, pointer, count, self.itemsize)

    def spread(self, scalar: Value) -> Value:
        """Return a block of which each lane holds a number."""
        return broadcast(self.builder, self.vector, scalar)

    def constant(self, value: float) -> Value:
        """Return a block of a constant."""
        return ir.Constant(self.vector, [value] * LANES)

    def sums(self, rows: int, blocks: int) -> list[list[Value]]:
        """Emit zeros into stack slots, which LLVM promotes to registers, and return the slots."""
        return [
            [cgutils.alloca_once_value(self.builder, self.zero) for _ in range(blocks)]
            for _ in range(rows)
        ]

    def multiply_add(self, a: Value, b: Value, c: Value) -> Value:
        """Return a b + c, rounded once where the processor can."""
        return multiply_add(self.builder, a, b, c)

    def larger(self, a: Value, b: Value) -> Value:
        """Return the larger of each lane; b where one is NaN."""
        return self.builder.select(self.builder.fcmp_ordered(">", a, b), a, b)

    def total(self, value: Value) -> Value:
        """Return the sum of a block's lanes."""
        while value.type.count > 1:
            value = self.builder.fadd(*self._halves(value))
        return self.builder.extract_element(value, INT32(0))

    def largest(self, value: Value) -> Value:
        """Return the largest of a block's lanes, which hold no NaN."""
        while value.type.count > 1:
            value = self.larger(*self._halves(value))
        return self.builder.extract_element(value, INT32(0))

    def lane_sums(self, vectors: list[Value]) -> Value:
        """Return the sums of the lanes of each of four vectors, of four lanes or more, as four.

        Of two vectors that become one, each lane of the result takes two lanes of one of them, and
        a lane's number tells of which; then the quarters are added up.
        """
        lanes = vectors[0].type.count
        kind = ir.VectorType(INT32, lanes)
        for span in (2, 1):
            second = [lanes if lane & span else 0 for lane in range(lanes)]
            own = ir.Constant(kind, [lane + second[lane] for lane in range(lanes)])
            other = ir.Constant(kind, [(lane ^ span) + second[lane] for lane in range(lanes)])
            vectors = [
                self.builder.fadd(
                    self.builder.shuffle_vector(*pair, own),
                    self.builder.shuffle_vector(*pair, other),
                )
                for pair in zip(vectors[:span], vectors[span:], strict=True)
            ]
        value = vectors[0]
        while value.type.count > 4:
            value = self.builder.fadd(*self._halves(value))
        return value

    def folded(self, value: Value) -> Value:
        """Add up a block's halves until a register holds them, or four lanes are left."""
        while value.type.count * self.itemsize > VECTOR_BYTES and value.type.count > 4:
            value = self.builder.fadd(*self._halves(value))
        return value

    def _halves(self, value: Value) -> list[Value]:
        half = value.type.count // 2
        kind = ir.VectorType(INT32, half)
        return [
            self.builder.shuffle_vector(
                value, value, ir.Constant(kind, list(range(first, first + half)))
            )
            for first in (0, half)
        ]

    @contextmanager
    def steps(self, count: Value, step: int = 1) -> Iterator[Value]:
        """Emit a loop over 0, step, 2 step, ... below a word."""
        zero, width = ir.Constant(count.type, 0), ir.Constant(count.type, step)
        with cgutils.for_range_slice(self.builder, zero, count, width, count.type) as (index, _):
            yield index

    def exponential(self, x: Value) -> Value:
        """Return exp(x) for x <= 0; 0 where it would be no normal number, and NaN for NaN.

        x = n ln 2 + r. Adding a number whose last place is 1 rounds x / ln 2 to n, and leaves n in
        the lowest bits, which become the exponent of 2^n; a polynomial gives exp(r) - 1.
        """
        builder, constants = self.builder, EXPONENTIALS[self.itemsize]
        rounder = self.constant(constants.rounder)
        x = self.larger(self.constant(constants.least), x)  # NaN stays
        shifted = self.multiply_add(x, self.constant(math.log2(math.e)), rounder)
        n = builder.fsub(shifted, rounder)
        r = self.multiply_add(n, self.constant(-constants.ln2_high), x)
        r = self.multiply_add(n, self.constant(-constants.ln2_low), r)
        tail = self.constant(constants.terms[0])
        for term in constants.terms[1:]:
            tail = self.multiply_add(tail, r, self.constant(term))
        expm1 = self.multiply_add(builder.fmul(r, r), tail, r)
        bits = ir.VectorType(ir.IntType(8 * self.itemsize), LANES)
        bias = ir.Constant(bits, [constants.exponent_bias] * LANES)
        shift = ir.Constant(bits, [constants.mantissa_bits] * LANES)
        power = builder.shl(builder.add(builder.bitcast(shifted, bits), bias), shift)
        scale = builder.bitcast(power, self.vector)
        return self.multiply_add(scale, expm1, scale)
