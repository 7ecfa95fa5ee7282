"""What kernels of a product take on a processor, in cycles: the constants of `cost_model`.

Each set is fitted to thousands of random products on one processor by `benchmarks/fit_costs.py`. On
the Intel core those of what lies beyond its caches are fitted to 925 products of 200 to 250,000
rows and columns besides, where `write_far` and `written_piece` of the stream are known only
together. `stream.memory` on the Zen 5 is of kernels that took one row after the other.

Not fitted by the script: `cycle`, which is set before; `spmv_entry` and `spmv_row`, measured on
AMD's processors and fitted on Intel's; on the Zen 5 `piece`, measured by itself, `dense`, that of
large products, and `direct.write_fortran`, between that of the fit and what layers of 3,000 outputs
take; on the Zen 3 `dense`, likewise, `piece` and `stream.memory`; on the Intel core `dense`, near
that of large products; on the Zen 4 `dense`, that of 512 x 512 weights, `stream.memory` and
`piece`. And what was measured on some processors alone, and is neutral on the others (0, or 1 for
`beyond`):

================================  ========  =======================================================
`given_entry`, `given_row`        Zen 5     nine products in five widths, and 33 products
`given_entry`, `given_row`        Zen 3     2,865 random products
`given_entry`, `given_row`        Intel's   2,024 random products
`given_entry`, `given_row`        Zen 4     5,531 random products
`unpaired_entry`, `unpaired_row`  Zen 3     fitted; with AVX-512 no panel is so wide
`written_piece`, `beyond`,        Zen 3     results of 0.5 to 58 MB; what is loaded is taken to cost
`last_share`                                as much more, beyond the last cache, as what is written
`beyond`, `far_piece`             Zen 5     graphs of 40,000 to 200,000 nodes
`aliased`                         Zen 5     the same, and layers
`far_piece`, `narrow_load`,       Intel's   products of up to 250,000 rows and columns
`mispredicted`, `piece`,
`written_piece`
`far_piece`, `aliased`,           Zen 4     2,000 products of up to 250,000 rows and columns: the
`narrow_load`, `written_piece`              first two are the Zen 5's, as others chose no better
`packing`                         Zen 5, 3  nine matrices; the Intel core has that of the Zen 5
`packing`                         Zen 4     1,233 random matrices
================================  ========  =======================================================

Sizes outside of the model depend on the processor too: those of `layout.large_results`,
BLOCK_IF_B_IS_NEAR of `direct.by_rows`, nanoseconds of `direct.choice`, and MOST_STREAMS of
`transposes`.
"""

from __future__ import annotations

from dataclasses import dataclass

from portable_spdnn_cpu.jit.target import VECTOR_BYTES, cpu_name
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.machine.cpu_info import cache_bytes

LAST_CACHE = cache_bytes(3) or 1 << 25  # where the system does not say
# From so many rows of A on an Intel Xeon predicts none of their ends: see `Costs.mispredicted`.
UNPREDICTED_ROWS = 1 << 13


@dataclass(frozen=True)
class Cycles:
    """What a kernel takes, in cycles.

    Attributes
    ----------
    l1, l2, memory : float
        To load a vector of B from the first level, the second, and beyond.
    copy, transpose : float
        To copy a vector of B from the second level, and to transpose one of B on the way.
    write, write_far, write_fortran : float
        To write a vector of C where the second level holds C, where it does not, and to transpose
        it on the way.
    row, entry : float
        Of a row of A in a block of columns, whatever it has, and of an entry besides its loads of
        B, for each panel.
    """

    l1: float
    l2: float
    memory: float
    copy: float
    transpose: float
    write: float
    write_far: float
    write_fortran: float
    row: float
    entry: float


@dataclass(frozen=True)
class PackingSeconds:
    """What it takes to pack A, in seconds.

    Attributes
    ----------
    call, entry, row : float
        Of a call, of an entry, and of a row that has entries in a block of columns.
    far_byte : float
        Of a byte that is read from A or written, beyond what the second level holds.
    """

    call: float
    entry: float
    row: float
    far_byte: float


