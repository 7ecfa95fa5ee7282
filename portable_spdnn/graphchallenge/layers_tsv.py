"""Networks in the text format of the Sparse DNN Graph Challenge.

One file a layer, one line a weight: ``row TAB column TAB value``, counted from 1; the row is
the input neuron, the column the output neuron. `graphchallenge.folder_layout` says where the files
lie.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import scipy.sparse as sp

from portable_spdnn.arrays import Progress
from portable_spdnn.errors import InputError
from portable_spdnn.graphchallenge.configurations import challenge_bias
from portable_spdnn.graphchallenge.folder_layout import LayerTexts
from portable_spdnn.graphchallenge.tsv_triples import PARSERS, TripleFormat, parse_triples
from portable_spdnn.host import map_in_threads
from portable_spdnn.io.packed_store import PackedStore
from portable_spdnn.io.packed_writer import PackedStoreWriter
from portable_spdnn.layer import Layer


def stream_layers(
    directory: str | os.PathLike[str],
    neurons: int,
    layers: int | None = None,
    bias: float | None = None,
    progress: Progress | None = None,
) -> Iterator[tuple[int, Layer]]:
    """Yield (number, layer) in the order in which they are stored, in one pass.

    A folder is read in order; an archive as its members come. Memory is bounded by a few
    layers. Parameters and errors are those of `iter_layers`, and:

    Parameters
    ----------
    progress : callable, optional
        Called with (layers done, layers in all); the latter is 0 while it is not known, which
        is so in an archive without a given number of layers.
    """
    texts = LayerTexts(Path(directory), neurons, layers)
    bias = challenge_bias(neurons) if bias is None else bias

    def parse(item: tuple[int, str, bytes]) -> tuple[int, Layer]:
        number, source, text = item
        return number, parse_layer(text, source, neurons, bias)

    for done, (number, layer) in enumerate(map_in_threads(parse, texts, PARSERS), start=1):
        yield number, layer
        if progress is not None:
            progress(done, texts.total or 0)


def iter_layers(
    directory: str | os.PathLike[str],
    neurons: int,
    layers: int | None = None,
    bias: float | None = None,
) -> Iterator[Layer]:
    """Yield the layers of a network in order, in bounded memory.

    Layers of an archive that come too early wait on disk, in the folder for temporary files
    (TMPDIR), and are then memory-mapped.

    Parameters
    ----------
    directory : path-like
        The folder that holds ``neuronN`` or its archive.
    neurons : int
    layers : int, optional
        The first so many; default: all, which must be numbered 1, 2, 3, ...
    bias : float, optional
        Default: that of the challenge network with so many neurons.

    Yields
    ------
    Layer

    Raises
    ------
    InputError
        If the network or a layer is missing, or a file is malformed, truncated or damaged.
    """
    stream = stream_layers(directory, neurons, layers, bias)
    positions: dict[int, int] = {}
    following = 1
    with ExitStack() as until_read:
        with ExitStack() as until_written:
            for number, layer in stream:
                if not positions:
                    if number == following:
                        following += 1
                        yield layer
                        continue
                    folder = TemporaryDirectory(prefix="portable-spdnn-")
                    spool = Path(until_read.enter_context(folder)) / "layers.spdnn"
                    writer = until_written.enter_context(PackedStoreWriter(spool, y_max=None))
                positions[number] = len(positions) + 1
                writer.add_layer(positions[number], layer)
        if positions:
            store = PackedStore(spool)
            for number in sorted(positions):
                yield store.layer(positions[number])


def parse_layer(text: bytes, source: str, neurons: int, bias: float) -> Layer:
    """Return the layer that the text of a file gives; `source` is the file, for messages.

    It is float32; duplicated entries are summed (in float64) before rounding. Raises InputError,
    naming file and line, where a line is not a row, a column and a finite weight, or an index is
    outside 1 .. neurons, and naming the file where it has no lines.
    """
    form = TripleFormat(("row", "column", "weight"), (neurons, neurons))
    rows, columns, weights = parse_triples(text, form, source)
    if not rows.size:
        raise InputError(f"{source}: is empty; copy or download it again")
    shape = (neurons, neurons)
    csr = sp.coo_array((weights, (rows - 1, columns - 1)), shape=shape).tocsr()
    csr.sum_duplicates()
    with np.errstate(over="ignore"):
        rounded = csr.data.astype(np.float32)
    try:
        return Layer.from_csr(csr.indptr, csr.indices, rounded, shape, bias, copy=False)
    except InputError as error:  # a bias that is not finite, or a sum beyond float32
        raise InputError(f"{source}: {error}") from error
