"""Packed stores, opened for reading; `packed_layout` gives the layout."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from portable_spdnn.epilogue import Epilogue
from portable_spdnn.errors import InputError
from portable_spdnn.features import Features, PackedFeatures
from portable_spdnn.io.packed_layout import (
    ALIGNMENT,
    array_dtype,
    checksum_mismatch,
    epilogue_keys,
    epilogue_of,
    is_packed_store,
    map_store,
    release_pages,
)
from portable_spdnn.io.packed_writer import PackedStoreWriter
from portable_spdnn.layer import Layer

__all__ = ["PackedStore", "PackedStoreWriter", "is_packed_store"]

Array = npt.NDArray[Any]


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
        self._mapped, text = map_store(self.path)
        self._map = np.frombuffer(self._mapped, np.uint8)
        self.checksum = zlib.crc32(text)
        try:
            index = json.loads(text)
            self.y_max = None if index["y_max"] is None else float(index["y_max"])
            self._layers: list[dict[str, Any]] = list(index["layers"])
            self._inputs: dict[str, Any] | None = index["inputs"]
            self._truth = {int(layers): entry for layers, entry in index["truth"].items()}
            self.layers = len(self._layers)
            self.neurons = int(self._layers[0]["shape"][0])
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise self._malformed("index") from error
        if int.from_bytes(self._map[8:12].tobytes(), "little") < 2:
            for number, entry in enumerate(self._layers, start=1):
                if isinstance(entry, dict) and not epilogue_keys(entry):
                    continue
                raise self._malformed(f"layer {number}")
        self._verified: set[tuple[int, int]] = set()

    def layer(self, number: int, bias: npt.ArrayLike | None = None) -> Layer:
        """Return layer `number`, counted from 1; `bias` replaces the stored one."""
        self.check_layers(number)
        entry, name = self._layers[number - 1], f"layer {number}"
        with self._reading(name):
            rows, columns = entry["shape"]
            if entry["row_length"] is None:
                indptr = self._array(entry["indptr"], name)
            else:
                indptr = np.arange(rows + 1, dtype=np.int64) * int(entry["row_length"])
            indices = self._array(entry["indices"], name)
            if entry["weights"] is None:
                weight = np.array(entry["weight"] or 0.0, array_dtype(entry["weight_dtype"]))
                data = np.broadcast_to(weight, indices.shape)
            else:
                data = self._array(entry["weights"], name)
            bias = self._bias(entry, name) if bias is None else bias
            epilogue = epilogue_of(entry)
        try:
            return Layer.from_csr(indptr, indices, data, (rows, columns), bias, *epilogue)
        except InputError as error:
            raise InputError(f"{self.path}, layer {number}: {error}") from error

    def layer_statistics(
        self, number: int, bias: npt.ArrayLike | None = None
    ) -> tuple[tuple[int, int], int, int, bool]:
        """Tell of a layer, counted from 1, what the index knows; `bias` replaces the stored one.

        Returns
        -------
        shape : tuple of int
        nnz : int
        value_bytes : int
            Bytes of a weight, 0 where all are equal.
        zeros_stay : bool
            See `Layer.zeros_stay`.
        """
        self.check_layers(number)
        entry, name = self._layers[number - 1], f"layer {number}"
        with self._reading(name):
            rows, columns = (int(extent) for extent in entry["shape"])
            bias = self._bias(entry, name) if bias is None else bias
            zeros_stay = Epilogue(bias, *epilogue_of(entry)).zeros_stay
            width = array_dtype(entry["weight_dtype"]).itemsize
            nnz = int(entry["indices"]["count"])
        return (rows, columns), nnz, 0 if entry["weights"] is None else width, zeros_stay

    def release(self, first: int, end: int) -> None:
        """Give back the memory of the pages of layers `first` .. `end`, counted from 1.

        They stay in the file: arrays that refer to them read them again.
        """
        for entry in self._layers[first - 1 : end]:
            for part in entry.values():
                if isinstance(part, dict):
                    octets = part["count"] * array_dtype(part["dtype"]).itemsize
                    release_pages(self._mapped, part["offset"], octets)

    @property
    def input_shape(self) -> tuple[int, int] | None:
        """(inputs, neurons) of the stored inputs, None where there are none."""
        return None if self._inputs is None else (self._inputs["shape"][0], self.neurons)

    def inputs(self, verify: bool = True) -> Features:
        """Return the inputs.

        Parameters
        ----------
        verify : bool
            Verify the checksum, which reads all inputs. A process that needs a few of them may
            leave that to another one.

        Returns
        -------
        PackedFeatures or scipy.sparse.csr_array, shape (inputs, neurons)
        """
        if self._inputs is None:
            raise InputError(f"{self.path}: holds no inputs; name a file of them, inputs=FILE")
        entry = self._inputs
        with self._reading("inputs"):
            inputs, neurons = entry["shape"]
            if "bits" in entry:
                bits = self._array(entry["bits"], "inputs", verify)
                return PackedFeatures(bits.reshape(inputs, -(-neurons // 8)), neurons)
            names = ("data", "indices", "indptr")
            parts = [self._array(entry[key], "inputs", verify) for key in names]
            csr = sp.csr_array(tuple(parts), shape=(inputs, neurons))
            csr.check_format(full_check=verify)
        return csr

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
        entry = self._truth.get(layers)
        return None if entry is None else self._array(entry, f"truth of {layers} layers")

    def check_layers(self, layers: int | None) -> int:
        """Return how many layers are meant, `layers` or all; raise InputError if too many."""
        if layers is not None and not 1 <= layers <= self.layers:
            raise InputError(
                f"{self.path}: holds layers 1 to {self.layers}, not {layers}; "
                f"was layers={self.layers} meant?"
            )
        return self.layers if layers is None else layers

    def _bias(self, entry: dict[str, Any], owner: str) -> Array | float:
        stored = entry["bias"]
        return self._array(stored, owner) if isinstance(stored, dict) else float(stored)

    def _array(self, entry: dict[str, Any], owner: str, verify: bool = True) -> Array:
        dtype = array_dtype(entry["dtype"])
        offset, octets = entry["offset"], entry["count"] * dtype.itemsize
        if offset % ALIGNMENT or not 0 <= offset <= offset + octets <= self._map.size:
            raise self._malformed(owner)
        stored = self._map[offset : offset + octets]
        if verify and (offset, octets) not in self._verified:
            if zlib.crc32(stored.data) != entry["crc32"]:
                raise checksum_mismatch(self.path, owner)
            self._verified.add((offset, octets))
        return stored.view(dtype)

    @contextmanager
    def _reading(self, owner: str) -> Iterator[None]:
        """Let errors of an entry that does not hold what it should name its owner."""
        try:
            yield
        except InputError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise self._malformed(owner) from error

    def _malformed(self, owner: str) -> InputError:
        return InputError(f"{self.path}: the entry of {owner} is malformed; convert it again")
