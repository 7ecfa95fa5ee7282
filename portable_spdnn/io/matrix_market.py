"""Sparse matrices in Matrix Market coordinate format.

A first line ``%%MatrixMarket matrix coordinate FIELD SYMMETRY``, comments that begin with ``%``,
a line ``rows columns entries``, and a line ``row column [value]`` for each entry: counted from 1,
in any order (R. Boisvert, R. Pozo and K. Remington, "The Matrix Market Exchange Formats: Initial
Design", NISTIR 5935).

It is parsed here: SciPy's reader takes 0x10 for 0 and an integer 7.5 for 7, and ends the process at
a zero byte.
"""

from __future__ import annotations

import io
import math
import os
import re
import warnings

import numpy as np
import scipy.sparse as sp

from portable_spdnn.arrays import Array
from portable_spdnn.errors import InputError
from portable_spdnn.host import require_memory
from portable_spdnn.io.compressed import open_decompressed, read_text
from portable_spdnn.sparse_arrays import canonical_csr

_BANNER = "'%%MatrixMarket matrix coordinate real general'"
_NAMES = ("row", "column", "value")  # what the fields of a line are called
_FIELDS = ("real", "double", "integer", "pattern")
_SYMMETRIES = ("general", "symmetric", "skew-symmetric")
_SIZES = re.compile(rb"\s*(\d{1,18})\s+(\d{1,18})\s+(\d{1,18})\s*")
_NUMERIC = b"0123456789+-.eE\t\r\n "
_WHOLE = re.compile(rb"[+-]?[0-9]{1,18}")


def read_matrix_market(path: str | os.PathLike[str]) -> sp.csr_array:
    """Read a matrix; the file may be compressed (gzip, xz).

    Returns
    -------
    csr_array, canonical
        float32 ones for a pattern, else float64. Both triangles of a symmetric matrix.

    Raises
    ------
    InputError
        If the file cannot be read or does not fit in memory, is dense or complex, if a line does
        not have its fields or they are no finite numbers within the matrix, if there are more or
        fewer entries than it says, or one of them is there twice.
    """
    with open_decompressed(path) as stream:
        text = read_text(stream, str(path))
    field, symmetry = _read_banner(text, path)
    end, line = text.find(b"\n") + 1 or len(text), 2
    while True:
        start, end = end, text.find(b"\n", end) + 1 or len(text)
        sizes = text[start:end]
        if sizes and not sizes.startswith(b"%") and not sizes.isspace():
            break
        if not sizes:
            raise InputError(f"{path}: ends before the line 'rows columns entries'")
        line += 1
    match = _SIZES.fullmatch(sizes)
    if match is None:
        raise InputError(
            f"{path}, line {line}: {sizes[:40]!r} is no size; 'rows columns entries' is expected"
        )
    shape, entries = (int(match[1]), int(match[2])), int(match[3])
    if symmetry != "general" and shape[0] != shape[1]:
        raise InputError(f"{path}, line {line}: {shape[0]} x {shape[1]} cannot be {symmetry}")
    require_memory(16 * shape[0], f"{path}, line {line}: a matrix of {shape[0]} rows")
    row, column, values = _parse_entries(text[end:], shape, field, f"{path}", line + 1)
    if row.size != entries:
        raise InputError(
            f"{path}: line {line} says {entries} entries, and {row.size} are there; the file is "
            "truncated, or the line is wrong"
        )
    if symmetry != "general":
        other = row != column
        if symmetry == "skew-symmetric" and values[~other].any():
            i = int(row[np.flatnonzero(~other & (values != 0))[0]]) + 1
            raise InputError(f"{path}: entry ({i}, {i}) of a skew-symmetric matrix is not 0")
        row, column = np.append(row, column[other]), np.append(column, row[other])
        mirrored = values[other] if symmetry == "symmetric" else -values[other]
        values = np.append(values, mirrored)
    matrix = canonical_csr(str(path), sp.coo_array((values, (row, column)), shape=shape))
    if matrix.nnz < row.size:
        raise InputError(f"{path}: {_twice(row, column)}; each entry must be there once")
    return matrix


