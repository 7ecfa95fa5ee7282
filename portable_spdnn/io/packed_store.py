"""Packed stores, opened for reading; `packed_layout` gives the layout."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from portable_spdnn.arrays import Array
from portable_spdnn.epilogue import Epilogue
from portable_spdnn.errors import InputError
from portable_spdnn.features import Features, PackedFeatures, as_features
from portable_spdnn.host import require_memory
from portable_spdnn.io.packed_index import StoredArray, read_index
from portable_spdnn.io.packed_layout import checksum_mismatch, map_store, release_pages
from portable_spdnn.layer import Layer
from portable_spdnn.network import LayerStatistics
from portable_spdnn.sparse_arrays import check_compressed


class PackedStore:
    """A packed store, opened for reading.

    Arrays are memory-mapped: they cost no memory of their own and are read when they are used.
    The checksum of each is verified when it is first asked for.

    Parameters
    ----------
    path : path-like

    Attributes
    ----------
    path : Path
    layers : int
        Number of layers.
    y_max : float or None
    checksum : int
        CRC-32 of the index, which holds the checksums of all arrays.

    Raises
    ------
    InputError
        If the file cannot be read, is no packed store, is of a later version, truncated or
        damaged. Methods raise it where a checksum is wrong or what is asked for is not there.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._mapped, version, text, end = map_store(self.path)
        self._map = np.frombuffer(self._mapped, np.uint8)
        self.checksum = zlib.crc32(text)
        try:
            index = read_index(text, version, end)
        except ValueError as error:
            raise InputError(
                f"{self.path}: the index is malformed ({error}); convert the network again"
            ) from error
        self.y_max = index.y_max
        self._layers, self._inputs = index.layers, index.inputs
        self._truth = {int(layers): array for layers, array in index.truth.items()}
        self.layers = len(self._layers)
        self.neurons = self._layers[0].shape[0]
        self._verified: set[StoredArray] = set()

    def layer(self, number: int, bias: npt.ArrayLike | None = None) -> Layer:
        """Return layer `number`, counted from 1; `bias` replaces the stored one."""
        self.check_layers(number)
        entry, name = self._layers[number - 1], f"layer {number}"
        if entry.indptr is None:
            rows = entry.shape[0]  # which a few bytes may claim to be any number
            require_memory(8 * (rows + 1), f"{self.path}, {name}: offsets of {rows} rows")
            indptr = np.arange(rows + 1, dtype=np.int64) * (entry.row_length or 0)
        else:
            indptr = self._array(entry.indptr, name)
        indices = self._array(entry.indices, name)
        if entry.weights is None:
            weight = np.array(entry.weight or 0.0, entry.weight_dtype)
            data = np.broadcast_to(weight, indices.shape)
        else:
            data = self._array(entry.weights, name)
        bias = self._bias(number) if bias is None else bias
        try:
            return Layer.from_csr(
                indptr, indices, data, entry.shape, bias, *entry.epilogue, copy=False
            )
        except InputError as error:
            raise InputError(f"{self.path}, {name}: {error}") from error

    def layer_statistics(self, number: int, bias: npt.ArrayLike | None = None) -> LayerStatistics:
        """Tell of a layer, counted from 1, what the index knows; `bias` replaces the stored one."""
        self.check_layers(number)
        entry = self._layers[number - 1]
        finish = Epilogue(self._bias(number) if bias is None else bias, *entry.epilogue)
        value_bytes = 0 if entry.weights is None else np.dtype(entry.weight_dtype).itemsize
        return LayerStatistics(entry.shape, entry.indices.count, value_bytes, finish.zeros_stay)

    def _bias(self, number: int) -> float | Array:
        stored = self._layers[number - 1].bias
        if isinstance(stored, StoredArray):
            return self._array(stored, f"layer {number}")
        return stored

    def release(self, first: int, end: int) -> None:
        """Give back the memory of the pages of layers `first` .. `end`, counted from 1.

        They stay in the file: arrays that refer to them read them again.
        """
        for entry in self._layers[first - 1 : end]:
            for part in (entry.indptr, entry.indices, entry.weights, entry.bias):
                if isinstance(part, StoredArray):
                    release_pages(self._mapped, part.offset, part.nbytes)

    @property
    def input_shape(self) -> tuple[int, int] | None:
        """(inputs, neurons) of the stored inputs, None where there are none."""
        return None if self._inputs is None else self._inputs.shape

    def inputs(self, verify: bool = True) -> Features:
        """Return the inputs.

        Parameters
        ----------
        verify : bool
            Verify the checksum, which reads all inputs. A process that needs a few of them may
            leave that to another one. The structure of sparse inputs is always checked.

        Returns
        -------
        PackedFeatures or scipy.sparse.csr_array, shape (inputs, neurons)
        """
        if self._inputs is None:
            raise InputError(f"{self.path}: holds no inputs; name a file of them, inputs=FILE")
        inputs, neurons = self._inputs.shape
        require_memory(16 * inputs, f"{self.path}: what is found for {inputs} inputs")
        if self._inputs.bits is not None:
            bits = self._array(self._inputs.bits, "inputs", verify)
            return PackedFeatures(bits.reshape(inputs, -(-neurons // 8)), neurons)
        names = ("data", "indices", "indptr")
        parts = [self._array(getattr(self._inputs, name), "inputs", verify) for name in names]
        data, indices, indptr = parts
        try:
            check_compressed("features", indptr, indices, data.shape, (inputs, neurons))
            return as_features(sp.csr_array((data, indices, indptr), (inputs, neurons)), neurons)
        except InputError as error:
            raise InputError(f"{self.path}, inputs: {error}") from error

    @property
    def truth_layers(self) -> tuple[int, ...]:
        """The numbers of layers for which the truth is stored, rising."""
        return tuple(sorted(self._truth))

    def truth(self, layers: int) -> Array | None:
        """Return the true categories after `layers` layers, or None where they are not stored.

        Returns
        -------
        ndarray of int64
            Inputs counted from 0, rising.
        """
        stored = self._truth.get(layers)
        if stored is None:
            return None
        owner = f"truth of {layers} layers"
        found = self._array(stored, owner)
        if found.size and (found[0] < 0 or (found[1:] <= found[:-1]).any()):
            raise InputError(
                f"{self.path}: the {owner} is no list of rising numbers of inputs from 0 on; "
                "convert the network again"
            )
        return found

    def check_layers(self, layers: int | None) -> int:
        """Return how many layers are meant, `layers` or all; raise InputError if too many."""
        if layers is not None and not 1 <= layers <= self.layers:
            raise InputError(
                f"{self.path}: holds layers 1 to {self.layers}, not {layers}; "
                f"was layers={self.layers} meant?"
            )
        return self.layers if layers is None else layers

    def _array(self, stored: StoredArray, owner: str, verify: bool = True) -> Array:
        raw = self._map[stored.offset : stored.offset + stored.nbytes]
        if verify and stored not in self._verified:
            if zlib.crc32(raw.data) != stored.crc32:
                raise checksum_mismatch(self.path, owner)
            self._verified.add(stored)
        return raw.view(stored.dtype)
