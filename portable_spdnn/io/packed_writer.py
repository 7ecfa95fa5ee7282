"""Writing packed stores; `packed_layout` gives the layout."""

from __future__ import annotations

import os
import zlib
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from portable_spdnn.arrays import Array
from portable_spdnn.errors import InputError
from portable_spdnn.features import Features, PackedFeatures, as_features
from portable_spdnn.io.atomic_output import atomic_output
from portable_spdnn.io.packed_index import (
    Index,
    StoredArray,
    StoredInputsEntry,
    StoredLayer,
    problems,
    stored_epilogue,
)
from portable_spdnn.io.packed_layout import ALIGNMENT, pack_header
from portable_spdnn.layer import Layer
from portable_spdnn.network import checked_y_max
from portable_spdnn.sparse_arrays import wide_csr


class PackedStoreWriter:
    """Write a packed store, layer by layer in any order.

    Used as a context manager. The file appears when the block ends; when it raises, nothing
    is left and an earlier file of that name stays.

    Parameters
    ----------
    path : path-like
    y_max : float or None
        Upper bound of the features after each layer; None: no bound.

    Raises
    ------
    InputError
        At the end of the block if a layer of 1 to the largest number is missing or layers and
        inputs do not fit together; at any time if the disk is full.

    Examples
    --------
    >>> import os, tempfile, numpy as np
    >>> from portable_spdnn.io.packed_store import PackedStore
    >>> path = os.path.join(tempfile.mkdtemp(), "network.spdnn")
    >>> with PackedStoreWriter(path, y_max=32.0) as store:
    ...     store.add_layer(1, Layer(np.eye(4), -0.3))
    >>> PackedStore(path).layer(1)
    Layer(4 x 4, 4 edges)
    """

    def __init__(self, path: str | os.PathLike[str], *, y_max: float | None) -> None:
        self._path = Path(path)
        self._y_max = checked_y_max(y_max)
        self._layers: dict[int, StoredLayer] = {}
        self._inputs: StoredInputsEntry | None = None
        self._truth: dict[str, StoredArray] = {}
        self._stack = ExitStack()
        self._stream: BinaryIO

    def __enter__(self) -> Self:
        self._stream = self._stack.enter_context(atomic_output(self._path, seekable=True))
        self._stream.write(bytes(ALIGNMENT))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            with self._stack:
                self._finish()
        else:
            self._stack.__exit__(kind, error, traceback)

    def add_layer(self, number: int, layer: Layer) -> None:
        """Append a layer.

        Parameters
        ----------
        number : int
            Its place in the network, counted from 1.
        layer : Layer
        """
        if number < 1 or number in self._layers:
            known = "was added already" if number in self._layers else "does not exist"
            raise InputError(f"{self._path}: layer {number} {known}; each comes once, from 1 on")
        weight = layer.constant
        bias = float(layer.bias[0]) if layer.bias.size else 0.0
        uniform = not layer.bias.size or layer.bias.strides == (0,)
        self._layers[number] = StoredLayer(
            layer.shape,
            layer.row_length,
            self._append(layer.indptr) if layer.row_length is None else None,
            self._append(layer.indices),
            layer.data.dtype.newbyteorder("<").str,  # type: ignore[arg-type]
            weight,
            self._append(layer.data) if weight is None else None,
            bias if uniform else self._append(layer.bias),
            *stored_epilogue(layer),
        )

    def set_inputs(self, features: Features) -> None:
        """Append the inputs.

        Parameters
        ----------
        features : PackedFeatures, scipy.sparse or ndarray, shape (inputs, neurons)
            All but `PackedFeatures` and bool arrays are kept as CSR.
        """
        checked = as_features(features, features.shape[1], f"{self._path}: inputs")
        if isinstance(checked, PackedFeatures):
            self._inputs = StoredInputsEntry(checked.shape, self._append(checked.bits))
        else:
            given = sp.csr_array(checked)
            csr = wide_csr(given.data, given.indices, given.indptr, given.shape)
            arrays = csr.indptr, csr.indices, csr.data
            self._inputs = StoredInputsEntry(csr.shape, None, *map(self._append, arrays))

    def set_truth(self, layers: int, categories: npt.ArrayLike) -> None:
        """Append the true categories after a number of layers.

        Parameters
        ----------
        layers : int
        categories : array_like of integers
            Inputs counted from 0, rising.
        """
        array = np.asarray(categories, dtype=np.int64)
        if array.ndim != 1 or (array.size and array[0] < 0) or (array[1:] <= array[:-1]).any():
            raise InputError(
                f"{self._path}: categories after {layers} layers are not rising numbers from 0"
            )
        self._truth[str(layers)] = self._append(array)

    def _append(self, array: Array) -> StoredArray:
        stored = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        raw = stored.reshape(-1).view(np.uint8)
        offset = self._align()
        self._stream.write(raw.data)
        return StoredArray(offset, stored.size, stored.dtype.str, zlib.crc32(raw.data))  # type: ignore[arg-type]

    def _align(self) -> int:
        offset = self._stream.tell()
        self._stream.write(bytes(-offset % ALIGNMENT))
        return offset + -offset % ALIGNMENT

    def _finish(self) -> None:
        layers = [self._layers[number] for number in sorted(self._layers)]
        missing = next((n for n in range(1, len(layers) + 1) if n not in self._layers), None)
        if missing is not None or not layers:
            raise InputError(f"{self._path}: layer {missing or 1} was never added")
        index = Index(self._y_max, tuple(layers), self._inputs, self._truth)
        text, offset = index.encode(), self._align()
        problem = next(problems(index, index.version, offset), None)
        if problem is not None:
            raise InputError(f"{self._path}: {problem}")
        self._stream.write(text)
        self._stream.seek(0)
        self._stream.write(pack_header(text, offset, index.version))
