"""How much of a product the vector registers hold."""

from __future__ import annotations

from typing import NamedTuple

from portable_spdnn_cpu.jit.target import VECTOR_BYTES, VECTOR_REGISTERS
from portable_spdnn_cpu.sddmm.vectors import LANES

GROUP = 8  # queries of a dense tile
WORTHWHILE_BLOCKS = 4  # of a row of K or V at a time: more would leave nothing to gain
TOGETHER = 4  # scores whose lanes are summed at a time
# Of a part of a row, in times of a block of one register or two, as measured with AVX2; a block of
# four takes twice as long.
PART_OVERHEAD = 0.64
Count = tuple[int, ...]


class RegisterTile(NamedTuple):
    """What microkernels keep in registers; a tuple counts by its length.

    Kernels take it as an argument: a tuple's length is part of its type, so that it is known when
    they are compiled. Tuples depend on the processor and the type of numbers alone.

    Attributes
    ----------
    one : tuple
        Of length 1.
    rows : tuple
        Queries of a dense tile that are computed at once; divides GROUP.
    keys : tuple
        Blocks of keys whose scores are computed for each of them at once.
    columns : tuple
        Blocks of columns of V that are added up for each of them at once.
    key_part, value_part : int
        Blocks of a row of K, and of V, that are kept for one query whose keys are anywhere, by the
        columns of K and V: 1 to `most_blocks`, with code for each number.
    """

    one: Count
    rows: Count
    keys: Count
    columns: Count
    key_part: int
    value_part: int


def most_blocks(
    itemsize: int, vector_bytes: int = VECTOR_BYTES, registers: int = VECTOR_REGISTERS
) -> int:
    """Return the most blocks of a row that can stay, beside TOGETHER sums and what is loaded.

    A sum is a block while it grows, and then folded to a register.
    """
    each = registers_of_block(itemsize, vector_bytes)
    others = each + TOGETHER  # a sum that grows, the others, which are folded, and a load
    return max(1, min(WORTHWHILE_BLOCKS, (registers - others) // each))


def registers_of_block(itemsize: int, vector_bytes: int) -> int:
    """Return the registers that a block takes."""
    return max(1, LANES * itemsize // vector_bytes)


def register_tile(
    itemsize: int,
    d: int,
    d_v: int,
    vector_bytes: int = VECTOR_BYTES,
    registers: int = VECTOR_REGISTERS,
    in_place: bool = False,
) -> RegisterTile:
    """Return what fits into the registers.

    Parameters
    ----------
    itemsize : int
        Bytes of a number.
    d, d_v : int
        Columns of K and V.
    vector_bytes, registers : int
        Of the processor: size and number of its vector registers.
    in_place : bool
        Whether rows are read in place: a row must then be a whole number of parts.
    """
    each = registers_of_block(itemsize, vector_bytes)
    # Sums take three quarters of the registers; the rest is for what is loaded and spread.
    sums = max(1, 3 * registers // 4 // each)
    rows = 1 << min(GROUP.bit_length() - 1, sums.bit_length() - 1)
    keys, columns = max(1, min(3, sums // rows)), max(1, min(2, sums // rows))
    most = most_blocks(itemsize, vector_bytes, registers)
    overhead = PART_OVERHEAD * min(1, 2 / each)
    parts = part_blocks(d, most, in_place, overhead), part_blocks(d_v, most, in_place, overhead)
    return RegisterTile((0,), (0,) * rows, (0,) * keys, (0,) * columns, *parts)


def part_blocks(
    columns: int, most: int, in_place: bool = False, overhead: float = PART_OVERHEAD
) -> int:
    """Return how many blocks, of at most `most`, a part has, so that a row takes the least time.

    `overhead` is what a part takes besides, in times of a block.
    """
    needed = max(1, -(-columns // LANES))
    allowed = [part for part in range(most, 0, -1) if not in_place or needed % part == 0]
    return min(allowed, key=lambda part: -(-needed // part) * (part + overhead))


def padded(columns: int, part: int) -> int:
    """Return the columns of rows that are stored in whole parts of so many blocks."""
    width = LANES * part
    return max(1, -(-columns // width)) * width
