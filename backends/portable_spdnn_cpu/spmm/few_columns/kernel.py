"""The kernels of products of few columns, and what Python calls to start one.

A product takes a few microseconds or less, so that what surrounds it counts. All that does not
change from call to call is in memory that a kernel finds by address, and one compiled call takes B
and C as they are, writes where they lie to the job's words, and runs the kernel.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba.core import types

from portable_spdnn_cpu.activations import RELU, call_span_code
from portable_spdnn_cpu.jit.array_objects import (
    ARRAY_OBJECT,
    EXPECTED,
    address_of_object,
    is_expected,
    is_writeable,
)
from portable_spdnn_cpu.jit.compilation import (
    Array,
    array_types,
    entry_point,
    intrinsic,
    job_kernel,
    kernel,
    kernel_part,
)
from portable_spdnn_cpu.jit.job_start import address_if_any
from portable_spdnn_cpu.jit.jobs import Job, array_at, run_share
from portable_spdnn_cpu.spmm.emitter import WORD
from portable_spdnn_cpu.spmm.few_columns.microkernels import define_product
from portable_spdnn_cpu.spmm.few_columns.operands import ARGUMENTS, OPERANDS
from portable_spdnn_cpu.spmm.few_columns.specs import LanesSpec, RowsSpec, SlicedSpec, Spec
from portable_spdnn_cpu.spmm.plain_arrays import NOT_PLAIN, place_of, plain_layout

# Words of a job: where the operands lie, as `OPERANDS`; the address of its machine code, and the
# number of the part that is the whole product; how many items C has, and the `Activation` of these,
# NONE where bounds express it, of which LOWER and UPPER are the bits of float64; what
# `multiply_plain` expects, if it is called; then the address of each worker's part, and last that
# of the whole; see `operands.PART`.
B_AT, B_ROW, B_COLUMN, OUT_AT, OUT_ROW, OUT_COLUMN, RESIDUAL_AT, RESIDUAL_ROW, RESIDUAL_COLUMN = (
    range(len(OPERANDS))
)
JOB, WHOLE, ITEMS, CODE, LOWER, UPPER, ITEMSIZE, TRANSPOSED, LAYOUT, NONE_AT, EXPECTED_B = range(
    len(OPERANDS), len(OPERANDS) + 11
)
EXPECTED_OUT = EXPECTED_B + EXPECTED
FIRST_PART = EXPECTED_OUT + EXPECTED


@job_kernel
def multiply_part(
    worker: int,
    words: Array,
    columns: int,
    vector_bytes: int,
    window_bytes: int,
    place_bytes: int,
    dtype: Any,
) -> None:
    """Compute a worker's part of out = epilogue(A B)."""
    product(worker, words, columns, vector_bytes, window_bytes, place_bytes, dtype)


@functools.cache
def job_of(spec: Spec) -> Job:
    """Return the job of products in a form."""
    window_bytes = spec.window_bytes if isinstance(spec, LanesSpec) else 0
    place_bytes = spec.place_bytes if isinstance(spec, SlicedSpec) else 0
    dtype = np.float32 if spec.itemsize == 4 else np.float64
    return Job(multiply_part, spec.columns, spec.vector_bytes, window_bytes, place_bytes, dtype)


