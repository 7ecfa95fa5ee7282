"""Emitters of LLVM code for microkernels: accumulation and epilogue.

Each class emits one part of a register tile. What is loaded once, for all inputs, is emitted when
an object is made, before the loop over inputs; `emit` then emits what is done for the inputs from
a column on. Sums are written as stack slots, which LLVM promotes to vector registers.
"""

from __future__ import annotations

from llvmlite import ir
from numba.core import cgutils

from portable_spdnn_cpu.jit.intrinsics import prefetch_line
from portable_spdnn_cpu.jit.vectors import FUSED, clamped, multiply_add
from portable_spdnn_cpu.layout.large_results import store_nontemporal
from portable_spdnn_cpu.tiles.addresses import Addresses, Value

Sums = list[list[Value]]  # of each output, in each block


class AccumulationEmitter:
    """Sums of outputs over their entries: sum_k w_k src[indices[k], column].

    A cluster's entries come in this order: those that all its outputs have in common, then those
    that each has for itself. A single output has its own alone.

    Parameters
    ----------
    at : Addresses
    first_offset, first_value
        Positions in `offsets` and `values` at which the outputs begin.
    """

    def __init__(self, at: Addresses, first_offset: Value, first_value: Value) -> None:
        self.at, self.spec, self.first_value = at, at.spec, first_value
        # Bounds of the entries. Loaded once: to the compiler, stores of sums might change them.
        bounds = 2 if self.spec.outputs == 1 else self.spec.outputs + 2
        self.bounds = [at.load("offsets", at.add(first_offset, n)) for n in range(bounds)]
        self.leading = at.row_length("src")
        # A one that the compiler cannot know to be one (it is made of a sign bit that is 0):
        # some processors add in other units than they multiply in. Half the outputs of a cluster
        # add by multiplying with it, which gives the same sums and keeps both kinds busy.
        sign = at.builder.lshr(self.leading, at.number(at.word.width - 1))
        self.one = at.spread(at.builder.uitofp(at.add(sign, 1), at.scalar))

    def emit(self, column: Value) -> Sums:
        """Return the sums for the blocks of inputs from `column` on."""
        at, builder = self.at, self.at.builder
        zero = ir.Constant(at.addend, None)
        sums = [
            [
                [cgutils.alloca_once_value(builder, zero) for _ in range(self.spec.blocks)]
                for _ in range(self.spec.chains)
            ]
            for _ in range(self.spec.outputs)
        ]
        begin, end = self.bounds[:2]
        if self.spec.outputs == 1:
            self._add_own(column, sums[0], begin, end, builder.sub(self.first_value, begin))
        else:
            common = builder.mul(builder.sub(end, begin), at.number(self.spec.outputs))
            own_values = builder.sub(at.add(self.first_value, common), end)
            has_own = builder.icmp_signed("<", end, self.bounds[-1])
            with builder.if_then(has_own, likely=False):  # most clusters share all inputs
                for output in range(self.spec.outputs):
                    first, last = self.bounds[output + 1 : output + 3]
                    self._add_own(column, sums[output], first, last, own_values)
            firsts = [chains[0] for chains in sums]
            with cgutils.for_range_slice(builder, begin, end, at.number(1), at.word) as (k, _):
                # The values of a common entry, one for each output, are neighbours.
                position = builder.mul(builder.sub(k, begin), at.number(self.spec.outputs))
                self._add_entry(column, k, firsts, at.add(self.first_value, position))
        return [
            [self._total([chain[block] for chain in chains]) for block in range(self.spec.blocks)]
            for chains in sums
        ]

    def _add_own(
        self, column: Value, chains: Sums, begin: Value, end: Value, value_shift: Value
    ) -> None:
        """Add entries begin .. end - 1 to one output's sums, by turns to each of its chains.

        The value of entry k is at k + `value_shift`. What is left over goes to the first chain.
        """
        at, builder = self.at, self.at.builder
        step = at.number(self.spec.chains)
        rounded = builder.sub(end, builder.srem(builder.sub(end, begin), step))
        with cgutils.for_range_slice(builder, begin, rounded, step, at.word) as (k, _):
            for number, chain in enumerate(chains):
                entry = at.add(k, number)
                self._add_entry(column, entry, [chain], at.add(entry, value_shift))
        if self.spec.chains > 1:
            with cgutils.for_range_slice(builder, rounded, end, at.number(1), at.word) as (k, _):
                self._add_entry(column, k, [chains[0]], at.add(k, value_shift))

    def _add_entry(self, column: Value, k: Value, targets: Sums, value_at: Value) -> None:
        """Add the input of entry `k`, loaded once, to the sums of each of some outputs."""
        at, builder = self.at, self.at.builder
        offset = at.add(builder.mul(at.load("indices", k), self.leading), column)
        data = at.array("src").data
        features = [
            at.load_block(at.block(data, offset, block, at.addend))
            for block in range(self.spec.blocks)
        ]
        for output, target in enumerate(targets):
            if at.given("values"):
                factor = at.spread(at.load("values", at.add(value_at, output)))
            for feature, slot in zip(features, target, strict=True):
                total = builder.load(slot)
                if at.counts:
                    total = builder.add(total, feature)
                elif at.given("values"):
                    term = builder.fmul(feature, factor, flags=FUSED)
                    total = builder.fadd(total, term, FUSED)
                elif output % 2:
                    total = multiply_add(builder, feature, self.one, total)  # see `one`
                else:
                    total = builder.fadd(total, feature, FUSED)
                builder.store(total, slot)

    def _total(self, chains: list[Value]) -> Value:
        """Add up the chains of one output and block."""
        builder = self.at.builder
        total = builder.load(chains[0])
        for chain in chains[1:]:
            term = builder.load(chain)
            total = builder.add(total, term) if self.at.counts else builder.fadd(total, term, FUSED)
        return total


