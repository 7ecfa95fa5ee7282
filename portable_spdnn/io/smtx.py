"""Sparsity patterns as `.smtx` files, the text format of the Deep Learning Matrix Collection.

Three lines: ``rows, columns, nnz``; the rows + 1 row offsets; the nnz column indices, which rise
within each row. Indices count from 0, and blanks stand between the numbers of a line. There are no
values. Convolutions are stored as output channels x (input channels kh kw); the order within the
second axis is not documented, and no product depends on it. Source: the collection's own files, of
T. Gale, E. Elsen and S. Hooker, "The State of Sparsity in Deep Neural Networks", arXiv 1902.09574.
"""

from __future__ import annotations

import os
import re

import numpy as np
import scipy.sparse as sp

from portable_spdnn.arrays import Array
from portable_spdnn.errors import InputError
from portable_spdnn.host import require_memory
from portable_spdnn.io.compressed import open_decompressed, read_at_most
from portable_spdnn.sparse_arrays import check_compressed, unsorted_row

_HEADER = re.compile(rb"\s*(\d{1,18})\s*,\s*(\d{1,18})\s*,\s*(\d{1,18})\s*")
_HEADER_BYTES = 100  # more than the first line takes
_NUMBER_BYTES = 20  # of the longest number that is taken, and a blank
_NO_INDEX = re.compile(rb"[^0-9 \t\r]|[0-9]{19}")


def read_smtx(path: str | os.PathLike[str]) -> sp.csr_array:
    """Read a pattern; the file may be compressed (gzip, xz).

    Returns
    -------
    csr_array of float32, canonical
        All values are 1.

    Raises
    ------
    InputError
        If the file cannot be read, a line holds what is no number or more or fewer numbers than
        the first says, the pattern does not fit in memory, or offsets and indices are no matrix.
    """
    with open_decompressed(path) as stream:
        first = stream.readline(_HEADER_BYTES)
        header = _HEADER.fullmatch(first)
        if header is None:
            raise InputError(
                f"{path}, line 1: {first[:40]!r} is no header; 'rows, columns, nnz' is expected, "
                "as in '64, 256, 1638'"
            )
        rows, columns, nnz = map(int, header.groups())
        require_memory(24 * (rows + nnz), f"{path}, line 1: {rows} rows with {nnz} nonzeros")
        most = _NUMBER_BYTES * (rows + 1 + nnz) + _HEADER_BYTES
        content = bytes(read_at_most(stream, most + 1))
    offsets, _, rest = content.partition(b"\n")
    indices, _, rest = rest.partition(b"\n")
    if len(content) > most or rest.strip():
        raise InputError(f"{path}: goes on after its column indices, the third line")
    indptr = _numbers(offsets, rows + 1, f"{path}, line 2", "row offset")
    columns_of = _numbers(indices, nnz, f"{path}, line 3", "column index")
    check_compressed(f"{path}, lines 2 and 3", indptr, columns_of, (nnz,), (rows, columns))
    if indptr[-1] != nnz:
        raise InputError(
            f"{path}, line 2: row offsets end at {indptr[-1]}; line 1 says {nnz} nonzeros"
        )
    row = unsorted_row(indptr, columns_of)
    if row is not None:
        raise InputError(
            f"{path}, line 3: the column indices of row {row}, counted from 0, do not rise; they "
            "must be sorted, each there once"
        )
    ones = np.ones(nnz, np.float32)
    return sp.csr_array((ones, columns_of, indptr), shape=(rows, columns))


def _numbers(text: bytes, count: int, where: str, what: str) -> Array:
    """Return the numbers of a line, int64, or raise InputError where they are not `count`."""
    wrong = _NO_INDEX.search(text)
    if wrong is not None:
        shown = text[wrong.start() : wrong.start() + 30].partition(b" ")[0]
        raise InputError(
            f"{where}: {shown!r} is in no {what}; whole numbers from 0, with blanks between, are "
            "expected"
        )
    numbers = np.fromstring(text.decode(), np.int64, sep=" ") if text.strip() else np.empty(0, int)
    if numbers.size != count:
        raise InputError(
            f"{where}: {numbers.size} numbers where line 1 asks for {count}, a {what} each; the "
            "file is truncated, or line 1 is wrong"
        )
    return numbers