@dataclass(frozen=True)
class Costs:
    """What a processor takes, in cycles where nothing else is said.

    Attributes
    ----------
    cycle : float
        Seconds of one.
    stream, direct : Cycles
        Of the stream, and of A and B as they are.
    l1_share : float
        What a panel may take of the first level, as a share of it, before loads take longer:
        weights stream through it too, but a processor that loads ahead hides a few misses.
    given_entry, given_row : float
        Of the stream, for an entry and a row of A besides, where A is as given.
    unpaired_entry, unpaired_row : float
        Of the stream, for an entry and a row of A besides, in a panel too wide for kernels that
        take two rows at a time (`microkernels.pairs`).
    start : float
        Of a call of the stream.
    wait : float
        To write and read a vector of sums, between two blocks.
    write_rows : float
        To write a vector of C where the second level does not hold C, by whole rows.
    written_piece : float
        To write a row of a panel of C, besides its vectors, where the second level does not hold C
        and the panel has not all columns: each row is then a piece, on a page of its own.
    memory_to_l1, memory_to_l2, piece : float
        To copy a vector from beyond the second level: to a panel that fits the first, and to a
        larger one. Besides, for each row of a panel that is a piece of B's: pieces lie on pages of
        their own.
    memory_entry : float
        Of an entry of A from beyond the second level, with each panel.
    spmv_entry, spmv_row : float
        Of an entry and a row of A as it is, times a single column.
    beyond : float
        Factor for what is loaded or written beyond the last cache, in place of beyond the second.
    last_share : float
        The share of the last cache that one operand may have: the rest is for others, and for those
        who use the machine as well. Where `beyond` is 1 `direct.choice` alone uses it.
    far_piece : float
        Of a piece of a row of B that an entry meets, in a panel of many times the second level.
        Pieces of one vector take a quarter.
    narrow_load : float
        How much longer, as a share, the stream's load beyond the second level takes in a panel of
        one vector; in one of v vectors a v-th of that, since what follows is fetched ahead.
    aliased : float
        To transpose a vector, besides, to a panel that the first level does not hold and whose rows
        lie multiples of 512 bytes apart.
    mispredicted : float
        Of a row of A as it is, where the lengths of rows vary and there are UNPREDICTED_ROWS of
        them or more; of fewer in proportion, since a processor learns some.
    across : float
        Factor for a load of B in place that lies across two cache lines.
    dense, dense_vector : float
        Of a multiply-add of vectors in BLAS, and of a vector of B or C there: it is looked at,
        packed and written.
    dense_weight, memory_weight : float
        Of a vector of dense weights, which BLAS packs at every call: from the second level, and
        beyond.
    dense_call, direct_call : float
        Seconds of a call of BLAS, in which B is looked at and the threads of BLAS are set, and of
        one with A and B as they are.
    packing : PackingSeconds
        To pack A for the stream.
    """

    cycle: float
    stream: Cycles
    direct: Cycles
    l1_share: float
    given_entry: float
    given_row: float
    unpaired_entry: float
    unpaired_row: float
    start: float
    wait: float
    write_rows: float
    written_piece: float
    memory_to_l1: float
    memory_to_l2: float
    piece: float
    memory_entry: float
    spmv_entry: float
    spmv_row: float
    beyond: float
    last_share: float
    far_piece: float
    narrow_load: float
    aliased: float
    mispredicted: float
    across: float
    dense: float
    dense_vector: float
    dense_weight: float
    memory_weight: float
    dense_call: float
    direct_call: float
    packing: PackingSeconds


