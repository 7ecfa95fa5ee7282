"""Checkpoints: a folder of finished batches, from which an interrupted run goes on.

The folder holds ``checkpoint.json``, which names the run (network, features, options), and for
each finished batch ``batch-FIRST.npz``, FIRST being its first input, counted from 0: NumPy
arrays of what `Batch` holds. Features after the last layer are beside it in
``batch-FIRST.rows.npy`` where they are dense, so that they need not be in memory; that file's
CRC-32 is in the ``.npz``, which has checksums of its own. Every file appears whole or not at all,
and the ``.npz`` last.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from portable_spdnn.arrays import Array
from portable_spdnn.errors import InputError
from portable_spdnn.features import Features, PackedFeatures
from portable_spdnn.io.atomic_output import atomic_output
from portable_spdnn.io.run_folder import claim_folder
from portable_spdnn.plans.batch import Batch, BatchOutput
from portable_spdnn.sparse_arrays import check_compressed

_OPTIONAL = ("columns", "seconds_per_layer")
_CSR = ("data", "indices", "indptr")


class Checkpoint:
    """The finished batches of one run, on disk.

    Parameters
    ----------
    folder : path-like
        Made where there is none.
    identity : dict
        What names the run; see `NetworkPlan.identity`.

    Raises
    ------
    InputError
        If the folder holds the checkpoint of another run, or cannot be written.
    """

    def __init__(self, folder: str | os.PathLike[str], identity: dict[str, Any]) -> None:
        self.folder = Path(folder)
        claim_folder(self.folder, "checkpoint.json", identity)

    def load(self, first: int, end: int) -> Batch | None:
        """Return the batch that begins with input `first` and stays before `end`, if finished.

        Raises
        ------
        InputError
            If it is damaged.
        """
        path = self._path(first)
        if not path.exists():
            return None
        try:
            batch = self._batch(first, _parts(path))
        # NumPy and zipfile raise nearly everything where a header is damaged: NotImplementedError
        # for a compression method, SyntaxError for an array's header, RuntimeError, struct.error.
        except Exception as error:
            raise InputError(
                f"{path}: is damaged ({error}); remove it, and its batch runs again"
            ) from error
        return batch if first + batch.inputs <= end else None

    def _batch(self, first: int, parts: dict[str, Any]) -> Batch:
        if "rows_crc32" in parts:
            rows: Any = self._mapped_rows(first)
            if _crc32(self._rows_path(first)) != int(parts["rows_crc32"]):
                raise ValueError(f"checksum mismatch in {self._rows_path(first).name}")
        else:
            data, indices, indptr = (parts[f"rows_{name}"] for name in _CSR)
            rows_shape = int(parts["rows_shape"][0]), int(parts["rows_shape"][1])
            check_compressed("rows", indptr, indices, data.shape, rows_shape)
            rows = sp.csr_array((data, indices, indptr), shape=rows_shape)
        columns, per_layer = (parts.get(name) for name in _OPTIONAL)
        output = BatchOutput(
            parts["active"],
            rows,
            parts["active_per_layer"],
            int(parts["executed_edges"]),
            per_layer,
            columns,
        )
        seconds, inputs = float(parts["seconds"]), int(parts["inputs"])
        active, categories = parts["active"], parts["categories"]
        for name, numbers in (("active", active), ("categories", categories - first)):
            rising = numbers.ndim == 1 and (numbers[1:] > numbers[:-1]).all()
            inside = not numbers.size or (numbers[0] >= 0 and numbers[-1] < inputs)
            if numbers.dtype.kind != "i" or not (rising and inside):
                raise ValueError(f"{name} are no rising numbers of its {inputs} inputs")
        if inputs < 1 or rows.shape[0] != active.size:
            raise ValueError(f"{rows.shape[0]} rows for {active.size} active of {inputs} inputs")
        return Batch(first, inputs, categories, seconds, output, resumed=True)

    def save(self, batch: Batch) -> Batch:
        """Keep a batch; return it with its features on disk where they are dense.

        Raises
        ------
        InputError
            If the disk is full or the folder cannot be written.
        """
        output = batch.output
        parts: dict[str, Any] = {
            "inputs": batch.inputs,
            "seconds": batch.seconds,
            "categories": batch.categories,
            "active": output.active,
            "active_per_layer": output.active_per_layer,
            "executed_edges": output.executed_edges,
        }
        parts |= {
            name: getattr(output, name) for name in _OPTIONAL if getattr(output, name) is not None
        }
        rows = output.fetched().rows
        if isinstance(rows, np.ndarray):
            rows = np.ascontiguousarray(rows)
            with atomic_output(self._rows_path(batch.first)) as stream:
                header = np.lib.format.header_data_from_array_1_0(rows)
                np.lib.format.write_array_header_1_0(stream, header)
                stream.write(rows.reshape(-1).view(np.uint8).data)
            parts["rows_crc32"] = _crc32(self._rows_path(batch.first))
        else:
            parts |= {f"rows_{name}": getattr(rows, name) for name in _CSR}
            parts["rows_shape"] = rows.shape
        with atomic_output(self._path(batch.first)) as stream:
            np.savez(stream, **parts)
        if isinstance(rows, np.ndarray):
            rows = self._mapped_rows(batch.first)
        return replace(batch, output=replace(output, rows=rows))

    def _path(self, first: int) -> Path:
        return self.folder / f"batch-{first:012d}.npz"

    def _rows_path(self, first: int) -> Path:
        return self.folder / f"batch-{first:012d}.rows.npy"

    def _mapped_rows(self, first: int) -> Array:
        # A plain array, which other than `numpy.memmap` can be pickled without a copy.
        return np.asarray(np.load(self._rows_path(first), mmap_mode="r"))


def _parts(path: Path) -> dict[str, Any]:
    """Return the arrays of a batch; they were written without compression."""
    with np.load(path) as stored:
        if sum(part.file_size for part in stored.zip.infolist()) > path.stat().st_size:
            raise ValueError("its parts are larger than the file")
        return dict(stored)


def _crc32(path: Path) -> int:
    """Return the CRC-32 of a file, its header included, without holding it in memory."""
    return zlib.crc32(np.memmap(path, np.uint8, mode="r").data)


def features_fingerprint(features: Features, first: int = 0) -> int:
    """Return a hash of features that is a sum over inputs, modulo 2^64.

    Parts of the inputs, each with the number of its `first` input, add up to the hash of the
    whole, in any order; so ranks that hold a part each find the same.
    """
    total = 0
    for number in range(features.shape[0]):
        digest = hashlib.blake2b(digest_size=8)
        if isinstance(features, PackedFeatures):
            parts = [features.bits[number]]
        elif isinstance(features, np.ndarray):
            parts = [features[number]]
        else:
            row = slice(features.indptr[number], features.indptr[number + 1])
            parts = [features.indices[row].astype(np.int64), features.data[row]]
        for part in parts:
            digest.update(np.ascontiguousarray(part).data)
        digest.update((first + number).to_bytes(8, "little"))
        total += int.from_bytes(digest.digest(), "little")
    return total % (1 << 64)
