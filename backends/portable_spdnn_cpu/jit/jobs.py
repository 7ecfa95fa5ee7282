"""Kernels that run by address: threads call them without Python, and without its lock.

A job is one array of int64: addresses of arrays, sizes, and the bits of floats, in an order that
its kernel defines. Whoever starts it keeps the arrays alive, and packs the words::

    X, SIZE, FACTOR = range(3)

    @job
    def scale(worker: int, words: Array) -> None:
        x = array_at(words[X], words[SIZE], np.float32)
        ...

    words = np.array([x.__array_interface__["data"][0], x.size, 0])
    words[FACTOR:].view(np.float64)[0] = 0.5
    pool.run_job(scale, words)

A kernel for several types of elements is a `job_kernel` that takes the type as a further argument;
``Job(scale_any, np.float32)`` and ``Job(scale_any, np.float64)`` are jobs of it.

A kernel is called once for each worker, at once or by turns, and shares the work out by counters
among the words (`next_task`; 0 for each run) or by the number of the worker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.compiler_lock import global_compiler_lock
from numba.np.numpy_support import carray

from portable_spdnn.caching import cached_property
from portable_spdnn_cpu.jit.compilation import (
    Array,
    Emission,
    intrinsic,
    is_part,
    job_kernel,
    kernel,
    kernel_part,
)
from portable_spdnn_cpu.jit.intrinsics import fetch_add

COUNTER_PADDING = 8  # words: a cache line
# Of arrays at addresses, whose length is not known; slices want one all the same.
LENGTH = 1 << 48
_ARGUMENTS = types.intp, types.CPointer(types.int64)


def machine_code(function: Any, signature: Any) -> int:
    """Return the address of the machine code of a kernel for a signature, compiled if need be."""
    # Under the lock that no fork happens within: llvmlite has another one, for each call.
    with global_compiler_lock:
        code = function.get_compile_result(signature)
        return int(code.library.get_pointer_to_function(code.fndesc.llvm_func_name))


def code_signature(numbers: str, *constants: Any, returns: bool = False) -> Any:
    """Return the signature of a kernel that `call_code` runs, or `call_code_for_integer`.

    Parameters
    ----------
    numbers : str
        A letter for each number that it takes: "i" for an integer or an address, "f" for a float64.
    *constants
        What it takes besides, as `Job` has them.
    returns : bool
        Whether it returns an integer, and not nothing.
    """
    kinds = [types.float64 if letter == "f" else types.intp for letter in numbers]
    result = types.intp if returns else types.void
    return result(*kinds, *map(types.Omitted, constants))


def code_address(kernel: Any, numbers: str, *constants: Any, returns: bool = False) -> int:
    """Return the address of a kernel's machine code for what `code_signature` takes."""
    return machine_code(kernel, code_signature(numbers, *constants, returns=returns))


class Job:
    """A kernel that runs by address, compiled when its address is first asked for.

    Parameters
    ----------
    function : callable
        A `job_kernel` that takes the worker, from 0, the words, which it may write to, and then
        the constants. It is no closure: machine code on disk is found by the function's name and
        the types of its arguments alone.
    *constants
        Types such as np.float32, integers, or tuples of integers. Each set of them has machine code
        of its own, to which they are not passed.
    """

    def __init__(self, function: Any, *constants: Any) -> None:
        self._compiled, self._constants = function, constants
        name = function.py_func.__qualname__
        if is_part(function):
            raise TypeError(f"{name} is a kernel_part, which has no address; a job is a job_kernel")
        if function.py_func.__closure__:
            raise TypeError(f"{name} is a closure; a job takes all from its words")

    @cached_property
    def address(self) -> int:
        """Of machine code that takes and returns what Numba's functions do; see `run_share`."""
        # As if the constants were the values of parameters that a call leaves out.
        constants = map(types.Omitted, self._constants)
        return machine_code(self._compiled, types.void(*_ARGUMENTS, *constants))


def job(function: Callable[[int, Array], None]) -> Job:
    """Return the job whose kernel a function is."""
    return Job(job_kernel(function))


@kernel
def address_of(array: Array) -> int:
    """Return the address of the first item of an array, which the caller keeps alive.

    In compiled code this takes a quarter of the time of NumPy's own ways.
    """
    address: int = array.ctypes.data
    return address


