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

from portable_spdnn_cpu.activations import NONE
from portable_spdnn_cpu.jit.array_objects import (
    ARRAY_OBJECT,
    EXPECTED_WORDS,
    address_of_object,
    is_expected,
    is_writeable,
    locked_kernel,
    release_lock,
    take_lock,
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
from portable_spdnn_cpu.jit.jobs import Job, array_at, call_code, run_share
from portable_spdnn_cpu.spmm.emitter import WORD
from portable_spdnn_cpu.spmm.few_columns.microkernels import define_product
from portable_spdnn_cpu.spmm.few_columns.operands import ARGUMENTS, OPERANDS
from portable_spdnn_cpu.spmm.few_columns.specs import LanesSpec, RowsSpec, SlicedSpec, Spec
from portable_spdnn_cpu.spmm.plain_arrays import NOT_PLAIN, Place, layout_between, place_of

# Words of a job, in this order:
# - where the operands lie, as `OPERANDS`;
# - the address of its machine code, the number of the part that is the whole product, rows, columns
#   and bytes of an item of C;
# - the scratch memory where C may be computed in C order, 0 for none, and the address of the code
#   that then brings it into Fortran order, see `spmm.transposes`; if it was computed there, where C
#   is to go in Fortran order, else 0, and the items from one column to the next there;
# - the `Activation` that follows, NONE where bounds express it, whose bounds are bits of float64;
# - what `multiply_plain` expects: whether it gets transposes, the `Layout` of B, the address of
#   None, as code that is kept on disk knows none, and what B and C are like;
# - the address of each worker's part, and last that of the whole; see `operands.PART`.
B_AT, B_ROW, B_COLUMN, OUT_AT, OUT_ROW, OUT_COLUMN, RESIDUAL_AT, RESIDUAL_ROW, RESIDUAL_COLUMN = (
    range(len(OPERANDS))
)
MACHINE_CODE, WHOLE_PART, ROWS, COLUMNS, ITEMSIZE = range(len(OPERANDS), len(OPERANDS) + 5)
BESIDE_AT, STORE_COLUMNS, FINAL_AT, FINAL_STEP = range(ITEMSIZE + 1, ITEMSIZE + 5)
ACTIVATION, LOWER, UPPER = range(FINAL_STEP + 1, FINAL_STEP + 4)
TRANSPOSED, LAYOUT, NONE_ADDRESS, EXPECTED_B = range(UPPER + 1, UPPER + 5)
EXPECTED_OUT = EXPECTED_B + EXPECTED_WORDS
FIRST_PART = EXPECTED_OUT + EXPECTED_WORDS


@job_kernel
def multiply_part(
    worker: int,
    words: Array,
    columns: int,
    vector_bytes: int,
    window_bytes: int,
    place_bytes: int,
    prefetches: int,
    wide: int,
    dtype: Any,
) -> None:
    """Compute a worker's part of out = epilogue(A B)."""
    product(
        worker, words, columns, vector_bytes, window_bytes, place_bytes, prefetches, wide, dtype
    )


@functools.cache
def job_of(spec: Spec) -> Job:
    """Return the job of products in a form."""
    window_bytes, wide = 0, 0
    if isinstance(spec, LanesSpec):
        window_bytes, wide = spec.window_bytes, int(spec.wide)
    place_bytes = spec.place_bytes if isinstance(spec, SlicedSpec) else 0
    dtype = np.float32 if spec.itemsize == 4 else np.float64
    numbers = window_bytes, place_bytes, int(spec.prefetches), wide
    return Job(multiply_part, spec.columns, spec.vector_bytes, *numbers, dtype)


@intrinsic
def product(
    typingctx: Any,
    worker: Any,
    words: Any,
    columns: Any,
    vector_bytes: Any,
    window_bytes: Any,
    place_bytes: Any,
    prefetches: Any,
    wide: Any,
    dtype: Any,
) -> Any:
    """Call the generated function of a form for a worker; see `spec_of`.

    The numbers after the words are the spec's, and constants: Numba asks with others first.
    """
    numbers = columns, vector_bytes, window_bytes, place_bytes, prefetches, wide
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
    columns, vector_bytes, window_bytes, place_bytes, prefetches, wide = sizes
    common, further = (columns, itemsize, vector_bytes), {"prefetches": prefetches > 0}
    if window_bytes:
        return LanesSpec(*common, window_bytes, wide=wide > 0, **further)
    if place_bytes:
        return SlicedSpec(*common, place_bytes, **further)
    return RowsSpec(*common, **further)


@kernel_part
def write_place(words: Array, word: int, array: Array) -> None:
    """Write where a matrix lies, from a word on: at address 0 where it has no items."""
    words[word] = address_if_any(array)
    words[word + 1], words[word + 2] = array.strides


@kernel_part
def run_whole(job_at: int) -> None:
    """Run a whole product on the calling thread, given the address of the job's words.

    It cannot fail: nothing is allocated.
    """
    words = array_at(job_at, FIRST_PART, np.int64)
    run_share(words[MACHINE_CODE], words[WHOLE_PART], job_at)
    finish(job_at)


@kernel
def finish(job_at: int) -> None:
    """Do what follows a product whose parts are all done: an activation, and a transpose.

    C is in one piece if it has an activation that bounds do not express.
    """
    words = array_at(job_at, FIRST_PART, np.int64)
    rows, columns, source = words[ROWS], words[COLUMNS], words[OUT_AT]
    if words[ACTIVATION] != NONE:
        bounds = array_at(job_at, FIRST_PART, np.float64)
        lower, upper = bounds[LOWER], bounds[UPPER]
        call_code(words[ACTIVATION], (source, rows * columns, lower, upper))
    target, step = words[FINAL_AT], words[FINAL_STEP]
    if target:
        call_code(words[STORE_COLUMNS], (target, step, source, columns, 0, rows, columns, 0))


@kernel_part
def write_out(words: Array, address: int, row_step: int, column_step: int) -> None:
    """Write where C is to go, and how many bytes its rows and columns are apart.

    C in Fortran order is computed in scratch memory, if there is some: in Fortran order items of a
    row are far apart, often by a power of two, so that they compete for a few sets of each cache.
    """
    itemsize = words[ITEMSIZE]
    words[FINAL_AT] = 0
    if words[BESIDE_AT] and row_step == itemsize and column_step % itemsize == 0:
        words[FINAL_AT], words[FINAL_STEP] = address, column_step // itemsize
        address, row_step, column_step = words[BESIDE_AT], words[COLUMNS] * itemsize, itemsize
    words[OUT_AT], words[OUT_ROW], words[OUT_COLUMN] = address, row_step, column_step


@kernel
def multiply(job_at: int, run_now: bool, B: Array, out: Array, residual: Array) -> None:
    """Write where the operands of a job lie, and run it, if it is not to run on several threads.

    Parameters
    ----------
    job_at : int
        The address of the job's words.
    run_now : bool
    B : ndarray, shape (K, N)
    out : ndarray, shape (M, N)
    residual : ndarray, shape (M, N), or (0, 0) where there is none
    """
    words = array_at(job_at, FIRST_PART, np.int64)
    write_place(words, B_AT, B)
    write_out(words, address_if_any(out), *out.strides)
    write_place(words, RESIDUAL_AT, residual)
    if run_now:
        run_whole(job_at)


@kernel_part
def address_and_steps(place: Place, transposed: bool) -> tuple[int, int, int]:
    """Return the address of a matrix, and the bytes from row to row and from column to column.

    `transposed`: of its transpose.
    """
    if transposed:
        return place.address, place.column_step, place.row_step
    return place.address, place.row_step, place.column_step


@locked_kernel
def multiply_plain(job_at: int, B: Any, out: Any, residual: Any) -> bool:
    """Compute a product, if its operands are plain arrays as the words expect: see `plain_arrays`.

    Parameters
    ----------
    job_at : int
        The address of the job's words, with what is expected.
    B, out, residual : object, as `ARRAY_OBJECT`
        Whatever a user gave; a residual is None or like C.

    Returns
    -------
    bool
        False where nothing was done.
    """
    of_b, of_out = job_at + 8 * EXPECTED_B, job_at + 8 * EXPECTED_OUT
    if not (is_expected(B, of_b) and is_expected(out, of_out) and is_writeable(out)):
        return False
    words = array_at(job_at, FIRST_PART, np.int64)
    itemsize, transposed = words[ITEMSIZE], words[TRANSPOSED] != 0
    b_place, out_place = place_of(B, itemsize), place_of(out, itemsize)
    if layout_between(b_place, out_place, itemsize, transposed) != words[LAYOUT]:
        return False
    words[B_AT], words[B_ROW], words[B_COLUMN] = address_and_steps(b_place, transposed)
    write_out(words, *address_and_steps(out_place, transposed))
    words[RESIDUAL_AT] = 0
    if address_of_object(residual) != words[NONE_ADDRESS]:
        if not is_expected(residual, of_out):
            return False
        place = place_of(residual, itemsize)
        if layout_between(place, out_place, itemsize, transposed) == NOT_PLAIN:
            return False
        found = address_and_steps(place, transposed)
        words[RESIDUAL_AT], words[RESIDUAL_ROW], words[RESIDUAL_COLUMN] = found
    state = release_lock()
    run_whole(job_at)
    take_lock(state)
    return True


class EntryPoints(NamedTuple):
    """The functions of these names, compiled, as Python calls them.

    Attributes
    ----------
    multiply : callable
        For arrays of a type; callers have looked at that and at their dimensions.
    finish : callable
    multiply_plain : callable
        For any objects.
    """

    multiply: Callable[..., None]
    finish: Callable[[int], None]
    multiply_plain: Callable[[int, object, object, object], bool]


@functools.cache
def entry_points(dtype: np.dtype[Any]) -> EntryPoints:
    """Return what starts products of a type, float32 or float64."""
    read, written = array_types(dtype, 2)
    return EntryPoints(
        entry_point(multiply, types.int64, types.boolean, read, written, read),
        entry_point(finish, types.int64),
        entry_point(multiply_plain, types.int64, *[ARRAY_OBJECT] * 3),
    )
