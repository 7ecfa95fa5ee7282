"""The matrices of a folder, and the products that are measured with them."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from portable_spdnn.arrays import Array
from portable_spdnn.errors import InputError
from portable_spdnn.host import require_memory
from portable_spdnn.io.matrices import load_matrix, matrix_name
from portable_spdnn.io.run_folder import read_bounded

COLUMNS = 256  # where nothing else is said
SIZES = "rn50_batchsizes.txt"  # lines "name,columns"; of the collection
CACHE_LINE = 64  # bytes
SMALL, FEW_COLUMNS = 128, 16  # what is below is counted apart


@dataclass(frozen=True)
class Case:
    """A product C = A B: a pattern with random values times a dense matrix of some columns.

    Attributes
    ----------
    model : str
        What the matrix is of; with the number of columns where that was asked for.
    layer : str
    shape : tuple of int
        Rows M and columns K of A.
    nnz, columns : int
        Entries of A; columns N of B.
    path : Path or None
        The file of the pattern; None for a random mask.
    """

    model: str
    layer: str
    shape: tuple[int, int]
    nnz: int
    columns: int
    path: Path | None

    @property
    def zeros(self) -> float:
        """The share of A that is zero."""
        return 1 - self.nnz / (self.shape[0] * self.shape[1])

    @property
    def size(self) -> str:
        """What is small about the product: geometric means tell them apart."""
        if self.columns < FEW_COLUMNS:
            return f"N below {FEW_COLUMNS}"
        return f"M or K below {SMALL}" if min(self.shape) < SMALL else "larger"

    def __str__(self) -> str:
        rows, inner = self.shape
        return f"{self.path or self.layer} ({rows} x {inner} x {self.columns})"

    def operands(self, seed: int) -> tuple[sp.csr_array, Array]:
        """Return A and B, float32, with normal values that depend on the seed and the names."""
        (rows, inner), key = self.shape, f"{self.model} {self.layer} {self.nnz}"
        rng = np.random.default_rng([seed, zlib.crc32(key.encode())])
        if self.path is None:
            places = np.sort(rng.choice(rows * inner, self.nnz, replace=False))
            indptr = np.searchsorted(places, np.arange(rows + 1) * inner)
            pattern = sp.csr_array((places, places % inner, indptr), shape=self.shape)
        else:
            pattern = load_matrix(self.path)
        values = rng.standard_normal(pattern.nnz, np.float32)
        A = sp.csr_array((values, pattern.indices, pattern.indptr), shape=self.shape)
        B = aligned_empty((inner, self.columns))
        return A, rng.standard_normal(dtype=np.float32, out=B)


def aligned_empty(shape: tuple[int, int]) -> Array:
    """Return a new float32 array that begins at a cache line.

    NumPy aligns to 16 bytes, by chance to more. From there every second load of a wide vector takes
    two cache lines, and products that are bound by loads take twice as long: by chance as well.
    """
    size = 4 * shape[0] * shape[1]
    memory = np.empty(size + CACHE_LINE, np.uint8)
    first = -memory.ctypes.data % CACHE_LINE
    return memory[first : first + size].view(np.float32).reshape(shape)


def collect(folder: Path, columns: Sequence[int] = (), masks: Sequence[float] = ()) -> list[Case]:
    """Return the products of all matrices in a folder and in those below, in order of their names.

    Parameters
    ----------
    folder : Path
        Or one file.
    columns : sequence of int
        Columns of B, one product for each. Default: what a file ``rn50_batchsizes.txt`` in the
        folder or above it says of the matrix, else 256.
    masks : sequence of float
        Shares of zeros: random masks of these, for each shape that there is.

    Raises
    ------
    InputError
        If the folder is missing or holds no matrix, or a matrix cannot be read, is empty, or is
        too large for its dense form.
    """
    folder = folder.resolve()
    if not folder.exists():
        raise InputError(f"{folder}: is not there; name a folder of .smtx, .mtx or .npz files")
    found = [folder] if folder.is_file() else sorted(folder.rglob("*"))
    paths = [path for path in found if matrix_name(path)[1] and path.is_file()]
    if not paths:
        raise InputError(f"{folder}: holds no matrix; .smtx, .mtx and .npz files are looked for")
    known = _read_sizes(folder)
    cases = [case for path in paths for case in _cases(path, columns, known)]
    shapes = {(case.model, case.shape, case.columns): case for case in cases}
    for case in shapes.values():
        size = case.shape[0] * case.shape[1]
        cases += [
            replace(case, layer="random mask", nnz=max(1, round(size * (1 - share))), path=None)
            for share in masks
        ]
    return cases


def _cases(path: Path, columns: Sequence[int], known: dict[str, int]) -> Iterator[Case]:
    """Yield the products of one file, which is read to see that it can be."""
    A = load_matrix(path)
    rows, inner = A.shape
    if not A.nnz:
        raise InputError(f"{path}: its matrix of {rows} x {inner} has no entries to multiply")
    layer, folders = matrix_name(path)[0], path.parent.parts
    # In the collection: model, method of pruning, share of zeros.
    of_collection = len(folders) > 3 and folders[-1].replace(".", "", 1).isdigit()
    model = folders[-3] if of_collection else path.parent.name
    for count in columns or (known.get(layer, COLUMNS),):
        needed = 8 * (rows * inner + 2 * inner * count + 8 * rows * count)
        require_memory(needed, f"{path}: {rows} x {inner} x {count} and its dense form")
        label = f"{model}, N = {count}" if columns else model
        yield Case(label, layer, (rows, inner), int(A.nnz), count, path)


def _read_sizes(folder: Path) -> dict[str, int]:
    """Return the numbers of columns by name that the collection states, if it is there."""
    for place in (folder, *folder.parents):
        path = place / SIZES
        if path.is_file():
            break
    else:
        return {}
    sizes = {}
    try:
        lines = read_bounded(path).decode().splitlines()
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from error
    for number, line in enumerate(lines, start=1):
        name, _, count = (part.strip() for part in line.partition(","))
        if not line.strip():
            continue
        # No number of columns has more digits; Python refuses thousands of them.
        columns = int(count) if count.isdecimal() and len(count) <= 10 else 0
        if not 0 < columns < 1 << 31:
            raise InputError(f"{path}, line {number}: {line[:60]!r}; 'name,columns' is expected")
        sizes[name] = columns
    return sizes