class EpilogueEmitter:
    """What becomes of sums: dst[row, column + shift] = clamp(weight x sum + bias).

    Parameters
    ----------
    at : Addresses
    first_row
        Position in `rows` and `bias` of the first output.
    """

    def __init__(self, at: Addresses, first_row: Value) -> None:
        self.at = at
        self.biases, self.offsets = [], []
        width, shift = at.row_length("dst"), at.scalar_operand("shift")
        for output in range(at.spec.outputs):
            position = at.add(first_row, output)
            self.biases.append(at.load("bias", position))
            start = at.builder.mul(at.load("rows", position), width)
            self.offsets.append(at.add(start, shift))
        self.weight = None if at.given("values") else at.spread(at.scalar_operand("weight"))
        # Features of a network, for which `active` is given, stay near.
        self.may_be_far = not at.given("active")
        self.lower, self.upper = (at.spread(at.scalar_operand(n)) for n in ("lower", "upper"))

    def prefetch_results(self, column: Value, step: int) -> None:
        """Emit that the lines are prefetched that `emit` is to write `step` columns of."""
        at = self.at
        if not self.may_be_far:
            return
        with at.builder.if_then(at.scalar_operand("prefetches")):
            target = at.array("dst").data
            for offset in self.offsets:
                start = at.add(offset, column)
                for first in range(0, step, at.vector.count):
                    pointer = at.builder.gep(target, [at.add(start, first)])
                    byte = at.builder.bitcast(pointer, ir.IntType(8).as_pointer())
                    prefetch_line(at.builder, byte, written=True)

    def emit(self, column: Value, sums: Sums) -> None:
        """Finish the sums of the blocks of inputs from `column` on, and note who is active."""
        at = self.at
        target, pattern = at.array("dst").data, ir.VectorType(ir.IntType(at.bits), at.vector.count)
        seen, pointers = [], []
        if at.given("active"):
            pieces = len(sums[0]) * (at.addend.count // at.vector.count)
            noted = at.array("active").data
            pointers = [at.block(noted, column, number, pattern) for number in range(pieces)]
            seen = [at.load_block(pointer) for pointer in pointers]
        for blocks, bias, offset in zip(sums, self.biases, self.offsets, strict=True):
            start = at.add(offset, column)
            pieces = [piece for block in blocks for piece in self._as_features(block)]
            for number, piece in enumerate(pieces):
                value = self._finish(piece, bias)
                self._store(value, at.block(target, start, number, at.vector))
                if seen:
                    # All bits of an input's features together are those of a zero, of either
                    # sign, only where all features are zero. Sums might cancel; NaN is no zero.
                    bits = at.builder.bitcast(value, pattern)
                    seen[number] = at.builder.or_(seen[number], bits)
        for each, pointer in zip(seen, pointers, strict=True):
            at.store_block(each, pointer)

    def _store(self, value: Value, pointer: Value) -> None:
        """Store a block."""
        if not self.may_be_far:
            self.at.store_block(value, pointer)
            return
        chosen = self.at.scalar_operand("nontemporal")
        with self.at.builder.if_else(chosen) as (nontemporal, as_usual):
            with nontemporal:
                store_nontemporal(self.at.builder, value, pointer)
            with as_usual:
                self.at.store_block(value, pointer)

    def _as_features(self, total: Value) -> list[Value]:
        """Return a sum, or the pieces of a block of counts, as blocks of features."""
        at, builder = self.at, self.at.builder
        if not at.counts:
            return [total]
        lanes = ir.VectorType(ir.IntType(32), at.vector.count)
        pieces = []
        for first in range(0, total.type.count, lanes.count):
            chosen = ir.Constant(lanes, list(range(first, first + lanes.count)))
            piece = builder.shuffle_vector(total, total, chosen)
            pieces.append(builder.uitofp(builder.zext(piece, lanes), at.vector))
        return pieces

    def _finish(self, value: Value, bias: Value) -> Value:
        builder = self.at.builder
        if self.weight is not None:
            value = builder.fmul(value, self.weight, flags=FUSED)
        value = builder.fadd(value, self.at.spread(bias), flags=FUSED)
        return clamped(builder, value, self.lower, self.upper)
