"""The stream microkernel: entries of pruned weights, streamed against a panel in a cache.

A panel holds, for some entries of the kernels, what a few vectors of neighbouring pixels see of the
image; it stays in the first-level cache. The entries of an output follow each other in memory, and
its sums stay in registers meanwhile: for each entry and vector one load and one multiply-add, and
for each four entries two loads more, of their places in the panel and of their weights, which are
spread in registers (`jit.grouped_loads`). Sums wait in memory from one panel to the next.

Outputs come in the order of how many entries they have, so that the inner loop's length hardly ever
changes and its branch is predicted. Two that have equally many are computed together: twice as many
sums do not wait for each other, and there are half as many loops to begin and end.

Bound: what multiply-adds with an operand in the first-level cache reach, times V / (V + 1/2) for V
vectors; each time that a vector of sums is loaded or stored costs as much as one of them.

Sources: loops, and the order of rows, as in T. Gale et al., "Sparse GPU Kernels for Deep Learning",
SC 2020, and E. Elsen et al., "Fast Sparse ConvNets", CVPR 2020.
"""

from __future__ import annotations

import itertools
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from portable_spdnn_cpu.conv.spans import BYTE, WORD, Value, VectorEmitter
from portable_spdnn_cpu.jit.compilation import Emission, intrinsic
from portable_spdnn_cpu.jit.grouped_loads import GROUP, broadcast_group, load_numbers
from portable_spdnn_cpu.jit.target import VECTOR_BYTES
from portable_spdnn_cpu.jit.vectors import multiply_add


@intrinsic
def accumulate(
    typingctx: Any,
    width: Any,
    panel: Any,
    sums: Any,
    fresh: Any,
    runs: Any,
    first_run: Any,
    last_run: Any,
    outputs: Any,
    first_output: Any,
    offsets: Any,
    weights: Any,
    first_entry: Any,
) -> Emission:
    """sums[output] += sum over its entries of weight x panel[offset], for len(width) vectors.

    Parameters
    ----------
    width : tuple
        As long as there are vectors in a row of the panel and of the sums: known as code is
        emitted.
    panel, sums : ndarray of one dimension, aligned on vectors
    fresh : int
        Whether the sums begin at 0, and are not read.
    runs : ndarray of uint32, shape (runs, 2)
        Number of entries that each output of a run has, and of the outputs.
    first_run, last_run : int
        Runs first_run .. last_run - 1 are meant.
    outputs : ndarray of uint32
        Rows of the sums, from `first_output` on, in the order of the entries.
    offsets : ndarray of uint16
        Vectors of the panel, from `first_entry` on: those of the first output of a run by turns
        with those of its second, and so on; if the last has none to go with, those of it alone.
    weights : ndarray
        Of the entries.
    """
    word = types.intp
    signature = types.void(
        width, panel, sums, word, runs, word, word, outputs, word, offsets, weights, word
    )

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        emitter = VectorEmitter(context, builder, sig.args[1].dtype)
        stream = _Stream(emitter, len(width), [
            emitter.data(sig.args[n], args[n]) for n in (1, 2, 7, 9, 10)
        ], args[3], args[8], args[11])  # fmt: skip
        runs, one = emitter.data(sig.args[4], args[4]), WORD(1)
        with cgutils.for_range_slice(builder, args[5], args[6], one, WORD) as (run, _):
            pair = builder.mul(run, WORD(2))
            count, rows = (
                builder.zext(builder.load(builder.gep(runs, [place])), WORD)
                for place in (pair, builder.add(pair, one))
            )
            with cgutils.for_range_slice(
                builder, WORD(0), builder.lshr(rows, one), one, WORD
            ):  # fmt: skip
                stream.emit(2, count)
            odd = builder.icmp_signed("!=", builder.and_(rows, one), WORD(0))
            with builder.if_then(odd):
                stream.emit(1, count)
        return context.get_dummy_value()

    return signature, codegen


