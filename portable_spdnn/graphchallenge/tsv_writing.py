"""Writing layers and inputs in the text format of the Sparse DNN Graph Challenge."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from portable_spdnn.arrays import Array
from portable_spdnn.errors import InputError
from portable_spdnn.features import Features, PackedFeatures, as_features
from portable_spdnn.io.atomic_output import atomic_output
from portable_spdnn.layer import Layer
from portable_spdnn.sparse_arrays import wide_csr

_LINES = 1 << 19  # formatted at once: about 40 MB of text and temporaries


def write_layer(path: str | os.PathLike[str], layer: Layer) -> None:
    """Write a layer: lines ``row TAB column TAB weight``, counted from 1, sorted by column.

    Weights are written as in the official files (``6.250000e-02``) where that gives the number
    back, and with the fewest digits that do so elsewhere.

    Parameters
    ----------
    path : path-like
        Compressed by gzip where it ends in ``.gz``. It appears only when it is complete.
    layer : Layer

    Raises
    ------
    InputError
        If the layer has no weights, which the format cannot tell from a damaged file, if it is
        not a plain ReLU layer, or if the file cannot be written.
    """
    if not layer.is_plain_relu:
        raise InputError(
            f"{path}: the Graph Challenge's text files hold ReLU layers without bounds of their "
            f"own, and this one is {layer.activation}; use a packed store"
        )
    if not layer.nnz:
        raise InputError(
            f"{path}: a layer without weights cannot be written as lines; use a packed store"
        )
    # Weights are looked up by number, so that equal ones are formatted once.
    values, which = np.unique(layer.data, return_inverse=True)
    csc = wide_csr(which.reshape(-1), layer.indices, layer.indptr, layer.shape).tocsc()
    weights = _weight_table(values)
    rows, columns = (_decimal_table(1, extent) for extent in layer.shape)
    column_of = np.repeat(np.arange(layer.shape[1], dtype=csc.indices.dtype), np.diff(csc.indptr))
    with _text_output(path) as stream:
        for start in range(0, layer.nnz, _LINES):
            part = slice(start, start + _LINES)
            row, column, weight = csc.indices[part], column_of[part], csc.data[part]
            stream.write(_lines((rows, row), (columns, column), (weights, weight)))


def write_inputs(path: str | os.PathLike[str], features: Features) -> None:
    """Write features: lines ``input TAB neuron TAB value``, counted from 1, sorted by input.

    The value 1 is written as ``1``, others with the fewest digits that give them back. Where
    the last input is all zero, a last line of value 0 keeps the number of inputs.

    Parameters
    ----------
    path : path-like
        Compressed by gzip where it ends in ``.gz``. It appears only when it is complete.
    features : PackedFeatures, ndarray or scipy.sparse, shape (inputs, neurons)

    Raises
    ------
    InputError
        If there are no inputs, or the file cannot be written.
    """
    checked = as_features(features, features.shape[1], f"{path}: features")
    inputs, neurons = checked.shape
    if not inputs or not neurons:
        raise InputError(f"{path}: features of shape ({inputs}, {neurons}) have no lines to write")
    columns = _decimal_table(1, neurons)
    last = -1
    with _text_output(path) as stream:
        for start, rows, indices, values in _entries(checked):
            numbers = _decimal_table(start + 1, start + 1 + int(rows[-1]))
            different, which = np.unique(values, return_inverse=True)
            texts = _text_table(np.where(different == 1, b"1", _shortest(different)))
            stream.write(_lines((numbers, rows), (columns, indices), (texts, which.reshape(-1))))
            last = start + int(rows[-1])
        if last < inputs - 1:
            stream.write(f"{inputs}\t{neurons}\t0\n".encode())


def _entries(features: Features) -> Iterator[tuple[int, Array, Array, Array]]:
    """Yield (first input, inputs from there, neurons, values) of blocks that hold entries."""
    inputs, neurons = features.shape
    csr: Any = None if isinstance(features, PackedFeatures | np.ndarray) else features
    step = max(1, _LINES // neurons) if csr is None else 1024
    for start in range(0, inputs, step):
        if csr is None:
            tile = features[start : start + step]
            dense = tile.dense(np.uint8) if isinstance(tile, PackedFeatures) else tile
            rows, columns = np.nonzero(dense)
            values = dense[rows, columns]
        else:
            block = csr[start : start + step]
            block.eliminate_zeros()
            rows = np.repeat(np.arange(block.shape[0]), np.diff(block.indptr))
            columns, values = block.indices, block.data
        for at in range(0, rows.size, _LINES):
            part = slice(at, at + _LINES)
            yield start, rows[part], columns[part], values[part]


def _weight_table(weights: Array) -> Array:
    official = np.array([f"{weight:e}".encode() for weight in weights.tolist()])
    survives = official.astype(np.float64).astype(weights.dtype) == weights
    return _text_table(np.where(survives, official, _shortest(weights)))


def _shortest(values: Array) -> Array:
    """Return the fewest digits that give each number back, which is how NumPy spells it."""
    return values.astype("S32")


def _decimal_table(first: int, last: int) -> Array:
    """Return the decimals of first .. last, right-aligned rows of bytes with NULs before them."""
    numbers = np.arange(first, last + 1, dtype=np.int64)[:, None]
    powers = 10 ** np.arange(len(str(last)) - 1, -1, -1, dtype=np.int64)
    digits = numbers // powers % 10 + ord("0")
    return np.where(numbers >= powers, digits, 0).astype(np.uint8)


def _text_table(texts: Array) -> Array:
    """Return byte strings as rows of bytes, padded with NULs."""
    width = int(np.strings.str_len(texts).max())
    return texts.astype(f"S{width}").view(np.uint8).reshape(texts.size, width)


def _lines(*fields: tuple[Array, Array]) -> memoryview:
    """Return lines of tab-separated fields, each given as a table of texts and the rows of it."""
    lines = fields[0][1].size
    width = sum(table.shape[1] + 1 for table, _ in fields)
    text = np.empty((lines, width), np.uint8)
    at = 0
    for table, which in fields:
        end = at + table.shape[1]
        text[:, at:end] = table[which]
        text[:, end] = ord("\t")
        at = end + 1
    text[:, -1] = ord("\n")
    flat = text.reshape(-1)
    return memoryview(flat[flat != 0])


@contextmanager
def _text_output(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    with atomic_output(path) as stream:
        if Path(path).suffix == ".gz":
            # No name and no time, so that the same features give the same bytes. Level 4 takes
            # half the time of the usual 6 and gives files 5 % larger.
            with gzip.GzipFile("", "wb", 4, stream, mtime=0) as compressed:
                yield cast(BinaryIO, compressed)
        else:
            yield stream
