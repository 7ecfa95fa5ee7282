"""What products of few columns take on a processor, in seconds on one thread.

The constants of `choice`, which are fitted to random products on one processor each. What is loaded
and written beyond the second-level cache takes as long as `spmm.costs` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from portable_spdnn_cpu.jit.target import VECTOR_BYTES, is_zen, is_zen_4
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.machine.cpu_info import cache_bytes
from portable_spdnn_cpu.spmm.costs import COSTS as OTHER_COSTS
from portable_spdnn_cpu.spmm.costs import LAST_CACHE, beyond

L2 = cache_bytes(2)
# Of the second-level cache, what C or B may take before part of it is beyond: an assumption, with
# which the constants of the Intel core are fitted.
NEAR_SHARE = 0.5
# The nearest memory that keeps A between products: two caches, and what is beyond them.
SECOND_LEVEL, LAST_LEVEL, MEMORY = range(3)
# Of A so many times as large as the second-level cache some bytes come from beyond it, and all.
FAR_FROM, ALL_FAR = 0.7, 1.1
# The same of the last cache and memory, and what a byte from memory takes besides: on a Zen 5, for
# all processors.
MEMORY_FROM, ALL_IN_MEMORY, MEMORY_BYTE = 0.4, 1.5, 1e-11


@dataclass(frozen=True)
class FewColumnsCosts:
    """What a processor takes, in seconds.

    Attributes
    ----------
    step : mapping of int to (float, float)
        In lanes, of a step, and for each column of B, by the vectors of a window; windows of four
        vectors have two columns or more.
    single_step : mapping of int to float
        Of a step for a single column with windows of four, by the bytes of a value.
    sliced_step : (float, float)
        Of a step of the sliced form, and for each lane.
    slice : (float, float)
        Of a slice, and for each entry of C.
    entry, row_byte : mapping of int to float, float
        Row by row, of an entry by the bytes of a value, and for each byte of a row of B.
    visit : float
        Row by row, to begin and end a row in a block of columns.
    l2_byte_of_b : float
        What a byte of B takes more from the second-level cache than from the first.
    far_byte_of_a : float
        Of a byte of A from beyond that cache.
    call : float
        Of a product, whatever its size.
    copied_row, copied_byte : float
        Of a row of B, and of a byte, which each thread copies.
    """

    step: Mapping[int, tuple[float, float]]
    single_step: Mapping[int, float]
    sliced_step: tuple[float, float]
    slice: tuple[float, float]
    entry: Mapping[int, float]
    row_byte: float
    visit: float
    l2_byte_of_b: float
    far_byte_of_a: float
    call: float
    copied_row: float
    copied_byte: float


ZEN_5 = FewColumnsCosts(
    step={4: (5e-11, 3.7e-10), 2: (1.6e-10, 2.2e-10)}, single_step={4: 5.2e-10, 8: 6.3e-10},
    sliced_step=(3.0e-10, 1.3e-10), slice=(4.3e-9, 9.0e-11),
    entry={4: 1.4e-10, 8: 1.5e-10}, row_byte=1.5e-12, visit=1.4e-9,
    l2_byte_of_b=3.5e-12, far_byte_of_a=1e-11, call=4e-7, copied_row=0.0, copied_byte=1.5e-11,
)  # fmt: skip
# A step in windows of four vectors with two columns and more was measured by itself, of 512 x 512
# weights, and so was a call.
ZEN_4 = FewColumnsCosts(
    step={4: (2.2e-10, 8.7e-10), 2: (1.5e-10, 4.9e-10)}, single_step={4: 9.8e-10, 8: 1.1e-9},
    sliced_step=(4.8e-10, 1.5e-10), slice=(5.0e-9, 1.65e-10),
    entry={4: 1.48e-10, 8: 1.47e-10}, row_byte=4.0e-12, visit=1.9e-9,
    l2_byte_of_b=3.9e-12, far_byte_of_a=1.1e-11, call=4.5e-7, copied_row=6.6e-11, copied_byte=2e-11,
)  # fmt: skip
INTEL = FewColumnsCosts(  # the Xeon of `spmm.costs`
    step={4: (0.0, 6.9e-10), 2: (3.9e-10, 3.0e-10)}, single_step={4: 9.8e-10, 8: 1.0e-9},
    sliced_step=(0.0, 2.4e-10), slice=(4.5e-9, 1.6e-10),
    entry={4: 1.65e-10, 8: 1.73e-10}, row_byte=3.9e-12, visit=2.1e-9,
    l2_byte_of_b=5e-12, far_byte_of_a=4e-11, call=4e-7, copied_row=1.6e-10, copied_byte=2.5e-11,
)  # fmt: skip
# A Zen 3 with AVX2, which has lanes with windows of one vector. Slices were measured when items of
# C were stored one by one; a call is half of what was measured before calls took half of the time
# on a Zen 5; `l2_byte_of_b` is that of a Zen 5. Steps in lanes, and bytes of A from beyond, are
# fitted by ratios to the other forms, of 7,500 products of one column and of two.
ZEN_3 = FewColumnsCosts(
    step={1: (1.5e-10, 6.6e-10)}, single_step={}, sliced_step=(3.0e-10, 2.4e-10),
    slice=(2.2e-9, 4.4e-10), entry={4: 1.2e-10, 8: 1.9e-10}, row_byte=7.3e-12, visit=3.5e-9,
    l2_byte_of_b=3.5e-12, far_byte_of_a=2.3e-11, call=6e-7, copied_row=0.0, copied_byte=3.5e-11,
)  # fmt: skip


def few_columns_costs_here() -> FewColumnsCosts:
    """Return the costs of the processor that kernels are compiled for, or of one like it."""
    if VECTOR_BYTES < BLOCK_BYTES:
        return ZEN_3
    if is_zen_4():
        return ZEN_4
    return ZEN_5 if is_zen() else INTEL


COSTS = few_columns_costs_here()
# Seconds to read and to write a byte beyond the second-level cache.
FAR_READ, FAR_WRITE = (
    OTHER_COSTS.cycle * cycles / BLOCK_BYTES
    for cycles in (OTHER_COSTS.direct.memory, OTHER_COSTS.direct.write_far)
)


def memory_level_of(size: float) -> int:
    """Return what keeps so many bytes of A between products: SECOND_LEVEL, and so on."""
    if size > MEMORY_FROM * LAST_CACHE:
        return MEMORY
    return LAST_LEVEL if size > FAR_FROM * L2 else SECOND_LEVEL


def loaded_seconds(size: float) -> float:
    """Return what it takes to bring so many bytes of A from beyond the second-level cache."""
    far = np.interp(size / L2, (FAR_FROM, ALL_FAR), (0, COSTS.far_byte_of_a))
    besides = np.interp(size / LAST_CACHE, (MEMORY_FROM, ALL_IN_MEMORY), (0, MEMORY_BYTE))
    return float(size * (far + besides))


def far_factor(size: float) -> float:
    """Return the factor for FAR_READ and FAR_WRITE, of operands of so many bytes.

    It is the share that is beyond the second-level cache, times what the last cache does not hold
    takes longer.
    """
    return max(0.0, 1 - NEAR_SHARE * L2 / max(size, 1)) * beyond(size)
