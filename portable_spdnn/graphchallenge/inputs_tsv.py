"""Inputs in the text format of the Sparse DNN Graph Challenge."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from portable_spdnn.arrays import Array
from portable_spdnn.errors import InputError
from portable_spdnn.features import Features, PackedFeatures
from portable_spdnn.graphchallenge.tsv_triples import PARSERS, TripleFormat, parse_triples
from portable_spdnn.host import available_bytes, map_in_threads
from portable_spdnn.io.compressed import line_blocks, open_decompressed

MAX_INPUTS = (1 << 31) - 1


def read_inputs(
    file: str | os.PathLike[str], neurons: int, first: int | None = None
) -> tuple[Features, int]:
    """Read features: lines ``input TAB neuron TAB value``, counted from 1, in any order.

    The file is read block by block, so that it takes little more memory than its features.
    Duplicated entries are summed. An entry of value zero adds nothing but the number of its
    input: the number of inputs is the largest input in the file.

    Parameters
    ----------
    file : path-like
        Plain text, or compressed by gzip or xz.
    neurons : int
    first : int, optional
        Keep inputs 1 to `first` only. The others are still read and checked.

    Returns
    -------
    features : PackedFeatures, or scipy.sparse.csr_array of float32 where a value is not 1
        Shape (inputs, neurons).
    total : int
        Number of inputs in the file.

    Raises
    ------
    InputError
        Naming file and line where a line is not an input, a neuron and a finite value, or a
        neuron is outside 1 .. neurons; naming the file if it is empty, truncated or damaged, or
        holds fewer than `first` inputs.
    """
    if first is not None and first < 1:
        raise InputError(f"{file}: the first {first} inputs are asked for; at least 1")
    path = Path(file)
    try:
        binary = _read_binary(path, neurons, first)
        features, total = _read_numbers(path, neurons, first) if binary is None else binary
    except MemoryError as error:
        raise InputError(
            f"{path}: its inputs do not fit into memory; read fewer, or look for an input "
            "number that is far too large"
        ) from error
    if first is not None and first > total:
        raise InputError(f"{path}: holds {total} inputs, not {first}; ask for fewer")
    return features, total


def _read_binary(path: Path, neurons: int, first: int | None) -> tuple[PackedFeatures, int] | None:
    """Read features of zeros and ones; None where there are other values or duplicates."""
    width = -(-neurons // 8)
    bits = np.zeros((0, width), np.uint8)
    total = entries = 0
    for inputs, columns, values in _triples(path, neurons, first):
        total = max(total, int(inputs.max()))
        keep = values != 0
        if first is not None:
            keep &= inputs <= first
        if not keep.all():
            inputs, columns, values = inputs[keep], columns[keep], values[keep]
        if not inputs.size:
            continue
        if not (values == 1).all():
            return None
        rows = int(inputs.max())
        if rows > bits.shape[0]:
            # In place, and by half again: the whole is never copied and seldom touched.
            bits.resize((max(rows, bits.shape[0] * 3 // 2), width), refcheck=False)
        columns = columns - 1  # not in place: the parser's arrays are read-only
        places = (inputs - 1) * width + (columns >> 3)
        np.bitwise_or.at(bits.reshape(-1), places, (128 >> (columns & 7)).astype(np.uint8))
        entries += inputs.size
    bits.resize((total if first is None else min(total, first), width), refcheck=False)
    features = PackedFeatures(bits, neurons)
    return (features, total) if features.nnz == entries else None


def _read_numbers(path: Path, neurons: int, first: int | None) -> tuple[Any, int]:
    """Read features of any value."""
    total = 0
    blocks: list[tuple[Array, Array, Array]] = []
    for inputs, columns, values in _triples(path, neurons, first):
        total = max(total, int(inputs.max()))
        keep = slice(None) if first is None else inputs <= first
        rows, neuron = (inputs[keep] - 1).astype(np.int32), (columns[keep] - 1).astype(np.int32)
        blocks.append((rows, neuron, values[keep]))
    inputs, columns, values = (np.concatenate(part) for part in zip(*blocks, strict=True))
    shape = (total if first is None else min(total, first), neurons)
    csr = sp.coo_array((values, (inputs, columns)), shape=shape).tocsr()
    csr.sum_duplicates()
    csr.eliminate_zeros()
    with np.errstate(over="ignore"):
        csr.data = csr.data.astype(np.float32)
    if not np.isfinite(csr.data).all():
        raise InputError(f"{path}: entries of the same input and neuron add up beyond float32")
    return csr, total


def _most_inputs(neurons: int) -> int:
    """Return how many inputs the memory available holds: a line with more is a mistake.

    An input takes its bits, and as much again for what is computed of them; sparse inputs take
    row offsets of 8 bytes.
    """
    available = available_bytes()
    if available is None:
        return MAX_INPUTS
    return min(MAX_INPUTS, available // (3 * max(8, neurons // 8)))


def _triples(path: Path, neurons: int, first: int | None) -> Iterator[tuple[Array, Array, Array]]:
    """Yield the lines block by block, parsed and checked; at least one."""
    most = MAX_INPUTS if first is not None else _most_inputs(neurons)
    form = TripleFormat(("input", "neuron", "value"), (most, neurons))

    def parse(block: tuple[int, bytes]) -> tuple[Array, Array, Array]:
        return parse_triples(block[1], form, str(path), block[0])

    found = False
    with open_decompressed(path) as stream:
        for triples in map_in_threads(parse, line_blocks(stream, str(path)), PARSERS):
            if triples[0].size:
                found = True
                yield triples
    if not found:
        raise InputError(f"{path}: is empty; copy or download it again")
