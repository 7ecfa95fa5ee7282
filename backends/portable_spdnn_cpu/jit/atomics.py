"""How threads of compiled code meet without a lock: ordered memory operations, and waiting.

Each intrinsic is a function of Numba's typing context and the types of its arguments, as
`intrinsic` wants; kernels call it with the arguments alone. `words` is an array of int64.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from llvmlite import binding, ir
from numba.core import cgutils, types

from portable_spdnn_cpu.jit.compilation import Emission, intrinsic
from portable_spdnn_cpu.jit.target import is_x86

WORD_BYTES = 8
_IS_X86 = is_x86(binding.get_process_triple())


def _pointer(context: Any, builder: Any, kinds: Any, args: Any) -> Any:
    """Return the address of args[0][args[1]]; for other intrinsics."""
    return builder.gep(context.make_array(kinds[0])(context, builder, args[0]).data, [args[1]])


@intrinsic
def load_acquire(typingctx: Any, words: Any, index: Any) -> Emission:
    """Return words[index]; what its writer wrote before it is seen by all that follows here."""
    signature = types.int64(words, types.intp)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.load_atomic(
            _pointer(context, builder, sig.args, args), "acquire", WORD_BYTES, typ=ir.IntType(64)
        )

    return signature, codegen


@intrinsic
def store_release(typingctx: Any, words: Any, index: Any, value: Any) -> Emission:
    """Set words[index] = value, after all that was written and read before."""
    signature = types.void(words, types.intp, types.int64)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = _pointer(context, builder, sig.args, args)
        builder.store_atomic(args[2], pointer, "release", WORD_BYTES)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def compare_exchange(typingctx: Any, words: Any, index: Any, old: Any, new: Any) -> Emission:
    """Set words[index] = new if it is `old`, at once, and return whether it was: one thread wins.

    Ordered as `load_acquire`, and where it writes as `store_release` too.
    """
    signature = types.boolean(words, types.intp, types.int64, types.int64)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = _pointer(context, builder, sig.args, args)
        found = builder.cmpxchg(pointer, args[2], args[3], "acq_rel", "acquire")
        return builder.extract_value(found, 1)

    return signature, codegen


@intrinsic
def pause(typingctx: Any) -> Emission:
    """Let some 40 to 140 cycles pass, and other threads of the core run; on x86, else nothing."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if _IS_X86:
            kind = ir.FunctionType(ir.VoidType(), [])
            name = "llvm.x86.sse2.pause"
            builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [])
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def give_way(typingctx: Any) -> Emission:
    """Let the system run another thread on this core, where one waits for it: sched_yield()."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32), [])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), [])
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def nanoseconds(typingctx: Any) -> Emission:
    """Return the time of a clock that never goes back: clock_gettime(CLOCK_MONOTONIC)."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        word, number = ir.IntType(64), ir.IntType(32)
        timespec = cgutils.alloca_once(builder, word, size=2)
        kind = ir.FunctionType(number, [number, timespec.type])
        function = cgutils.get_or_insert_function(builder.module, kind, "clock_gettime")
        builder.call(function, [number(time.CLOCK_MONOTONIC), timespec])
        seconds, rest = (builder.load(builder.gep(timespec, [number(n)])) for n in range(2))
        return builder.add(builder.mul(seconds, word(10**9)), rest)

    return types.int64(), codegen


@intrinsic
def current_core(typingctx: Any) -> Emission:
    """Return the number of the core that runs this thread, -1 where the system does not tell."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        word, number = ir.IntType(64), ir.IntType(32)
        if not sys.platform.startswith("linux"):
            return word(-1)
        kind = ir.FunctionType(number, [])
        function = cgutils.get_or_insert_function(builder.module, kind, "sched_getcpu")
        return builder.sext(builder.call(function, []), word)

    return types.int64(), codegen
