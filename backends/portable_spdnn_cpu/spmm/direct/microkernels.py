"""Microkernels: products with A in CSR or CSC, whose structure is checked as it is read.

An index outside of the arrays ends the work before it is used as an address; but for CSC and
NONEMPTY_CSC of a single column indices were checked before, as offsets were for all. An entry that
is stored twice counts twice, as in SciPy.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types

from portable_spdnn_cpu.jit.compilation import intrinsic, kernel_part
from portable_spdnn_cpu.jit.intrinsics import stay_apart
from portable_spdnn_cpu.jit.loops import by_number
from portable_spdnn_cpu.jit.target import is_zen_4
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.spmm.dense_layout import LEAST_SHIFTED_ROW
from portable_spdnn_cpu.spmm.direct.choice import CSC_BYTES
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
from portable_spdnn_cpu.spmm.stream.microkernels import MAX_VECTORS

# Constants for Numba, to which a tuple's length is part of its type.
CSR, CSC, EQUAL_CSR, EQUAL_CSC, PREDICTED_CSR, NONEMPTY_CSR, NONEMPTY_CSC, LONG_CSC = (
    (0,) * number for number in range(8)
)
ENTRIES_CSR, ENTRIES_CSC, SHIFTED_CSR = (0,) * 8, (0,) * 9, (0,) * 10


@intrinsic
def multiply(
    typingctx: Any,
    form: Any,
    vectors: Any,
    vector_bytes: Any,
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
        CSR or CSC: of A; ENTRIES_CSR and ENTRIES_CSC: entry by entry, for several columns, of rows
        that have no epilogue in CSR. For a single column: EQUAL_CSR and EQUAL_CSC, where all rows,
        or columns, have as many entries, at most MOST_EQUAL; PREDICTED_CSR, where a processor
        predicts how many each row has; LONG_CSC, where most columns have many; NONEMPTY_CSR and
        NONEMPTY_CSC, where many rows or columns have none. Rows of these are not finished.
    vectors, vector_bytes : int, constants
        How many vectors, of how many bytes, so many columns take: in CSR the last may be partly
        filled, and one is full at least without fast masks; in CSC, and in ENTRIES_CSR, all are
        full, at least one, and fewer columns may be left than would fill another. No vectors: a
        single column, to which columns of A in CSC are added, and which is not finished by them.
    dtype, index_dtype : types
        Of values, and of offsets and indices.
    words : pointer
        To those of the job.
    begin, end, column, columns : int
    """
    if not all(isinstance(number, types.IntegerLiteral) for number in (vectors, vector_bytes)):
        return None  # Numba asks again with constants
    sizes = vectors.literal_value, vector_bytes.literal_value
    single = (
        DotBlocks, EachColumn, EqualRows, EqualColumns, PredictedRows, NonemptyRows,
        NonemptyColumns, LongColumns,
    )  # fmt: skip
    several = {0: Rows, 1: Columns, 8: EntriesOfRows, 9: EntriesOfColumns}
    emitter = several[len(form)] if sizes[0] else single[len(form)]
    itemsize, index_bits = dtype.dtype.bitwidth // 8, index_dtype.dtype.bitwidth
    signature = types.boolean(
        form, vectors, vector_bytes, dtype, index_dtype, words, *[types.intp] * 4
    )

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        given = _load_words(builder, args[5])
        return emitter(builder, itemsize, ir.IntType(index_bits), given, sizes).emit(*args[6:])

    return signature, codegen


def _load_words(builder: Any, words: Any) -> list[Any]:
    """Return the words of a job that microkernels read."""
    return [builder.load(builder.gep(words, [WORD(number)])) for number in range(REFUSED)]


@kernel_part
def multiply_apart(
    form: tuple[int, ...], words: Any, begin: int, end: int, dtype: Any, index_dtype: Any
) -> Any:
    """Multiply by a microkernel; returns false where an index is beyond the array it is of.

    As parts of a larger function its loops would have too few registers.
    """
    stay_apart()
    return multiply(form, 0, 0, dtype, index_dtype, words, begin, end, 0, 1)


# Bytes of vectors in CSC where a panel has few; see `kernel.multiply_by_columns`. On a Zen 4, which
# stores 64 bytes as two halves, in all panels: two products whose rows of C begin on cache lines
# take 0.73 and 0.76 of the time so, 15 others 0.93 to 1.02.
CSC_VECTOR = 32
# (vectors of a panel, bytes of each): item i is for columns that need i + 1 vectors of BLOCK_BYTES
# in CSR, the last of them partly filled, and for columns that fill i + 1 of CSC_VECTOR in CSC.
CSR_PANELS = [(number, BLOCK_BYTES) for number in range(1, MAX_VECTORS + 1)]
CSC_PANELS = [
    (number, CSC_VECTOR) if number < 6 or is_zen_4() else (number // 2, BLOCK_BYTES)
    for number in range(1, CSC_BYTES // CSC_VECTOR + 1)
]
# Those that begin before column 0: of wide rows, and up to a vector more, so that there are as many
# panels as of aligned ones.
SHIFTED_PANELS = [
    (number, BLOCK_BYTES)
    for number in range(min(LEAST_SHIFTED_ROW // BLOCK_BYTES, MAX_VECTORS) + 1, MAX_VECTORS + 2)
]


@intrinsic
def multiply_panel(
    typingctx: Any,
    form: Any,
    dtype: Any,
    index_dtype: Any,
    words: Any,
    begin: Any,
    end: Any,
    column: Any,
    columns: Any,
) -> Any:
    """Do what `multiply` does, in CSR or CSC, in as many vectors as so many columns take.

    There is a column at least, a vector of CSC_VECTOR in CSC, and at most what the last item of
    CSR_PANELS or CSC_PANELS takes. SHIFTED_CSR: of SHIFTED_PANELS, as `ShiftedRows` has them.
    """
    is_csc = len(form) == len(CSC)
    emitter, panels = {
        len(CSR): (Rows, CSR_PANELS),
        len(CSC): (Columns, CSC_PANELS),
        len(SHIFTED_CSR): (ShiftedRows, SHIFTED_PANELS),
    }[len(form)]
    fewer = panels[0][0] - 1  # vectors than the first panel has
    itemsize, index_type = dtype.dtype.bitwidth // 8, ir.IntType(index_dtype.dtype.bitwidth)
    lanes = (CSC_VECTOR if is_csc else BLOCK_BYTES) // itemsize

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        given = _load_words(builder, args[3])
        padded = args[7] if is_csc else builder.add(args[7], WORD(lanes - 1))

        def emit(number: int) -> Any:
            sizes = panels[number - 1]
            return emitter(builder, itemsize, index_type, given, sizes).emit(*args[4:])

        vectors = builder.udiv(padded, WORD(lanes))
        return by_number(builder, builder.sub(vectors, WORD(fewer)), len(panels), emit)

    return types.boolean(form, dtype, index_dtype, words, *[types.intp] * 4), codegen