ZEN_5_PACKING = PackingSeconds(call=2e-5, entry=7e-10, row=1e-8, far_byte=4e-11)
ZEN_5 = Costs(
    cycle=2.3e-10,
    stream=Cycles(
        l1=0.54, l2=1.28, memory=2.5, copy=3.1, transpose=6.2,
        write=1.6, write_far=2.2, write_fortran=6.8, row=3.2, entry=0.34,
    ),
    direct=Cycles(
        l1=0.78, l2=1.4, memory=2.4, copy=2.7, transpose=5.7,
        write=1.8, write_far=2.2, write_fortran=8.5, row=2.9, entry=0.63,
    ),
    l1_share=0.91, given_entry=0.5, given_row=4.1, unpaired_entry=0.0, unpaired_row=0.0,
    start=5500.0, wait=1.3, write_rows=0.44, written_piece=0.0, memory_to_l1=4.5, memory_to_l2=4.9,
    piece=3.0, memory_entry=0.034, spmv_entry=1.2, spmv_row=2.9, beyond=3.0, last_share=0.5,
    far_piece=35.0, narrow_load=0.0, aliased=8.0, mispredicted=0.0, across=1.2, dense=0.58,
    dense_vector=4.1, dense_weight=2.8, memory_weight=12.0, dense_call=8.9e-6, direct_call=1.8e-6,
    packing=ZEN_5_PACKING,
)  # fmt: skip
INTEL = Costs(  # a Xeon with 48 KiB and 2 MiB of cache, whose clock slows where vectors are loaded
    cycle=2.95e-10,
    stream=Cycles(
        l1=0.72, l2=1.74, memory=7.5, copy=4.5, transpose=9.0,
        write=4.9, write_far=4.0, write_fortran=12.6, row=0.97, entry=0.61,
    ),
    direct=Cycles(
        l1=0.82, l2=1.94, memory=9.2, copy=5.1, transpose=9.5,
        write=4.2, write_far=9.6, write_fortran=10.1, row=0.0, entry=0.99,
    ),
    l1_share=0.84, given_entry=0.2, given_row=3.4, unpaired_entry=0.0, unpaired_row=0.0,
    start=4420.0, wait=2.6, write_rows=7.9, written_piece=18.5, memory_to_l1=10.6,
    memory_to_l2=15.5, piece=5.7, memory_entry=0.37, spmv_entry=0.88, spmv_row=1.9, beyond=1.0,
    last_share=0.5, far_piece=7.9, narrow_load=0.83, aliased=0.0, mispredicted=15.5, across=1.2,
    dense=0.72, dense_vector=9.5, dense_weight=5.1, memory_weight=19.3, dense_call=1.03e-5,
    direct_call=1.95e-6, packing=ZEN_5_PACKING,
)  # fmt: skip
ZEN_4 = Costs(  # which computes the halves of 64 bytes one after the other
    cycle=2.8e-10,
    stream=Cycles(
        l1=1.0, l2=2.1, memory=3.0, copy=4.2, transpose=7.4,
        write=2.5, write_far=2.7, write_fortran=7.8, row=2.4, entry=0.33,
    ),
    direct=Cycles(
        l1=1.2, l2=2.1, memory=3.0, copy=3.9, transpose=6.4,
        write=2.5, write_far=3.0, write_fortran=7.6, row=2.7, entry=0.69,
    ),
    l1_share=1.23, given_entry=0.33, given_row=6.4, unpaired_entry=0.0, unpaired_row=0.0,
    start=6000.0, wait=1.8, write_rows=2.2, written_piece=3.0, memory_to_l1=5.1, memory_to_l2=5.3,
    piece=1.0, memory_entry=0.086, spmv_entry=1.2, spmv_row=2.9, beyond=1.0, last_share=0.5,
    far_piece=35.0, narrow_load=1.2, aliased=8.0, mispredicted=0.0, across=1.17, dense=1.08,
    dense_vector=4.7, dense_weight=2.5, memory_weight=13.2, dense_call=1.2e-5, direct_call=2.3e-6,
    packing=PackingSeconds(call=3.4e-5, entry=2.2e-10, row=1.6e-8, far_byte=3.5e-11),
)  # fmt: skip
ZEN_3 = Costs(  # with AVX2, of a machine that others use too
    cycle=2.7e-10,
    stream=Cycles(
        l1=1.44, l2=3.2, memory=6.0, copy=5.9, transpose=11.2,
        write=5.7, write_far=5.0, write_fortran=13.4, row=4.9, entry=0.88,
    ),
    direct=Cycles(
        l1=2.1, l2=4.0, memory=6.0, copy=7.2, transpose=10.0,
        write=4.9, write_far=6.0, write_fortran=14.0, row=4.6, entry=1.3,
    ),
    l1_share=1.25, given_entry=0.54, given_row=8.5, unpaired_entry=0.32, unpaired_row=1.9,
    start=10300.0, wait=2.8, write_rows=1.2, written_piece=5.0, memory_to_l1=7.1, memory_to_l2=7.1,
    piece=5.0, memory_entry=0.19, spmv_entry=1.8, spmv_row=3.8, beyond=4.5, last_share=0.2,
    far_piece=0.0, narrow_load=0.0, aliased=0.0, mispredicted=0.0, across=1.01, dense=1.2,
    dense_vector=16.0, dense_weight=20.7, memory_weight=26.0, dense_call=2.7e-5, direct_call=3.7e-6,
    packing=PackingSeconds(call=5.5e-5, entry=5e-10, row=3.2e-8, far_byte=8e-12),
)  # fmt: skip


def costs_here() -> Costs:
    """Return the costs of the processor that kernels are compiled for, or of one like it."""
    if VECTOR_BYTES < BLOCK_BYTES:
        return ZEN_3
    if not cpu_name().startswith("znver"):
        return INTEL
    return ZEN_4 if cpu_name() == "znver4" else ZEN_5


COSTS = costs_here()


def beyond(size: float) -> float:
    """Return the factor for so many bytes, which the second-level cache does not hold.

    It is 1 where `last_share` of the last cache holds them. `few_columns.costs` has it too.
    """
    held = COSTS.last_share * LAST_CACHE
    return 1 + max(0.0, 1 - held / max(size, 1)) * (COSTS.beyond - 1)