def _read_banner(text: bytes, path: str | os.PathLike[str]) -> tuple[str, str]:
    """Return field and symmetry of the first line, lower-case."""
    words = text[: text.find(b"\n") + 1 or 200][:200].decode("latin-1").lower().split()
    if len(words) != 5 or words[0] != "%%matrixmarket" or words[1] != "matrix":
        raise InputError(
            f"{path}, line 1: {' '.join(words)[:40]!r} is no Matrix Market banner; {_BANNER} is "
            "expected, or the like"
        )
    form, field, symmetry = words[2:]
    if form != "coordinate":
        raise InputError(
            f"{path}, line 1: a dense matrix (array); save it as a sparse one, in coordinate format"
        )
    for word, known in ((field, _FIELDS), (symmetry, _SYMMETRIES)):
        if word not in known:
            raise InputError(f"{path}, line 1: {word[:40]!r} is none of {', '.join(known)}")
    return field, symmetry


def _parse_entries(
    text: bytes, shape: tuple[int, int], field: str, source: str, first_line: int
) -> tuple[Array, Array, Array]:
    """Return rows and columns, counted from 0, and values of the lines after the sizes."""
    names = _NAMES[: 2 if field == "pattern" else 3]
    kinds = (np.int64, np.int64, np.int64 if field == "integer" else np.float64)
    if not text or text.isspace():
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32)
    cause: Exception | None = None
    if not text.translate(None, _NUMERIC):  # NumPy would take inf, and blanks of other alphabets
        try:
            with warnings.catch_warnings():  # by which older NumPy takes 7.5 for a whole number
                warnings.simplefilter("error", DeprecationWarning)
                lines = np.loadtxt(
                    io.BytesIO(text), list(zip(names, kinds, strict=False)), comments=None, ndmin=1
                )
            row, column = lines["row"], lines["column"]
            values = np.ones(row.size, np.float32) if len(names) == 2 else lines["value"]
            within = all(
                index.min() >= 1 and index.max() <= extent
                for index, extent in zip((row, column), shape, strict=True)
            )
            if within and np.isfinite(values).all():
                return row - 1, column - 1, values
        except (ValueError, DeprecationWarning) as error:
            cause = error
    raise _first_fault(text, shape, field, source, first_line, cause) from cause


def _first_fault(
    text: bytes,
    shape: tuple[int, int],
    field: str,
    source: str,
    first_line: int,
    cause: Exception | None,
) -> InputError:
    """Scan line by line for what the fast parser refused."""
    for line, entry in enumerate(text.split(b"\n"), start=first_line):
        fault = _fault(entry.split(), shape, field)
        if fault:
            return InputError(f"{source}, line {line}: {fault}")
    why = cause or "it holds a character that no number has"
    return InputError(f"{source}: cannot be parsed ({why}); download or copy it again")


def _fault(words: list[bytes], shape: tuple[int, int], field: str) -> str | None:
    names = _NAMES[: 2 if field == "pattern" else 3]
    if not words:
        return None
    if len(words) != len(names):
        return f"{len(words)} field(s); {len(names)} are expected: {', '.join(names)}"
    for name, word, extent in zip(names, words, shape, strict=False):
        if not _WHOLE.fullmatch(word):
            return f"{name} {word[:40]!r} is no whole number"
        if not 1 <= int(word) <= extent:
            return f"{name} {int(word)} is outside 1 .. {extent}"
    if field == "pattern":
        return None
    try:
        if field == "integer":
            return None if _WHOLE.fullmatch(words[2]) else f"value {words[2][:40]!r} is no integer"
        value = float(words[2]) if not words[2].translate(None, _NUMERIC) else None
    except ValueError:
        value = None
    if value is None or not math.isfinite(value):
        return f"value {words[2][:40]!r} is no finite number"
    return None


def _twice(row: Array, column: Array) -> str:
    """Name an entry that is there twice."""
    order = np.lexsort((column, row))
    same = (np.diff(row[order]) == 0) & (np.diff(column[order]) == 0)
    at = order[int(np.argmax(same))]
    return f"the entry of row {row[at] + 1}, column {column[at] + 1} is there twice"
