"""Features: what a user may hand to a network, brought to one of three forms."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from portable_spdnn.arrays import Array
from portable_spdnn.errors import InputError
from portable_spdnn.operations.operands import AnyArray, SparseOperand, host_array
from portable_spdnn.sparse_arrays import canonical_csr, real_dtype


class PackedFeatures:
    """Binary features, one bit each.

    Parameters
    ----------
    bits : ndarray of uint8, shape (inputs, ceil(neurons / 8))
        Row i holds input i as `numpy.packbits` writes it: the first neuron in the highest bit
        of the first byte. Bits past the last neuron must be zero.
    neurons : int

    Raises
    ------
    InputError
        If the shape or type does not fit, or a bit past the last neuron is set.

    Examples
    --------
    >>> import numpy as np, portable_spdnn as ps
    >>> features = ps.PackedFeatures.from_dense(np.eye(3))
    >>> features.bits.tolist(), features.shape, features.nnz
    ([[128], [64], [32]], (3, 3), 3)
    """

    __slots__ = ("bits", "neurons")

    def __init__(self, bits: Array, neurons: int) -> None:
        width = -(-neurons // 8)
        if bits.dtype != np.uint8 or bits.ndim != 2 or bits.shape[1] != width:
            raise InputError(
                f"packed features are {bits.dtype} of shape {bits.shape}; {neurons} neurons "
                f"take uint8 of shape (inputs, {width})"
            )
        spare = 8 * width - neurons
        if spare and bits.size and (bits[:, -1] & ((1 << spare) - 1)).any():
            raise InputError(
                f"packed features: a bit past the last neuron is set; are there {neurons} neurons?"
            )
        self.bits = np.ascontiguousarray(bits)
        self.neurons = neurons

    @classmethod
    def from_dense(cls, features: Array) -> PackedFeatures:
        """Pack a 2-D array (inputs, neurons); every nonzero becomes 1."""
        return cls(np.packbits(features != 0, axis=1), features.shape[1])

    @classmethod
    def empty(cls, neurons: int) -> PackedFeatures:
        """Return features of no inputs."""
        return cls(np.empty((0, -(-neurons // 8)), np.uint8), neurons)

    @property
    def shape(self) -> tuple[int, int]:
        """(inputs, neurons)."""
        return (self.bits.shape[0], self.neurons)

    @property
    def nnz(self) -> int:
        """Number of ones."""
        return int(np.bitwise_count(self.bits).sum(dtype=np.int64))

    def __getitem__(self, rows: slice | Array) -> PackedFeatures:
        return PackedFeatures(self.bits[rows], self.neurons)

    def dense(self, dtype: npt.DTypeLike = np.float32) -> Array:
        """Return the features as a new ndarray of zeros and ones, shape (inputs, neurons).

        >>> features = PackedFeatures(np.array([[0b10100000]], np.uint8), neurons=3)
        >>> features.dense().tolist(), features.csr().indices.tolist()
        ([[1.0, 0.0, 1.0]], [0, 2])
        """
        return np.unpackbits(self.bits, axis=1, count=self.neurons).astype(dtype)

    def csr(self, dtype: npt.DTypeLike = np.float32) -> sp.csr_array:
        """Return the features as a new `scipy.sparse.csr_array`, shape (inputs, neurons)."""
        # Blocks of rows keep the unpacked bytes small: 65,536 neurons take 64 KB an input.
        step = max(1, (1 << 24) // max(self.neurons, 1))
        blocks = [
            sp.csr_array(np.unpackbits(self.bits[at : at + step], axis=1, count=self.neurons))
            for at in range(0, self.bits.shape[0], step)
        ]
        if not blocks:
            return sp.csr_array(self.shape, dtype=dtype)
        return sp.vstack(blocks, format="csr", dtype=dtype)

    def __repr__(self) -> str:
        return f"PackedFeatures({self.shape[0]} inputs x {self.neurons} neurons)"


Features: TypeAlias = PackedFeatures | Array | sp.csr_array
FeaturesLike: TypeAlias = PackedFeatures | npt.ArrayLike | SparseOperand


def as_features(features: FeaturesLike, neurons: int, name: str = "features") -> Features:
    """Validate features and bring them to one of the forms that plans take.

    Parameters
    ----------
    features : PackedFeatures, array_like of the host or scipy.sparse, shape (inputs, neurons)
        A bool array is packed. A uint8 array of ceil(neurons / 8) columns is taken as packed
        bits, one of `neurons` columns as numbers. Arrays of other libraries are taken where
        NumPy reads them or they speak DLPack.
    neurons : int
        Width of the network's input.
    name : str
        What error messages call the features.

    Returns
    -------
    PackedFeatures, ndarray of float32 or float64 (2-D), or scipy.sparse.csr_array (canonical)

    Raises
    ------
    InputError
        If the width is wrong or ambiguous, a feature is NaN, infinite or not real, or the
        features are in a device's memory.
    """
    if isinstance(features, PackedFeatures):
        _check_width(features.shape, neurons, name)
        return features
    if sp.issparse(features):
        _check_width(np.shape(features), neurons, name)
        csr = canonical_csr(name, features)
        if not np.isfinite(csr.data).all():
            entry = int(np.argmin(np.isfinite(csr.data)))
            row = int(np.searchsorted(csr.indptr, entry, "right")) - 1
            _raise_not_finite(name, row, int(csr.indices[entry]))
        return csr
    array = host_array(name, features)
    if array.ndim == 2 and array.dtype == np.uint8:
        packed_width = -(-neurons // 8)
        if packed_width == neurons == array.shape[1]:
            raise InputError(
                f"{name}: uint8 with {neurons} column(s) may be bits or numbers; "
                "pass PackedFeatures or a bool or float array"
            )
        if array.shape[1] == packed_width:
            return PackedFeatures(array, neurons)
    _check_width(array.shape, neurons, name)
    if array.dtype == np.bool_:
        return PackedFeatures.from_dense(array)
    array = array.astype(real_dtype(array.dtype, name), copy=False)
    finite = np.isfinite(array)
    if not finite.all():
        _raise_not_finite(name, *divmod(int(np.argmin(finite)), neurons))
    return array


def check_magnitudes(features: Features, dtype: npt.DTypeLike) -> None:
    """Raise InputError where valid features of float64 are infinite in the type of a plan."""
    values = features if isinstance(features, np.ndarray) else getattr(features, "data", None)
    if values is None or not values.size or values.dtype.itemsize <= np.dtype(dtype).itemsize:
        return
    extreme = max(float(values.max()), -float(values.min()))
    if extreme > float(np.finfo(np.dtype(dtype)).max):
        raise InputError(
            f"a feature of magnitude {extreme:.4g} does not fit in {np.dtype(dtype)}; use "
            "dtype=float64, or scale the features"
        )


def _check_width(shape: tuple[int, ...], neurons: int, name: str) -> None:
    if len(shape) != 2:
        hint = "; a single input is x[None]" if len(shape) == 1 else ""
        raise InputError(
            f"{name} have {len(shape)} dimension(s); expected (inputs, {neurons}){hint}"
        )
    if shape[1] != neurons:
        hint = "their transpose fits" if shape[0] == neurons else f"was neurons={shape[1]} meant?"
        raise InputError(
            f"{name} have {shape[1]} columns but the network takes {neurons} neurons; {hint}"
        )


def _raise_not_finite(name: str, row: int, neuron: int) -> None:
    raise InputError(
        f"{name}: input {row}, neuron {neuron} (counted from 0) is NaN or infinite; "
        "all features must be finite"
    )


def cast_features(features: Features, dtype: npt.DTypeLike, sparse: bool) -> AnyArray:
    """Return features as a csr_array or as a dense array of `dtype`, copying where needed."""
    if isinstance(features, PackedFeatures):
        return features.csr(dtype) if sparse else features.dense(dtype)
    if isinstance(features, np.ndarray):
        if not sparse:
            return features.astype(dtype, copy=False)
        return sp.csr_array(features).astype(dtype, copy=False)
    return features.astype(dtype, copy=False) if sparse else features.astype(dtype).toarray()
