"""Storing a part of a vector, for emitters.

Masked stores of AVX-512 take no longer than others. Those of AVX2 are dozens of micro-operations on
AMD's processors, and without AVX2 LLVM stores lane by lane: there a part is stored in pieces of 1,
2, 4, ... lanes, each behind a branch that a loop over rows of one length predicts.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils

from portable_spdnn_cpu.jit.intrinsics import broadcast
from portable_spdnn_cpu.jit.target import VECTOR_BYTES

Value = Any  # an LLVM value or type; llvmlite has no types
WORD, INT32 = ir.IntType(64), ir.IntType(32)
HAS_FAST_MASKS = VECTOR_BYTES == 64


def store_first(
    builder: Any, value: Value, pointer: Value, count: Value | int, align: int = 1
) -> None:
    """Store the first lanes of a vector; no byte beyond them is touched.

    Parameters
    ----------
    builder : llvmlite.ir.IRBuilder
    value : LLVM vector
        Of floating-point numbers, a power of two of them from 2 on.
    pointer : LLVM pointer
    count : LLVM word or int
        How many lanes; all of them where it is larger.
    align : int
        What the pointer is known to be a multiple of, in bytes.
    """
    lanes = value.type.count
    if isinstance(count, int):
        count = ir.Constant(WORD, count)  # branches on it are none
    if HAS_FAST_MASKS:
        _store_masked(builder, value, pointer, count, align)
        return
    target = builder.bitcast(pointer, value.type.as_pointer())
    whole = builder.icmp_signed(">=", count, WORD(lanes))
    with builder.if_else(whole) as (all_lanes, some):
        with all_lanes:
            builder.store(value, target, align=align)
        with some:
            _store_pieces(builder, value, pointer, count, align)


def _store_pieces(builder: Any, value: Value, pointer: Value, count: Value, align: int) -> None:
    """Store fewer than all lanes: a piece for each bit of their number, from the highest down."""
    pointer = builder.bitcast(pointer, value.type.element.as_pointer())
    piece = value.type.count // 2
    while piece:
        low, high = (
            builder.shuffle_vector(
                value, value, ir.Constant(ir.VectorType(INT32, piece), list(range(at, at + piece)))
            )
            for at in (0, piece)
        )
        before = builder.block
        has_piece = builder.icmp_signed("!=", builder.and_(count, WORD(piece)), WORD(0))
        with builder.if_then(has_piece):
            builder.store(low, builder.bitcast(pointer, low.type.as_pointer()), align=align)
            following, stored = builder.gep(pointer, [WORD(piece)]), builder.block
        rest, place = builder.phi(low.type), builder.phi(pointer.type)
        for joined, same, moved in ((rest, low, high), (place, pointer, following)):
            joined.add_incoming(same, before)
            joined.add_incoming(moved, stored)
        value, pointer, piece = rest, place, piece // 2


def _store_masked(builder: Any, value: Value, pointer: Value, count: Value, align: int) -> None:
    """Store by a masked store."""
    lanes = value.type.count
    numbers = ir.VectorType(INT32, lanes)
    # Lanes are compared as 32 bits, of which a vector is one register: first the count is at most
    # their number, as a word may not fit in 32 bits.
    count = builder.select(builder.icmp_signed("<", count, WORD(lanes)), count, WORD(lanes))
    mask = builder.icmp_signed(
        "<",
        ir.Constant(numbers, list(range(lanes))),
        broadcast(builder, numbers, builder.trunc(count, INT32)),
    )
    target = builder.bitcast(pointer, value.type.as_pointer())
    operands = [value, target, INT32(align), mask]
    kind = ir.FunctionType(ir.VoidType(), [operand.type for operand in operands])
    bits = 32 if isinstance(value.type.element, ir.FloatType) else 64
    name = f"llvm.masked.store.v{lanes}f{bits}.p0"
    builder.call(cgutils.get_or_insert_function(builder.module, kind, name), operands)
