"""Sparse matrices in files of the common formats."""

from __future__ import annotations

import os
from pathlib import Path

import scipy.sparse as sp

from portable_spdnn.arguments import shown
from portable_spdnn.errors import InputError
from portable_spdnn.io.matrix_market import read_matrix_market
from portable_spdnn.io.smtx import read_smtx
from portable_spdnn.io.sparse_npz import read_sparse_npz
from portable_spdnn.sparse_arrays import wide_csr

_READERS = {".smtx": read_smtx, ".mtx": read_matrix_market, ".npz": read_sparse_npz}
_PACKED = (".gz", ".xz")


def matrix_name(path: str | os.PathLike[str]) -> tuple[str, str]:
    """Return the name of a file of a matrix without its endings, and its format.

    The format is ``.smtx``, ``.mtx`` or ``.npz``, or empty where the file is named as none.
    """
    name = Path(path).name
    unpacked = name.rsplit(".", 1)[0] if name.lower().endswith(_PACKED) else name
    stem, dot, ending = unpacked.rpartition(".")
    form = (dot + ending).lower()
    if form not in _READERS or (form == ".npz" and unpacked != name):
        return name, ""
    return stem, form


def load_matrix(path: str | os.PathLike[str]) -> sp.csr_array:
    r"""Read a sparse matrix from a file.

    Parameters
    ----------
    path : path-like
        A name that ends in ``.smtx`` (a pattern of the Deep Learning Matrix Collection), ``.mtx``
        (Matrix Market coordinate format), either also ``.gz`` or ``.xz``, or ``.npz`` (saved by
        ``scipy.sparse.save_npz`` in the format csr, csc or coo).

    Returns
    -------
    csr_array, canonical
        Patterns are float32, all 1. Other values are float32 or float64 as stored; the numbers of
        a Matrix Market file are float64.

    Raises
    ------
    InputError
        If the name has another ending, the file cannot be read, does not fit in memory, or holds
        no such matrix; the message names the file, and the line where it has lines.

    Examples
    --------
    >>> import pathlib, tempfile, portable_spdnn as ps
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "pruned.smtx"
    ...     _ = path.write_text("2, 3, 3\n0 2 3\n0 2 1\n")  # sizes, row offsets, column indices
    ...     ps.load_matrix(path).toarray().tolist()
    [[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]
    """
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"load_matrix: path is {shown(path)}; a path is expected")
    form = matrix_name(path)[1]
    if not form:
        raise InputError(
            f"{path}: is named as no matrix; .smtx, .mtx (both also .gz or .xz) and .npz are read"
        )
    read = _READERS[form](path)
    matrix = wide_csr(read.data, read.indices, read.indptr, read.shape)
    matrix.has_canonical_format = True
    return matrix