def in_order(array: Array) -> Array:
    """Return an array in C order whose items are aligned: itself where it is so."""
    flags = array.flags
    return array if flags.c_contiguous and flags.aligned else np.array(array, order="C")


def call_address(
    context: Any, builder: Any, address: Any, arguments: tuple[Any, ...], values: list[Any],
    result: Any = types.none,
) -> Any:  # fmt: skip
    """Emit the call of a kernel by its address, and return its status and what it returns.

    `arguments` are the types of its arguments, `values` their LLVM values.
    """
    convention = context.call_conv
    kind = convention.get_function_type(result, arguments).as_pointer()
    pointer = builder.inttoptr(address, kind)
    return convention.call_function(builder, pointer, result, arguments, values)


@intrinsic
def run_share(typingctx: Any, address: Any, worker: Any, words: Any) -> Emission:
    """Run a job's kernel by its address for a worker, and return whether it raised an exception.

    `words` is the address of the words.
    """
    signature = types.boolean(types.intp, types.intp, types.intp)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        words = builder.inttoptr(args[2], context.get_value_type(_ARGUMENTS[1]))
        status, _ = call_address(context, builder, args[0], _ARGUMENTS, [args[1], words])
        return status.is_error

    return signature, codegen


@intrinsic
def call_code(typingctx: Any, address: Any, numbers: Any) -> Emission:
    """Call a kernel by its address, with a tuple of numbers; see `code_address`.

    Floats are passed as float64, all other numbers as intp, and a pointer, such as a job's words,
    as its address. The kernel must raise no exception: its status is not looked at.
    """

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        _call_with_numbers(context, builder, args, numbers, types.none)
        return context.get_dummy_value()

    return types.void(types.intp, numbers), codegen


@intrinsic
def call_code_for_integer(typingctx: Any, address: Any, numbers: Any) -> Emission:
    """Call a kernel as `call_code` does, and return its integer."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _call_with_numbers(context, builder, args, numbers, types.intp)

    return types.intp(types.intp, numbers), codegen


def _call_with_numbers(context: Any, builder: Any, args: Any, numbers: Any, result: Any) -> Any:
    """Emit what `call_code` does with the values of its arguments, and return the result."""
    address, given = args
    kinds = [types.float64 if isinstance(kind, types.Float) else types.intp for kind in numbers]
    values = [
        builder.ptrtoint(value, context.get_value_type(types.intp))
        if isinstance(own, types.CPointer)
        else context.cast(builder, value, own, kind)
        for value, own, kind in zip(
            cgutils.unpack_tuple(builder, given), numbers, kinds, strict=True
        )
    ]
    return call_address(context, builder, address, tuple(kinds), values, result)[1]


@intrinsic
def pointer_at(typingctx: Any, address: Any, dtype: Any) -> Emission:
    """Return an address as a pointer to elements of a type, such as np.float32."""
    signature = types.CPointer(dtype.dtype)(types.intp, dtype)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(sig.return_type))

    return signature, codegen


@kernel_part
def array_at(address: int, shape: int | tuple[int, ...], dtype: Any) -> Array:
    """Return the array in C order that lies at an address."""
    return carray(pointer_at(address, dtype), shape)


@kernel_part
def next_task(words: Any, counters: int, worker: int, workers: int, tasks: int) -> int:
    """Return one of 0 .. tasks - 1 that no worker has taken yet, or -1 where none is left.

    Ranges with work stealing: each worker first takes the tasks of a range of its own, the same in
    every run, so that it finds in its caches what it left there, and writes to other cache lines
    than its neighbours; then it helps the others with theirs.

    words[counters + w], 0 at the start, counts what was taken of worker w's range. Counters stay
    COUNTER_PADDING words off those that kernels read.
    """
    for step in range(workers):
        owner = (worker + step) % workers
        first, end = owner * tasks // workers, (owner + 1) * tasks // workers
        if first + words[counters + owner] < end:
            task: int = first + fetch_add(carray(words, 1), counters + owner, 1)
            if task < end:
                return task
    return -1


@intrinsic
def float_of(typingctx: Any, word: Any) -> Emission:
    """Return the float64 that has the bits of a word."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.int64), codegen