@intrinsic
def product(
    typingctx: Any,
    worker: Any,
    words: Any,
    columns: Any,
    vector_bytes: Any,
    window_bytes: Any,
    place_bytes: Any,
    dtype: Any,
) -> Any:
    """Call the generated function of a form for a worker; see `spec_of`.

    The numbers after the words are the spec's, and constants: Numba asks with others first.
    """
    numbers = columns, vector_bytes, window_bytes, place_bytes
    if not all(isinstance(number, types.IntegerLiteral) for number in numbers):
        return None
    sizes = [number.literal_value for number in numbers]
    spec = spec_of(sizes, dtype.dtype.bitwidth // 8)
    signature = types.void(types.intp, words, *numbers, dtype)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        worker, words = args[:2]
        name = builder.module.get_unique_name("few_columns_product")
        function = define_product(builder.module, name, spec)
        function.linkage = "internal"
        part = builder.load(builder.gep(words, [builder.add(worker, WORD(FIRST_PART))]))
        values = {"part": part, "operands": builder.ptrtoint(words, WORD)}
        builder.call(function, [values[argument] for argument in ARGUMENTS])
        return context.get_dummy_value()

    return signature, codegen


def spec_of(sizes: list[int], itemsize: int) -> Spec:
    """Return the spec of these numbers: in lanes or sliced where it has bytes of these, or rows."""
    columns, vector_bytes, window_bytes, place_bytes = sizes
    if window_bytes:
        return LanesSpec(columns, itemsize, vector_bytes, window_bytes)
    if place_bytes:
        return SlicedSpec(columns, itemsize, vector_bytes, place_bytes)
    return RowsSpec(columns, itemsize, vector_bytes)


@kernel_part
def write_place(words: Array, at: int, array: Array) -> None:
    """Write where a matrix lies: at address 0 where it has no items."""
    words[at] = address_if_any(array)
    words[at + 1], words[at + 2] = array.strides


@kernel_part
def run_whole(at: int) -> None:
    """Run a whole product, whose words are at this address, on the calling thread.

    C is in one piece if it has an activation that bounds do not express.
    """
    words, bounds = array_at(at, FIRST_PART, np.int64), array_at(at, FIRST_PART, np.float64)
    run_share(words[JOB], words[WHOLE], at)  # which cannot fail
    if words[CODE] > RELU:
        call_span_code(words[CODE], words[OUT_AT], words[ITEMS], bounds[LOWER], bounds[UPPER])


@kernel
def multiply(at: int, alone: bool, B: Array, out: Array, residual: Array) -> None:
    """Write where the operands of a job lie, and run it, if it is not to run on several threads.

    Parameters
    ----------
    at : int
        The address of the job's words.
    alone : bool
        Whether it runs now.
    B : ndarray, shape (K, N)
    out : ndarray, shape (M, N)
    residual : ndarray, shape (M, N), or (0, 0) where there is none
    """
    words = array_at(at, FIRST_PART, np.int64)
    write_place(words, B_AT, B)
    write_place(words, OUT_AT, out)
    write_place(words, RESIDUAL_AT, residual)
    if alone:
        run_whole(at)


@kernel_part
def write_plain_place(
    words: Array, at: int, array: Any, itemsize: int, transposed: bool, first: int = 0
) -> None:
    """Write where an array object in C order lies from a row on, or its transpose."""
    address, _, columns, _ = place_of(array)
    row = columns * itemsize
    words[at] = address + first * row
    words[at + 1], words[at + 2] = (itemsize, row) if transposed else (row, itemsize)


@kernel
def multiply_plain(at: int, B: Any, out: Any, residual: Any) -> bool:
    """Compute a product, if its operands are plain arrays as the words expect: see `plain_arrays`.

    Parameters
    ----------
    at : int
        The address of the job's words, with what is expected.
    B, out, residual : object, as `ARRAY_OBJECT`
        Whatever a user gave; a residual is None or like C.

    Returns
    -------
    bool
        False where nothing was done.
    """
    of_b, of_out = at + 8 * EXPECTED_B, at + 8 * EXPECTED_OUT
    if not (is_expected(B, of_b) and is_expected(out, of_out) and is_writeable(out)):
        return False
    words = array_at(at, FIRST_PART, np.int64)
    itemsize, transposed = words[ITEMSIZE], words[TRANSPOSED] != 0
    if plain_layout(B, out, itemsize, transposed) != words[LAYOUT]:
        return False
    words[RESIDUAL_AT] = 0
    if address_of_object(residual) != words[NONE_AT]:
        if not is_expected(residual, of_out):
            return False
        if plain_layout(residual, out, itemsize, transposed) == NOT_PLAIN:
            return False
        write_plain_place(words, RESIDUAL_AT, residual, itemsize, transposed)
    write_plain_place(words, B_AT, B, itemsize, transposed)
    write_plain_place(words, OUT_AT, out, itemsize, transposed)
    run_whole(at)
    return True


class EntryPoints(NamedTuple):
    """What Python calls of the functions of these names.

    Attributes
    ----------
    multiply : callable
        For arrays of a type, which callers have looked at.
    multiply_plain : callable
    """

    multiply: Callable[..., None]
    multiply_plain: Callable[[int, object, object, object], bool]


@functools.cache
def entry_points(dtype: np.dtype[Any]) -> EntryPoints:
    """Return what starts products of a type, float32 or float64."""
    read, written = array_types(dtype, 2)
    return EntryPoints(
        entry_point(multiply, types.int64, types.boolean, read, written, read),
        entry_point(multiply_plain, types.int64, *[ARRAY_OBJECT] * 3),
    )
