"""Instructions, and a system call, that Numba has no name for.

Each is a function of Numba's typing context and the types of its arguments, as `intrinsic` wants;
kernels call it with the arguments alone, which the first line of its documentation names.
"""

from __future__ import annotations

import mmap
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from portable_spdnn_cpu.jit.compilation import Emission, intrinsic
from portable_spdnn_cpu.jit.vectors import broadcast, multiply_add


def prefetch_line(builder: Any, pointer: Any, written: bool = False) -> None:
    """Emit that the cache line of a byte is prefetched; for other intrinsics.

    `written`: whether it is to be written, so that other cores give it up at once.
    """
    flag = ir.IntType(32)
    # A module declares the intrinsic once, for pointers of one type.
    pointer = builder.bitcast(pointer, ir.IntType(8).as_pointer())
    kind = ir.FunctionType(ir.VoidType(), [pointer.type, flag, flag, flag])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    # Flags: it will be read (0) or written (1), belongs into all cache levels (3), and is data (1).
    builder.call(function, [pointer, flag(int(written)), flag(3), flag(1)])


@intrinsic
def prefetch(typingctx: Any, array: Any, index: Any) -> Emission:
    """Begin to load the cache line of array[index], and go on at once.

    For addresses that hardware does not predict, asked for so early that the line has arrived when
    it is used. An address beyond the array does no harm.
    """
    return types.void(array, types.intp), _prefetch_codegen(written=False)


@intrinsic
def prefetch_to_write(typingctx: Any, array: Any, index: Any) -> Emission:
    """Begin to load the cache line of array[index], which is to be written; see `prefetch`."""
    return types.void(array, types.intp), _prefetch_codegen(written=True)


def _prefetch_codegen(written: bool) -> Any:
    """Return the code generator of `prefetch`, or of `prefetch_to_write`."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        data = context.make_array(sig.args[0])(context, builder, args[0]).data
        place = builder.bitcast(builder.gep(data, [args[1]]), ir.IntType(8).as_pointer())
        prefetch_line(builder, place, written)
        return context.get_dummy_value()

    return codegen


@intrinsic
def advise_large_pages(typingctx: Any, address: Any, size: Any) -> Emission:
    """Ask Linux to put so many bytes of memory in large pages; elsewhere, do nothing.

    See `machine.cpu_info.aligned_empty` for what page faults cost.
    """

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if hasattr(mmap, "MADV_HUGEPAGE"):
            word, number = ir.IntType(64), ir.IntType(32)
            kind = ir.FunctionType(number, [word, word, number])
            function = cgutils.get_or_insert_function(builder.module, kind, "madvise")
            first = builder.add(args[0], word(mmap.PAGESIZE - 1))
            first = builder.and_(first, word(-mmap.PAGESIZE))
            left = builder.sub(builder.add(args[0], args[1]), first)
            builder.call(function, [first, left, number(mmap.MADV_HUGEPAGE)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def stay_apart(typingctx: Any) -> Emission:
    """Let LLVM never make the function that calls this a part of another.

    There, loops may have too few registers.
    """

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def store_repeated(typingctx: Any, array: Any, index: Any, item: Any, together: Any) -> Any:
    """Let as many items of an array as a tuple has, from array[index] on, be `item`."""
    lanes = len(together)
    signature = types.void(array, types.uint64, array.dtype, together)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        data = context.make_array(sig.args[0])(context, builder, args[0]).data
        vector = ir.VectorType(args[2].type, lanes)
        place = builder.bitcast(builder.gep(data, [args[1]]), vector.as_pointer())
        builder.store(broadcast(builder, vector, args[2]), place, align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def trailing_zeros(typingctx: Any, word: Any) -> Emission:
    """Return the number of zero bits below the lowest set bit of a uint64 that is not 0.

    With ``word &= word - 1`` it steps through the set bits without looking at the others.
    """
    signature = types.int64(types.uint64)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        # The flag: 0 need not give a result, which saves a branch on older processors.
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return signature, codegen


@intrinsic
def bit_length(typingctx: Any, word: Any) -> Emission:
    """Return the number of bits that a uint64 needs: floor(log2(word)) + 1, and 0 for 0."""
    signature = types.int64(types.uint64)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        leading = builder.ctlz(args[0], ir.Constant(ir.IntType(1), 0))
        return builder.sub(ir.Constant(leading.type, 64), leading)

    return signature, codegen


@intrinsic
def bit_count(typingctx: Any, word: Any) -> Emission:
    """Return the number of set bits of a uint64."""
    signature = types.int64(types.uint64)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return signature, codegen


@intrinsic
def fetch_add(typingctx: Any, counters: Any, index: Any, amount: Any) -> Emission:
    """Add `amount` to counters[index] atomically, and return what was there before.

    So threads share work out: each number is given to one of them. Other memory is not ordered
    by it ("monotonic"): what a thread writes is for others to read when all have ended.
    """
    signature = types.int64(counters, types.intp, types.int64)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        array = context.make_array(sig.args[0])(context, builder, args[0])
        return builder.atomic_rmw("add", builder.gep(array.data, [args[1]]), args[2], "monotonic")

    return signature, codegen


@intrinsic
def polynomial(typingctx: Any, x: Any, coefficients: Any) -> Emission:
    """Return c[0] x^n + ... + c[n] by Horner's rule, for a tuple of coefficients of x's type.

    Each step is one fused multiply-add where the processor has that instruction, else two
    operations: which one never depends on the surrounding loop, so that a value's bits do not
    depend on where in a vectorized loop it lies.
    """
    signature = x(x, coefficients)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        x, terms = args[0], cgutils.unpack_tuple(builder, args[1])
        total = terms[0]
        for term in terms[1:]:
            total = multiply_add(builder, total, x, term)
        return total

    return signature, codegen