class _Stream:
    """Emits the sums of the next outputs, over the entries that come next."""

    def __init__(
        self, emitter: VectorEmitter, vectors: int, data: list[Value], fresh: Value, output: Value,
        entry: Value,
    ) -> None:  # fmt: skip
        self.emitter, self.builder, self.vectors = emitter, emitter.builder, vectors
        self.panel, self.sums, self.outputs, self.offsets, self.weights = data
        self.panel = self.builder.bitcast(self.panel, BYTE.as_pointer())
        self.fresh = self.builder.icmp_signed("!=", fresh, WORD(0))
        # Stack slots, which LLVM promotes to registers.
        self.output = cgutils.alloca_once_value(self.builder, output)
        self.entry = cgutils.alloca_once_value(self.builder, entry)
        self.totals = [
            [cgutils.alloca_once(self.builder, emitter.vector) for _ in range(vectors)]
            for _ in range(2)
        ]

    def emit(self, together: int, count: Value) -> None:
        """Add `count` entries to each of the next outputs, one or two of them."""
        builder, totals = self.builder, self.totals[:together]
        rows = [self._next_row() for _ in range(together)]
        with builder.if_else(self.fresh) as (then, otherwise):
            with then:
                zero = ir.Constant(self.emitter.vector, None)
                for total in itertools.chain(*totals):
                    builder.store(zero, total)
            with otherwise:
                for row, slots in zip(rows, totals, strict=True):
                    for number, total in enumerate(slots):
                        place = self._vector(row, number)
                        builder.store(builder.load(place, align=VECTOR_BYTES), total)
        first = builder.load(self.entry)
        entries = builder.mul(count, WORD(together))
        last = builder.add(first, entries)
        single = builder.add(first, builder.and_(entries, WORD(-GROUP)))
        with cgutils.for_range_slice(builder, first, single, WORD(GROUP), WORD) as (entry, _):
            offsets = load_numbers(builder, builder.gep(self.offsets, [entry]))
            weights = broadcast_group(
                builder, self.emitter.vector, builder.gep(self.weights, [entry])
            )
            for slots, offset, weight in zip(
                itertools.cycle(totals), offsets, weights, strict=False
            ):
                self._add(offset, weight, slots)
        step = WORD(together)
        with cgutils.for_range_slice(builder, single, last, step, WORD) as (entry, _):
            for number, slots in enumerate(totals):
                place = builder.add(entry, WORD(number))
                offset = builder.zext(builder.load(builder.gep(self.offsets, [place])), WORD)
                weight = self.emitter.spread(builder.load(builder.gep(self.weights, [place])))
                self._add(offset, weight, slots)
        builder.store(last, self.entry)
        for row, slots in zip(rows, totals, strict=True):
            for number, total in enumerate(slots):
                builder.store(builder.load(total), self._vector(row, number), align=VECTOR_BYTES)

    def _add(self, offset: Value, weight: Value, totals: list[Value]) -> None:
        builder = self.builder
        start = builder.gep(self.panel, [builder.mul(offset, WORD(VECTOR_BYTES))])
        seen = builder.bitcast(start, self.emitter.scalar.as_pointer())
        for number, total in enumerate(totals):
            value = builder.load(self._vector(seen, number), align=VECTOR_BYTES)
            result = multiply_add(builder, weight, value, builder.load(total))
            builder.store(result, total)

    def _next_row(self) -> Value:
        """Return where the sums of the next output are."""
        builder = self.builder
        place = builder.load(self.output)
        builder.store(builder.add(place, WORD(1)), self.output)
        row = builder.zext(builder.load(builder.gep(self.outputs, [place])), WORD)
        return builder.gep(self.sums, [builder.mul(row, WORD(self.vectors * self.emitter.lanes))])

    def _vector(self, pointer: Value, number: int) -> Value:
        return self.emitter.at(pointer, WORD(number * self.emitter.lanes))
