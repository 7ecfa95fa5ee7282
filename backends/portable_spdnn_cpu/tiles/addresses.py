"""What a microkernel is generated from, its operands, and where in memory they are.

Values are held as LLVM vectors of one *block* of inputs each; LLVM splits a block into the
processor's own vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba.core import types

from portable_spdnn_cpu.jit.vectors import broadcast
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES

Value = Any  # an LLVM value; llvmlite has no types


@dataclass(frozen=True)
class MicrokernelSpec:
    """What a microkernel is generated from.

    Attributes
    ----------
    outputs : int
        Rows of the register tile: the sums that each loaded input is added to.
    blocks : int
        Its width in vector blocks of inputs.
    chains : int
        Sums that the entries of each output are dealt out to, by turns.
    """

    outputs: int
    blocks: int
    chains: int = 1


class Addresses:
    """The operands of a microkernel, their types, and where in memory they are.

    Parameters
    ----------
    spec : MicrokernelSpec
    context, builder
        Numba's target context and llvmlite's builder.
    kind, operands
        Type and value of a tuple of `LayerOperands`.
    """

    def __init__(
        self, spec: MicrokernelSpec, context: Any, builder: Any, kind: Any, operands: Value
    ) -> None:
        self.spec, self.context, self.builder, self._operands = spec, context, builder, operands
        self._kinds = dict(zip(kind.fields, kind.types, strict=True))
        element = self._kinds["dst"].dtype
        self.bits = element.bitwidth
        self.scalar = context.get_value_type(element)
        self.word = context.get_value_type(types.intp)
        self.vector = ir.VectorType(self.scalar, BLOCK_BYTES * 8 // self.bits)
        # Bytes that are 0 or 1 are counted in bytes, a block of which is four of float32.
        self.counts = self._kinds["src"].dtype == types.uint8
        self.addend = ir.VectorType(ir.IntType(8), BLOCK_BYTES) if self.counts else self.vector

    def given(self, name: str) -> bool:
        """Whether an operand is there: what is None takes no code."""
        return not isinstance(self._kinds[name], types.NoneType)

    def scalar_operand(self, name: str) -> Value:
        """Return the value of an operand that is a number."""
        return self.builder.extract_value(self._operands, list(self._kinds).index(name))

    def array(self, name: str) -> Any:
        """Return an operand that is an array: its `data` is a pointer."""
        make = self.context.make_array(self._kinds[name])
        return make(self.context, self.builder, self.scalar_operand(name))

    def number(self, value: int) -> Value:
        """Return a constant word."""
        return ir.Constant(self.word, value)

    def add(self, first: Value, second: Value | int) -> Value:
        """Return the sum of words, or of a word and a constant."""
        second = self.number(second) if isinstance(second, int) else second
        return self.builder.add(first, second)

    def load(self, name: str, position: Value) -> Value:
        """Load an item of an array; integers come as words."""
        found = self.builder.load(self.builder.gep(self.array(name).data, [position]))
        if not isinstance(found.type, ir.IntType) or found.type.width == self.word.width:
            return found
        signed = self._kinds[name].dtype.signed
        return (self.builder.sext if signed else self.builder.zext)(found, self.word)

    def row_length(self, name: str) -> Value:
        """Return how many columns an array in C order has."""
        return self.builder.extract_value(self.array(name).shape, 1)

    def block(self, data: Value, offset: Value, number: int, kind: Any) -> Value:
        """Return a pointer to block `number` of those that begin `offset` items after `data`."""
        pointer = self.builder.gep(data, [self.add(offset, number * kind.count)])
        return self.builder.bitcast(pointer, kind.as_pointer())

    def load_block(self, pointer: Value) -> Value:
        """Load a block that is aligned as its items are, not more."""
        return self.builder.load(pointer, align=self._alignment(pointer))

    def store_block(self, value: Value, pointer: Value) -> None:
        """Store a block; see `load_block`."""
        self.builder.store(value, pointer, align=self._alignment(pointer))

    def _alignment(self, pointer: Value) -> int:
        return 1 if pointer.type.pointee.element == ir.IntType(8) else self.bits // 8

    def spread(self, value: Value) -> Value:
        """Return a block of which each lane holds a number."""
        return broadcast(self.builder, self.vector, value)
