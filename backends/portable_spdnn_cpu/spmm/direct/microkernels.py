"""Microkernels: products with A in CSR or CSC, whose structure is checked as it is read.

An index outside of the arrays ends the work before it is used as an address; but for CSC and
NONEMPTY_CSC of a single column indices were checked before, as offsets were for all. An entry that
is stored twice counts twice, as in SciPy.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from portable_spdnn_cpu.jit.compilation import intrinsic, job_kernel, kernel_part
from portable_spdnn_cpu.jit.intrinsics import stay_apart
from portable_spdnn_cpu.jit.jobs import code_address, pointer_at
from portable_spdnn_cpu.spmm.direct.columns import Columns
from portable_spdnn_cpu.spmm.direct.dot_blocks import DotBlocks
from portable_spdnn_cpu.spmm.direct.each_entry import EntriesOfColumns, EntriesOfRows
from portable_spdnn_cpu.spmm.direct.job_words import REFUSED
from portable_spdnn_cpu.spmm.direct.predicted import (
    EachColumn,
    LongColumns,
    NonemptyColumns,
    NonemptyRows,
    PredictedRows,
)
from portable_spdnn_cpu.spmm.direct.rows import Rows, ShiftedRows
from portable_spdnn_cpu.spmm.direct.unrolled import EqualColumns, EqualRows
from portable_spdnn_cpu.spmm.emitter import WORD

# Constants for Numba, to which a tuple's length is part of its type.
CSR, CSC, EQUAL_CSR, EQUAL_CSC, PREDICTED_CSR, NONEMPTY_CSR, NONEMPTY_CSC, LONG_CSC = (
    (0,) * number for number in range(8)
)
ENTRIES_CSR, ENTRIES_CSC, SHIFTED_CSR = (0,) * 8, (0,) * 9, (0,) * 10
LEAST_BYTES = 8  # of a vector: sizes are told in units of these


@functools.cache
def multiplying_code(
    form: tuple[int, ...],
    vectors: int,
    vector_bytes: int,
    dtype: np.dtype[Any],
    index_dtype: np.dtype[Any],
) -> int:
    """Return the address of the machine code of `multiply_columns`, for `call_code_for_integer`.

    Parameters
    ----------
    form : tuple
        As `multiply` has it.
    vectors, vector_bytes : int
        How many vectors so many columns take, and the bytes of each, a multiple of LEAST_BYTES.
    dtype, index_dtype : dtype
        Of values, and of offsets and indices.
    """
    sizes = (0,) * vectors, (0,) * (vector_bytes // LEAST_BYTES)
    constants = form, *sizes, dtype.type, index_dtype.type
    return code_address(multiply_columns, "i" * 5, *constants, returns=True)


@job_kernel
def multiply_columns(
    words: int, begin: int, end: int, column: int, columns: int, form: tuple[int, ...],
    vectors: tuple[int, ...], units: tuple[int, ...], dtype: Any, index_dtype: Any,
) -> int:  # fmt: skip
    """Do what `multiply` does, for words at an address, and return 0 where that returns false."""
    at = pointer_at(words, np.int64)
    valid = multiply(form, vectors, units, dtype, index_dtype, at, begin, end, column, columns)
    return 1 if valid else 0


@intrinsic
def multiply(
    typingctx: Any,
    form: Any,
    vectors: Any,
    units: Any,
    dtype: Any,
    index_dtype: Any,
    words: Any,
    begin: Any,
    end: Any,
    column: Any,
    columns: Any,
) -> Any:
    """Multiply rows, or columns, begin .. end - 1 of A, for some columns of B and C.

    Where sums are finished, rows of C get their bias and, in CSR and without an activation, bounds.

    Returns false where A's structure is invalid; C is not complete then.

    Parameters
    ----------
    form : tuple
        CSR or CSC: of A; SHIFTED_CSR: where the first column is before 0; ENTRIES_CSR and
        ENTRIES_CSC: entry by entry, for several columns, of rows that have no epilogue in CSR. For
        a single column: EQUAL_CSR and EQUAL_CSC, where all rows, or columns, have as many entries,
        at most MOST_EQUAL; PREDICTED_CSR, where a processor predicts how many each row has;
        LONG_CSC, where most columns have many; NONEMPTY_CSR and NONEMPTY_CSC, where many rows or
        columns have none. Rows of these are not finished.
    vectors, units : tuple
        Their lengths, which Numba knows as it compiles, are how many vectors so many columns take,
        and of how many times LEAST_BYTES: in CSR the last may be partly filled, and one is full at
        least without fast masks; in CSC, and in ENTRIES_CSR, all are full, at least one, and fewer
        columns may be left than would fill another. No vectors: a single column, to which columns
        of A in CSC are added, and which is not finished by them.
    dtype, index_dtype : types
        Of values, and of offsets and indices.
    words : pointer
        To those of the job.
    begin, end, column, columns : int
    """
    sizes = len(vectors), LEAST_BYTES * len(units)
    single = (
        DotBlocks, EachColumn, EqualRows, EqualColumns, PredictedRows, NonemptyRows,
        NonemptyColumns, LongColumns,
    )  # fmt: skip
    several = {0: Rows, 1: Columns, 8: EntriesOfRows, 9: EntriesOfColumns, 10: ShiftedRows}
    emitter = several[len(form)] if sizes[0] else single[len(form)]
    itemsize, index_bits = dtype.dtype.bitwidth // 8, index_dtype.dtype.bitwidth
    signature = types.boolean(form, vectors, units, dtype, index_dtype, words, *[types.intp] * 4)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        given = [builder.load(builder.gep(args[5], [WORD(number)])) for number in range(REFUSED)]
        return emitter(builder, itemsize, ir.IntType(index_bits), given, sizes).emit(*args[6:])

    return signature, codegen


@kernel_part
def multiply_apart(
    form: tuple[int, ...], words: Any, begin: int, end: int, dtype: Any, index_dtype: Any
) -> Any:
    """Multiply by a microkernel; returns false where an index is beyond the array it is of.

    As parts of a larger function its loops would have too few registers.
    """
    stay_apart()
    return multiply(form, (), (), dtype, index_dtype, words, begin, end, 0, 1)
