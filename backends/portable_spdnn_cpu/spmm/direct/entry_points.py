"""What starts products with A as it is: compiled functions and tables of code, by types."""

from __future__ import annotations

import functools
from typing import Any

import numba
import numpy as np
from numba.core import types

from portable_spdnn.caching import cached_property
from portable_spdnn_cpu.jit.compilation import Array, entry_point
from portable_spdnn_cpu.jit.jobs import Job, address_of
from portable_spdnn_cpu.layout.canonical import INDEX_TYPES, VALUE_TYPES
from portable_spdnn_cpu.machine.thread_pool import ThreadPool
from portable_spdnn_cpu.spmm.direct import code_table, vectors
from portable_spdnn_cpu.spmm.direct import kernel as columns_kernel
from portable_spdnn_cpu.spmm.direct.choice import CSC_BYTES
from portable_spdnn_cpu.spmm.direct.copies import met_rows_code
from portable_spdnn_cpu.spmm.direct.finish import begin_rows_code, finish_all_rows_code
from portable_spdnn_cpu.spmm.direct.job_words import COUNTERS, OUT_BYTES, REFUSED
from portable_spdnn_cpu.spmm.direct.start import (
    BY_COLUMNS,
    BY_ROWS,
    CONVERTED,
    convert,
    fill_all_words,
    run_alone,
    run_alone_with_epilogue,
)
from portable_spdnn_cpu.spmm.transposes import loading_code, storing_code

# Of what `fill_epilogue` takes after the words.
EPILOGUE_TYPES = (
    types.int64, types.int64, types.Array(types.float64, 1, "C", True), types.float64,
    types.float64,
)  # fmt: skip

# For several columns of B: of A in CSR with indices of some type, and in CSC.
JOBS_BY_ROWS = {index: Job(columns_kernel.multiply_csr, index.type) for index in INDEX_TYPES}
JOB_BY_COLUMNS = Job(columns_kernel.multiply_csc)


class EntryPoints:
    """What starts jobs for arrays of some types; callers have checked that arrays have these.

    Functions are compiled when they are first asked for.

    Attributes
    ----------
    addresses : dict
        What `table` returned, by what it was given.
    """

    def __init__(self, dtype: np.dtype[Any], index_dtype: np.dtype[Any], dimensions: int) -> None:
        self._dtype, self._index_dtype = dtype, index_dtype
        kinds = dtype.type, index_dtype.type
        by_rows, by_columns = (
            Job(each, *kinds) for each in (vectors.multiply_csr, vectors.multiply_csc)
        )
        # For a single column of B; by how A is taken.
        self._single = by_rows, by_columns, by_rows
        self._conversion = Job(convert, *kinds)
        self._tables: dict[tuple[int, int], Array] = {}
        self.addresses: dict[tuple[int, int, bool], int] = {}
        item, index = numba.from_dtype(dtype), numba.from_dtype(index_dtype)
        indices, values = (types.Array(kind, 1, "A", True, aligned=False) for kind in (index, item))
        B = types.Array(item, dimensions, "A", True, aligned=False)
        self._arrays = indices, indices, values, B, types.Array(item, dimensions, "A")

    def table(self, taken: int, columns: int, turns: bool = False) -> int:
        """Return the address of the table, as `code_table` has it, for so many columns of B.

        Parameters
        ----------
        taken : int
            How A is taken, BY_ROWS to CONVERTED.
        columns : int
        turns : bool
            Whether the table must have the code for B or C in Fortran order; without it, it may
            have it all the same.
        """
        address = self.addresses.get((taken, columns, turns))
        if address is None:
            table = self._tables.get((taken, columns))
            if table is None:  # of two threads that make one, both take the first
                made = self._table(taken, columns)
                table = self._tables.setdefault((taken, columns), made)
            if turns:
                self._add_turning(table, taken)
            address = self.addresses[taken, columns, turns] = address_of(table)
        return address

    def _table(self, taken: int, columns: int) -> Array:
        """Return a table without what B or C in Fortran order takes."""
        table = np.zeros(code_table.TABLE_WORDS, np.int64)
        if taken == CONVERTED:
            table[code_table.CONVERSION] = self._conversion.address
        table[code_table.JOB] = self._job(taken, columns).address
        if columns == 1:
            return table
        kinds, by_columns = (self._dtype, self._index_dtype), taken == BY_COLUMNS
        for place, address in code_table.multiplying_codes(by_columns, columns, *kinds).items():
            table[place] = address
        if by_columns:
            table[code_table.FINISH_ROWS] = finish_all_rows_code(self._dtype)
        if by_columns and columns * self._dtype.itemsize > CSC_BYTES:  # see `takes_whole_rows`
            table[code_table.BEGIN_ROWS] = begin_rows_code(self._dtype)
            table[code_table.WHOLE_ROWS] = columns_kernel.whole_rows_code(*kinds)
        return table

    def _job(self, taken: int, columns: int) -> Job:
        """Return the job for A that is taken so, and so many columns of B."""
        if columns == 1:
            return self._single[taken]
        return JOB_BY_COLUMNS if taken == BY_COLUMNS else JOBS_BY_ROWS[self._index_dtype]

    def _add_turning(self, table: Array, taken: int) -> None:
        """Add what B or C in Fortran order takes."""
        kinds = self._dtype, self._index_dtype
        table[code_table.STORE_COLUMNS] = storing_code(self._dtype)
        table[code_table.MET_ROWS] = met_rows_code(taken == BY_COLUMNS, *kinds)
        loading = loading_code(self._dtype)
        table[code_table.LOAD_COLUMNS] = loading  # last: it says that all are there

    @cached_property
    def run_alone(self) -> Any:
        """`run_alone` for such arrays."""
        flags = types.int64, types.boolean
        return entry_point(run_alone, types.int64, *self._arrays, *flags)

    @cached_property
    def run_alone_with_epilogue(self) -> Any:
        """`run_alone_with_epilogue` for such arrays."""
        others = types.int64, *EPILOGUE_TYPES
        return entry_point(run_alone_with_epilogue, types.int64, *self._arrays, *others)

    @cached_property
    def fill_all_words(self) -> Any:
        """`fill_all_words` for such arrays."""
        first = types.Array(types.int64, 1, "C"), types.int64, types.int64
        return entry_point(fill_all_words, *first, *self._arrays, *EPILOGUE_TYPES)

    def run_shared(
        self,
        pool: ThreadPool,
        parts: tuple[Array, ...],
        B: Array,
        out: Array,
        held: int,
        finish: tuple[int, Array, float, float],
        written: int = 0,
    ) -> bool:
        """Compute C by all threads of a pool, of what `fill_all_words` takes.

        `written` is as `spmm.handle.Kernel` has it. Returns false where `fill_all_words` does, and
        for invalid indices.
        """
        columns = B.shape[1] if B.ndim > 1 else 1
        table = self.table(BY_ROWS, columns)
        words = np.empty(COUNTERS + pool.threads, np.int64)
        if not self.fill_all_words(words, table, pool.threads, *parts, B, out, held, *finish):
            return False
        words[OUT_BYTES] = max(words[OUT_BYTES], written)
        pool.run_job(self._job(BY_ROWS, columns), words)
        return bool(words[REFUSED] == 0)


@functools.cache
def compiled(
    dtype: np.dtype[Any], index_dtype: np.dtype[Any], dimensions: int
) -> EntryPoints | None:
    """Return what starts jobs for B of one dimension or two; None for types that are not taken."""
    if dtype not in VALUE_TYPES or index_dtype not in INDEX_TYPES:
        return None
    return EntryPoints(dtype, index_dtype, dimensions)
