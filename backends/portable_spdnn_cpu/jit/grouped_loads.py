"""Grouped loads, for emitters: a few neighbouring numbers together.

A kernel that streams entries multiplies operands from the first-level cache. A core begins at most
two loads of 64 bytes in a cycle, and loads of an entry's place and value compete with them. On a
Zen 5 core, with AVX-512, one long row of entries, each times eight vectors, reached 67 % of the
peak with two loads for an entry, and 81 % with two for four.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from portable_spdnn_cpu.jit.loops import hidden
from portable_spdnn_cpu.jit.target import VECTOR_BYTES, has_fast_broadcasts, is_x86
from portable_spdnn_cpu.jit.vectors import broadcast

GROUP = 4
WORD = ir.IntType(64)


def load_numbers(builder: Any, pointer: Any, count: int = GROUP) -> list[Any]:
    """Return unsigned integers of 16, 32 or 64 bits from a pointer on, as words.

    They are loaded 64 bits at a time, of which the first number is the lowest: processors that
    Numba compiles for store them so. `count` is a multiple of how many there are in 64 bits.
    """
    bits = pointer.type.pointee.width
    together = WORD.width // bits
    found = []
    for first in range(0, count, together):
        place = builder.bitcast(builder.gep(pointer, [WORD(first)]), WORD.as_pointer())
        found += split_numbers(builder, builder.load(place, align=bits // 8), bits)
    return found


def load_words(builder: Any, address: Any, count: int, align: int) -> list[Any]:
    """Return a word from an address on, or two by one load, into a vector register of x86.

    Out of that register words come behind multiply-adds that wait for their operands: two are to be
    loaded well before they are used. `align` is what the address is a multiple of.
    """
    if count == 1:
        return [builder.load(builder.inttoptr(address, WORD.as_pointer()), align=align)]
    pair = ir.VectorType(WORD, 2)
    loaded = builder.load(builder.inttoptr(address, pair.as_pointer()), align=align)
    register = hidden(builder, loaded, "v")  # else LLVM would load each word by itself
    return [builder.extract_element(register, ir.IntType(32)(lane)) for lane in range(2)]


def split_numbers(builder: Any, packed: Any, bits: int) -> list[Any]:
    """Return the unsigned integers of 16, 32 or 64 bits that a word holds, the lowest first."""
    mask = WORD((1 << bits) - 1)
    shifted = [builder.lshr(packed, WORD(start)) for start in range(0, WORD.width, bits)]
    words = [builder.and_(word, mask) for word in shifted]
    if bits == 32 and is_x86(builder.module.triple):
        # An empty asm hides the shift and the mask: LLVM would join them with the scaling of an
        # address, which costs nothing, into more instructions.
        words = [hidden(builder, word) for word in words]
    return words


def broadcast_group(
    builder: Any, vector: Any, pointer: Any, vector_bytes: int = VECTOR_BYTES
) -> list[Any]:
    """Return a vector for each of GROUP numbers from a pointer on, all lanes of which hold it.

    Each number is loaded by itself where that is known to take less time, and else shuffled.

    Parameters
    ----------
    builder : llvmlite.ir.IRBuilder
    vector
        The LLVM type of what is returned.
    pointer
        An LLVM value.
    vector_bytes : int
        Bytes of the registers that are used.
    """
    if vector_bytes == 64 and has_fast_broadcasts():
        return load_broadcasts(builder, vector, pointer)
    return shuffle_broadcasts(builder, vector, pointer, vector_bytes)


def load_broadcasts(builder: Any, vector: Any, pointer: Any) -> list[Any]:
    """Return what `broadcast_group` does, by a load into all lanes for each number."""
    places = [builder.gep(pointer, [WORD(number)]) for number in range(GROUP)]
    return [broadcast(builder, vector, builder.load(place)) for place in places]


def shuffle_broadcasts(builder: Any, vector: Any, pointer: Any, vector_bytes: int) -> list[Any]:
    """Return what `broadcast_group` does, by one load and a shuffle for each number.

    The load repeats the numbers in every 16 bytes of a register, or 32 for float64; a shuffle
    within these pieces then spreads each of them. A register with fewer lanes takes two loads.
    """
    size = 4 if isinstance(vector.element, ir.FloatType) else 8
    lanes = min(vector.count, vector_bytes // size)
    together = min(GROUP, lanes)
    found = []
    for first in range(0, GROUP, together):
        numbers = ir.VectorType(vector.element, together)
        place = builder.bitcast(builder.gep(pointer, [WORD(first)]), numbers.as_pointer())
        loaded = builder.load(place, align=size)
        register = _lanes(builder, loaded, [lane % together for lane in range(lanes)])
        if is_x86(builder.module.triple):
            # LLVM sees through shuffles, and would load each number apart, or keep a register of
            # lane numbers for each. An empty asm hides what the register holds.
            register = hidden(builder, register, "v")
        for number in range(together):
            each = [lane - lane % together + number for lane in range(lanes)]
            spread = _lanes(builder, register, each)
            found.append(_lanes(builder, spread, [lane % lanes for lane in range(vector.count)]))
    return found


def _lanes(builder: Any, value: Any, lanes: list[int]) -> Any:
    """Return the named lanes of a vector, as a vector."""
    chosen = ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), lanes)
    return builder.shuffle_vector(value, ir.Constant(value.type, ir.Undefined), chosen)
