"""Sizes that the layout of layers and the kernels agree on.

A *vector block* is 64 bytes of neighbouring inputs (16 float32 or 8 float64), whatever vectors
the processor has: LLVM splits it into what fits.
"""

from __future__ import annotations

from portable_spdnn_cpu.jit.target import VECTOR_BYTES, VECTOR_REGISTERS

BLOCK_BYTES = 64
CLUSTER = 4  # outputs that share loads
MAX_COUNTED = 255  # inputs of an output whose sums of bits fit into bytes
# Sums that are added to by turns: an addition takes four cycles, and two start in each.
SUMS_IN_FLIGHT = 8


def blocks_in_registers(outputs: int, vector_bytes: int, registers: int) -> int:
    """Return the vector blocks for each of some outputs, at least one, that keep adders busy.

    Their sums take no more than half of the registers: the rest is for what is added.

    Parameters
    ----------
    outputs : int
    vector_bytes, registers : int
        Of the processor: size and number of its vector registers.
    """
    sums = min(SUMS_IN_FLIGHT, registers // 2)
    return max(1, sums // (outputs * max(1, BLOCK_BYTES // vector_bytes)))


CLUSTER_BLOCKS = blocks_in_registers(CLUSTER, VECTOR_BYTES, VECTOR_REGISTERS)
