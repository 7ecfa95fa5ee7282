"""Vectors and parts of them: what emitters of LLVM code share.

Masked stores of AVX-512 take no longer than others. Those of AVX2 are dozens of micro-operations on
AMD's processors, and without AVX2 LLVM stores lane by lane: there a part is stored in pieces of 1,
2, 4, ... lanes, each behind a branch that a loop over rows of one length predicts. Loads stay
masked: what is loaded so is the end of a row, once.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils

from portable_spdnn_cpu.jit.target import HAS_FAST_MASKS

Value = Any  # an LLVM value or type; llvmlite has no types
FUSED = ("contract",)  # a multiplication and an addition may become one instruction
WORD, INT32 = ir.IntType(64), ir.IntType(32)


def broadcast(builder: Any, vector: Value, scalar: Value) -> Value:
    """Return a vector, of an LLVM type, each lane of which holds a number."""
    undefined = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(undefined, scalar, INT32(0))
    lanes = ir.Constant(ir.VectorType(INT32, vector.count), None)
    return builder.shuffle_vector(first, undefined, lanes)


def multiply_add(builder: Any, first: Value, second: Value, addend: Value) -> Value:
    """Return first x second + addend of numbers or vectors, by one instruction where there is one.

    Not `llvm.fma`: where a processor has none, that is a call for each lane.
    """
    kind = ir.FunctionType(addend.type, [addend.type] * 3)
    return call(builder, f"llvm.fmuladd.{_suffix(addend.type)}", kind, [first, second, addend])


def clamped(builder: Any, value: Value, lower: Value, upper: Value) -> Value:
    """Return min(max(value, lower), upper) of numbers or vectors.

    NaN stays, because ordered comparisons with NaN are false.
    """
    for comparison, bound in (("<", lower), (">", upper)):
        beyond = builder.fcmp_ordered(comparison, value, bound)
        value = builder.select(beyond, bound, value)
    return value


def first_lanes(builder: Any, count: Value, lanes: int) -> Value:
    """Return a mask of the lanes whose numbers are below `count`, a word from -2^31 on."""
    numbers = ir.VectorType(INT32, lanes)
    # The count is limited to `lanes` first, since it is compared in 32 bits.
    count = builder.select(builder.icmp_signed("<", count, WORD(lanes)), count, WORD(lanes))
    bound = broadcast(builder, numbers, builder.trunc(count, INT32))
    return builder.icmp_signed("<", ir.Constant(numbers, list(range(lanes))), bound)


def load_masked(builder: Any, vector: Value, pointer: Value, mask: Value, align: int = 1) -> Value:
    """Load the lanes that a mask selects; the others are zeros, and their memory is not read.

    `align` is what the pointer is known to be a multiple of, in bytes.
    """
    operands = [
        builder.bitcast(pointer, vector.as_pointer()), INT32(align), mask, ir.Constant(vector, None)
    ]  # fmt: skip
    kind = ir.FunctionType(vector, [operand.type for operand in operands])
    return call(builder, f"llvm.masked.load.{_suffix(vector)}.p0", kind, operands)


def load_first(builder: Any, vector: Value, pointer: Value, count: Value, align: int = 1) -> Value:
    """Load the first `count` lanes; the others are zeros, and their memory is not read."""
    mask = first_lanes(builder, count, vector.count)
    return load_masked(builder, vector, pointer, mask, align)


def store_first(
    builder: Any, value: Value, pointer: Value, count: Value | int, align: int = 1
) -> None:
    """Store the first lanes of a vector; no byte beyond them is touched.

    Parameters
    ----------
    builder : llvmlite.ir.IRBuilder
    value : LLVM vector
        Of floating-point numbers, a power of two of them.
    pointer : LLVM pointer
    count : LLVM word or int
        How many lanes, not negative; all of them where it is larger.
    align : int
        What the pointer is known to be a multiple of, in bytes.
    """
    lanes = value.type.count
    if isinstance(count, int):
        count = ir.Constant(WORD, count)  # LLVM removes branches on it
    if HAS_FAST_MASKS:
        store_masked(builder, value, pointer, first_lanes(builder, count, lanes), align)
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


def store_masked(builder: Any, value: Value, pointer: Value, mask: Value, align: int = 1) -> None:
    """Store the lanes that a mask selects; no other byte is touched.

    `align` is what the pointer is known to be a multiple of, in bytes.
    """
    vector = value.type
    target = builder.bitcast(pointer, vector.as_pointer())
    operands = [value, target, INT32(align), mask]
    kind = ir.FunctionType(ir.VoidType(), [operand.type for operand in operands])
    call(builder, f"llvm.masked.store.{_suffix(vector)}.p0", kind, operands)


def call(builder: Any, name: str, kind: Value, arguments: list[Value]) -> Value:
    """Call a function or instruction of LLVM's by name."""
    function = cgutils.get_or_insert_function(builder.module, kind, name)
    return builder.call(function, arguments)


def _suffix(kind: Value) -> str:
    """Return what names of LLVM's functions for a type of numbers or vectors end with."""
    if isinstance(kind, ir.VectorType):
        return f"v{kind.count}{kind.element.intrinsic_name}"
    return str(kind.intrinsic_name)
