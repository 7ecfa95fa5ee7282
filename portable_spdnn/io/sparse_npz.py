"""Sparse matrices that `scipy.sparse.save_npz` wrote: a ZIP archive of NumPy arrays.

Nothing is unpickled. What an archive and its arrays claim is checked before memory is taken for it.
"""

from __future__ import annotations

import math
import os
import re
import zipfile
import zlib

import numpy as np
import scipy.sparse as sp

from portable_spdnn.arrays import Array
from portable_spdnn.errors import InputError
from portable_spdnn.host import require_memory
from portable_spdnn.sparse_arrays import canonical_csr, check_compressed, real_dtype

_MAGIC = b"\x93NUMPY\x01\x00"
# As NumPy writes it. NumPy would read any Python expression, at risks that its own manual names.
_HEADER = re.compile(
    r"\{'descr': '([<>|][biufcSU]\d{1,3})', 'fortran_order': (True|False), "
    r"'shape': \(((?:\d{1,18}, )*(?:\d{1,18},?)?)\), \}\s*"
)
_PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # others may ask for memory as they like
# What zipfile, zlib and NumPy raise on bytes that are no archive of arrays.
_DAMAGES = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError, OverflowError,
            TypeError)  # fmt: skip


def read_sparse_npz(path: str | os.PathLike[str]) -> sp.csr_array:
    """Read a matrix that was saved in the formats csr, csc or coo.

    Returns
    -------
    csr_array, canonical
        float32 or float64, as stored; duplicates are summed, as SciPy does.

    Raises
    ------
    InputError
        If the file cannot be read, is damaged, holds no such matrix, one that does not fit in
        memory, values that are not real, or offsets and indices that are no matrix.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _read(archive, str(path))
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from error
    except KeyError as error:
        raise InputError(
            f"{path}: holds no sparse matrix ({error.args[0]}); write it with scipy.sparse.save_npz"
        ) from error
    except _DAMAGES as error:
        raise InputError(f"{path}: damaged or no .npz file ({error}); copy it again") from error


def _read(archive: zipfile.ZipFile, path: str) -> sp.csr_array:
    form, extents = _array(archive, "format", path), _array(archive, "shape", path)
    name = form.tobytes().replace(b"\0", b"").decode("latin-1")  # of bytes, or of UCS-4
    if name not in ("csr", "csc", "coo"):
        raise InputError(
            f"{path}: holds a matrix of format {name[:20]!r}; convert it before it is saved: "
            "save_npz(path, A.tocsr())"
        )
    if extents.shape != (2,) or extents.dtype.kind not in "iu" or (extents < 0).any():
        raise InputError(f"{path}: its shape is {extents!r:.60}; two whole numbers are expected")
    rows, columns = map(int, extents)
    require_memory(24 * max(rows, columns), f"{path}: a matrix of {rows} x {columns}")
    data = _array(archive, "data", path)
    real_dtype(data.dtype, f"{path}: the values")
    if name == "coo":
        both = "coords.npy" in archive.namelist()
        row, column = _array(archive, "coords", path) if both else (
            _array(archive, one, path) for one in ("row", "col")
        )  # fmt: skip
        for what, index, extent in (("row", row, rows), ("column", column, columns)):
            if index.dtype.kind not in "iu" or index.shape != data.shape or data.ndim != 1:
                raise InputError(f"{path}: as many {what} indices as values are expected")
            # As one compressed row, whose check is that of all formats.
            check_compressed(path, np.array([0, index.size]), index, data.shape, (1, extent),
                             ("list", what))  # fmt: skip
        return canonical_csr(path, sp.coo_array((data, (row, column)), shape=(rows, columns)))
    indices, indptr = _array(archive, "indices", path), _array(archive, "indptr", path)
    sides, axes = ((rows, columns), ("row", "column"))
    if name == "csc":
        sides, axes = sides[::-1], axes[::-1]
    check_compressed(path, indptr, indices, data.shape, sides, axes)
    build = sp.csr_array if name == "csr" else sp.csc_array
    return canonical_csr(path, build((data, indices, indptr), shape=(rows, columns)))


def _array(archive: zipfile.ZipFile, name: str, path: str) -> Array:
    """Return an array of an archive; its header is believed as far as bytes follow it."""
    member = archive.getinfo(f"{name}.npy")
    if member.compress_type not in _PACKINGS:
        raise ValueError(f"{name} is packed by another method than deflate")
    with archive.open(member) as stream:
        magic, length = stream.read(len(_MAGIC)), int.from_bytes(stream.read(2), "little")
        match = _HEADER.fullmatch(stream.read(length).decode("latin-1"))
        if magic != _MAGIC or match is None:
            raise ValueError(f"{name} is no array of numbers")
        shape = tuple(map(int, re.findall(r"\d+", match[3])))
        dtype = np.dtype(match[1])
        size = math.prod(shape) * dtype.itemsize
        require_memory(3 * size, f"{path}: {name}, of shape {shape},")
        content = stream.read(size + 1)
    if len(content) != size:
        raise ValueError(f"{name} has {len(content)} bytes; its header says {size}")
    array = np.frombuffer(content, dtype).reshape(shape, order="F" if match[2] == "True" else "C")
    return array.astype(dtype.newbyteorder("="))
