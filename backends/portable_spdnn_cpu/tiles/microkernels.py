"""Microkernels: register tiles of some outputs by some blocks of inputs.

The sums of a register tile stay in vector registers from their first entry to their last. Plain
loops leave the compiler to guess that tiles in memory do not alias and that sums may stay in
registers; these intrinsics say so, by emitting LLVM vectors over neighbouring inputs.

A *single* microkernel has one output. Each of its sums runs in two chains, over even and odd
entries, which hides the latency of the addition. A *cluster* microkernel has CLUSTER outputs
that have inputs in common: each of those is loaded once and added to all their sums, which are
chains enough. What an output has for itself is added first, in one chain.

Where features are 0 or 1 they come as bytes, 64 to a vector block, and sums are counts in bytes,
four times as many in a register as float32; no output may then have more than MAX_COUNTED inputs.

The order of additions depends on the pattern alone, not on widths, tiles or threads, so results
are bitwise the same for every batch size and thread count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from numba.core import cgutils, types

from portable_spdnn_cpu.jit.compilation import Array, Emission, intrinsic
from portable_spdnn_cpu.layout.tile_shape import CLUSTER, CLUSTER_BLOCKS
from portable_spdnn_cpu.tiles.addresses import Addresses, MicrokernelSpec
from portable_spdnn_cpu.tiles.emitters import AccumulationEmitter, EpilogueEmitter


class LayerOperands(NamedTuple):
    """What the microkernels of one layer read and write.

    Attributes
    ----------
    dst, src : ndarray in C order, shape (rows, columns)
        Features after and before the layer, a column for each input; `src` may hold bytes, each
        0 or 1, and then `values` is None.
    shift : int
        Column c of `src` goes to column c + shift of `dst`.
    active : ndarray, shape (columns of src,), or None
        Takes for each column a number that is zero only where all features of `dst` are; what
        is there before counts too. None where nobody asks.
    indices, offsets, values, rows, bias, weight
        The layer, as `PackedLayers` holds it. `values` is None where all weights equal `weight`.
    lower, upper : float
        Bounds of what is written. NaN passes.
    prefetches, nontemporal : bool
        Whether lines of `dst` are prefetched, and whether blocks are written by non-temporal
        stores; not looked at where `active` is given.
    """

    dst: Array
    src: Array
    shift: int
    active: Array | None
    indices: Array
    offsets: Array
    values: Array | None
    rows: Array
    bias: Array
    weight: Any
    lower: Any
    upper: Any
    prefetches: bool
    nontemporal: bool


def make_microkernel(spec: MicrokernelSpec) -> Callable[..., None]:
    """Build the intrinsic of a register tile."""

    @intrinsic
    def microkernel(
        typingctx: Any,
        operands: Any,
        first_offset: Any,
        first_value: Any,
        first_row: Any,
        begin: Any,
        end: Any,
    ) -> Emission:
        """dst[row, c + shift] = min(max(sum_k w_k src[indices[k], c] + bias, lower), upper).

        For the rows rows[first_row + o], o = 0 .. outputs - 1, and for c in the whole register
        tiles of columns begin .. end - 1. The entries of a single output are those of
        offsets[first_offset] and on. Of a cluster, those come first that all outputs have in
        common, then those of each. Values start at `first_value`; those of an entry in common,
        one for each output, are neighbours.
        """
        signature = types.void(operands, *[types.intp] * 5)

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            operands, first_offset, first_value, first_row, begin, end = args
            at = Addresses(spec, context, builder, sig.args[0], operands)
            accumulation = AccumulationEmitter(at, first_offset, first_value)
            epilogue = EpilogueEmitter(at, first_row)
            width = at.number(spec.blocks * at.addend.count)
            stop = at.add(builder.sub(end, width), 1)
            with cgutils.for_range_slice(builder, begin, stop, width, at.word) as (column, _):
                epilogue.prefetch_results(column, spec.blocks * at.addend.count)
                epilogue.emit(column, accumulation.emit(column))
            return context.get_dummy_value()

        return signature, codegen

    return microkernel


SINGLE_CHAINS = 2
single = make_microkernel(MicrokernelSpec(1, 1, SINGLE_CHAINS))
wide_single = make_microkernel(MicrokernelSpec(1, 2, SINGLE_CHAINS))
cluster = make_microkernel(MicrokernelSpec(CLUSTER, 1))
wide_cluster = make_microkernel(MicrokernelSpec(CLUSTER, CLUSTER_BLOCKS))
