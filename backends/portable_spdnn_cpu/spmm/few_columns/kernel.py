"""The kernel of a product of few columns: one compiled function with few arguments.

A call computes for a few microseconds, so that what surrounds it counts. All that does not change
from call to call is in a table, whose address is passed; arrays come in one type, of any strides
and alignment and read-only but for the result, so that there is one function for all. Numba's
dispatcher then takes less than half a microsecond. Where several threads share a product, each
calls the generated function by its address.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir
from numba.core import cgutils, types

from portable_spdnn_cpu.jit.compilation import Array, intrinsic, kernel
from portable_spdnn_cpu.jit.jobs import job
from portable_spdnn_cpu.spmm.emitter import WORD
from portable_spdnn_cpu.spmm.few_columns.microkernels import define_product
from portable_spdnn_cpu.spmm.few_columns.operands import ARGUMENTS
from portable_spdnn_cpu.spmm.few_columns.specs import LanesSpec, RowsSpec

# (job, B, out, residual) -> the address of the generated function; see `multiply` below.
Kernel = Callable[[int, Array, Array, Array], int]

# Words of a job of several threads: the address of the generated function, its arguments but for
# the first, and then the first for each worker, and for one that does all.
FUNCTION, FIRST_WORKER = 0, len(ARGUMENTS)


@job
def multiply_part(worker: int, words: Array) -> None:
    """Call the generated function for a worker."""
    call_product(worker, words)


@intrinsic
def call_product(typingctx: Any, worker: Any, words: Any) -> Any:
    """Call the function at words[FUNCTION] with the worker's own argument and those of all."""
    signature = types.void(types.intp, words)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        def word(number: Any) -> Any:
            return builder.load(builder.gep(args[1], [number]))

        kind = ir.FunctionType(ir.VoidType(), [WORD] * len(ARGUMENTS)).as_pointer()
        own = word(builder.add(args[0], WORD(FIRST_WORKER)))
        rest = [word(WORD(number)) for number in range(1, len(ARGUMENTS))]
        builder.call(builder.inttoptr(word(WORD(FUNCTION)), kind), [own, *rest])
        return context.get_dummy_value()

    return signature, codegen


@functools.cache
def compiled(spec: LanesSpec | RowsSpec, dtype: Any) -> Kernel:
    """Return the kernel of a form, compiled for values of a type.

    Parameters
    ----------
    spec : LanesSpec or RowsSpec
    dtype : numba.types.Type
        float32 or float64.
    """
    # Numbers, of which Numba's key for what it keeps is made.
    columns, vector_bytes = spec.columns, spec.vector_bytes
    window_bytes = spec.window_bytes if isinstance(spec, LanesSpec) else 0

    @kernel
    def multiply(job: int, B: Array, out: Array, residual: Array) -> int:
        """Compute parts of out = epilogue(A B), and return the generated function's address.

        Parameters
        ----------
        job : int
            The address of what `operands.JOB` lists.
        B : ndarray, shape (K, N)
        out : ndarray, shape (M, N)
        residual : ndarray, shape (M, N), or (0, 0) where there is none
        """
        address: int = product(columns, vector_bytes, window_bytes, job, B, out, residual)
        return address

    read = types.Array(dtype, 2, "A", readonly=True, aligned=False)
    written = types.Array(dtype, 2, "A", aligned=False)
    dispatcher = cast(Any, multiply)
    dispatcher.compile((types.int64, read, written, read))
    dispatcher.disable_compile()  # from here on, arrays of other types are taken as these
    return cast(Kernel, multiply)


@intrinsic
def product(
    typingctx: Any,
    columns: Any,
    vector_bytes: Any,
    window_bytes: Any,
    job: Any,
    B: Any,
    out: Any,
    residual: Any,
) -> Any:
    """Call the generated function of a form, rows where `window_bytes` is 0; give its address.

    The first three are the spec's, and constants that Numba knows: it asks with others first.
    """
    numbers = columns, vector_bytes, window_bytes
    if not all(isinstance(number, types.IntegerLiteral) for number in numbers):
        return None
    sizes = [number.literal_value for number in numbers]
    spec = spec_of(sizes, B.dtype.bitwidth // 8)
    signature = types.int64(*numbers, types.int64, B, out, residual)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        job, *arrays = args[3:]
        words = [job]
        for kind, value in zip(sig.args[4:], arrays, strict=True):
            array = context.make_array(kind)(context, builder, value)
            strides = cgutils.unpack_tuple(builder, array.strides)
            rows = builder.extract_value(array.shape, 0)
            held = builder.icmp_unsigned("!=", rows, ir.Constant(WORD, 0))
            # At address 0 where there are no rows, as of a residual that is none.
            address = builder.ptrtoint(array.data, WORD)
            words += [builder.select(held, address, ir.Constant(WORD, 0)), *strides]
        function = define_product(
            builder.module, builder.module.get_unique_name("few_columns_product"), spec
        )
        function.linkage = "internal"
        builder.call(function, words)
        return builder.ptrtoint(function, WORD)

    return signature, codegen


def spec_of(sizes: list[int], itemsize: int) -> LanesSpec | RowsSpec:
    """Return the spec of these numbers, of the form row by row where `window_bytes` is 0."""
    columns, vector_bytes, window_bytes = sizes
    if window_bytes:
        return LanesSpec(columns, itemsize, vector_bytes, window_bytes)
    return RowsSpec(columns, itemsize, vector_bytes)
