"""Which products are done with A as it is given, and in which form of A."""

from __future__ import annotations

from portable_spdnn_cpu.jit.compilation import Array
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.machine.cpu_info import cache_bytes

# Work is counted in entries times vectors of B but one, half a nanosecond each on one thread.
# Beyond so much of it the stream is faster, which copies panels of B to where they are near: for B
# in the second-level cache, for B from beyond it, and for B in Fortran order, where threads share
# the stream besides.
MAX_WORK, MAX_FAR_WORK, MAX_FORTRAN_WORK = 2_000_000, 700_000, 1_000_000
TRANSPOSE_WORK = 4  # for each vector of a row of B or C that is transposed
SMALL = 4000  # entries of A and B: there, to choose would take longer than it saves
# Nanoseconds that a product by columns of CSC takes more than one by rows, for each vector of B but
# the first: for an entry where a panel of C stays in the first-level cache, for one where it has
# more rows than that, and to begin a row of C.
NEAR_ENTRY, FAR_ENTRY, BEGUN_ROW = 0.1, 0.7, 2.0
NEAR_ROWS, PANEL_BYTES = 300, 256
# For a byte of B in Fortran order from beyond the second-level cache, which is copied as a whole:
# the stream copies panels.
COPIED_BYTE = 0.5
# Those that it takes to convert CSC to CSR: for an entry, and for the call.
CONVERTED_ENTRY, CONVERSION = 5.0, 6000.0
# Entries in a column of CSC, on average, up to which a row of B from beyond the second-level cache
# meets them all while it is in registers, and is not read again.
MAX_COLUMN = 8
# To copy rows of B to where they start on cache lines pays from so many entries in a column of A,
# on average, and so many bytes of B that are loaded: a vector across two lines takes twice as long.
# B of more bytes than MAX_COPIED is not held twice.
MIN_REUSE, MIN_LOADED, MAX_COPIED = 6, 1_280_000, 1 << 25
L2 = cache_bytes(2)


def suited_form(form: str, shape: tuple[int, ...], entries: int, B: Array) -> str | None:
    """Return the form in which A is multiplied as it is; None where the stream takes less time.

    Parameters
    ----------
    form : str
        In which A is given: "csr" or "csc".
    shape : tuple of int
        Of A.
    entries : int
        Of A.
    B : ndarray of one dimension or two
        Of the type that is computed in.

    Returns
    -------
    str or None
        "csr" for a matrix in "csc" that is to be converted first.
    """
    if entries + B.size <= SMALL:
        return form
    columns = B.shape[1] if B.ndim == 2 else 1
    vectors = -(-columns * B.itemsize // BLOCK_BYTES)
    transposed = columns > 1 and B.strides[1] != B.itemsize
    if form == "csc" and goes_by_columns(shape, entries, vectors, B.nbytes, transposed):
        return form
    work, most = entries * (vectors - 1), MAX_WORK if B.nbytes <= L2 else MAX_FAR_WORK
    if transposed:
        # Then rows of B start on cache lines: an entry takes half as long.
        work, most = work // 2 + TRANSPOSE_WORK * sum(shape) * vectors, MAX_FORTRAN_WORK
    return "csr" if work <= most else None


def goes_by_columns(
    shape: tuple[int, ...], entries: int, vectors: int, bytes_of_B: int, transposed: bool
) -> bool:
    """Whether to multiply columns of A in CSC takes less time than to convert A first."""
    if vectors <= 1 or (entries < shape[0] and not transposed):
        return True
    rows, row = shape[0], vectors * BLOCK_BYTES
    is_far = bytes_of_B > L2
    if is_far and not transposed and rows * row <= L2 // 2 and entries <= MAX_COLUMN * shape[1]:
        return True
    # Pieces of rows that lie a power of two apart compete for few of a cache's sets.
    competing = max(1, (row & -row) // PANEL_BYTES)
    entry = NEAR_ENTRY if rows * competing <= NEAR_ROWS else FAR_ENTRY
    more = (vectors - 1) * (entry * entries + BEGUN_ROW * rows)
    if is_far and transposed:
        more += COPIED_BYTE * bytes_of_B
    return more <= CONVERTED_ENTRY * entries + CONVERSION


def is_reused(entries: int, k: int, columns: int, itemsize: int) -> bool:
    """Whether rows of B are read so often that copies of them that start on cache lines pay."""
    row = columns * itemsize
    is_loaded_often = entries * row >= MIN_LOADED and entries >= MIN_REUSE * k
    return is_loaded_often and row >= BLOCK_BYTES and k * row <= MAX_COPIED
