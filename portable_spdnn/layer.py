"""Layer: validated, immutable sparse weights in host memory, and what follows their sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from portable_spdnn.arguments import checked_count, refuse_masked, shown
from portable_spdnn.arrays import Array, Immutable
from portable_spdnn.epilogue import Epilogue
from portable_spdnn.errors import InputError
from portable_spdnn.sparse_arrays import (
    canonical_csr,
    check_compressed,
    common_value,
    index_dtype,
    real_dtype,
    unsorted_row,
    wide_csr,
)


class Layer(Immutable):
    """One layer, ``Y' = min(max(activation(Y W + bias), lower), upper)``, with W in CSR.

    By default it is a layer of the Graph Challenge: ReLU, bounded above by the network's
    ``y_max``. `portable_spdnn.epilogue` has the activations.

    W has one row per input neuron and one column per output neuron, so that features are
    multiplied from the left. Rows are sorted by column and free of duplicates. The arrays are
    read-only; they may be memory-mapped.

    Parameters
    ----------
    weights : sparse matrix or array, or 2-D array_like; shape (neurons_in, neurons_out)
        Duplicated entries are summed. float32 and float64 keep their type; 64-bit integers and
        longer floats become float64, other real types float32.
    bias : float or array_like of shape (neurons_out,), default 0
        Added to every output, zero or not.
    activation : str, default "relu"
        One of `portable_spdnn.epilogue.ACTIVATIONS`; "none" for a linear layer.
    lower, upper : float, optional
        Bounds of the outputs; None for none. The network's ``y_max`` bounds ReLU layers besides,
        and no others.

    Attributes
    ----------
    indptr : ndarray of int64, shape (neurons_in + 1,)
    indices : ndarray of uint16, int32 or int64, shape (nnz,)
        The narrowest type that holds every column.
    data : ndarray of float32 or float64, shape (nnz,)
        Where all weights are equal this is one number broadcast to `nnz` (stride 0).
    bias : ndarray of float64, shape (neurons_out,)
        One number broadcast where all are equal.
    shape : tuple of int
        (neurons_in, neurons_out)
    activation : str
    lower, upper : float or None

    Raises
    ------
    InputError
        If `weights` is not two-dimensional or not real, if a weight or bias is NaN or
        infinite, if `bias` does not fit `neurons_out`, if the activation is unknown, or if
        `lower` exceeds `upper`.

    Examples
    --------
    >>> import portable_spdnn as ps
    >>> hidden = ps.Layer([[1.0, 0.0], [0.0, -2.0]], bias=-0.5, activation="gelu")
    >>> ps.Network([hidden, ps.Layer([[1.0], [1.0]], activation="none")]).edges
    4
    """

    __slots__ = (
        "_kept_csr", "_kept_epilogue", "activation", "bias", "data", "indices", "indptr", "lower",
        "shape", "upper",
    )  # fmt: skip

    indptr: Array
    indices: Array
    data: Array
    bias: Array
    shape: tuple[int, int]
    activation: str
    lower: float | None
    upper: float | None
    # What single products need, made when it is first asked for; of two threads one is kept.
    _kept_csr: sp.csr_array
    _kept_epilogue: Epilogue

    def __init__(
        self,
        weights: npt.ArrayLike | sp.sparray | sp.spmatrix,
        bias: npt.ArrayLike = 0.0,
        activation: str = "relu",
        lower: float | None = None,
        upper: float | None = None,
    ) -> None:
        try:
            given: Any = weights if sp.issparse(weights) else np.asarray(weights)
        except (ValueError, TypeError, RuntimeError) as error:  # whatever its library raises
            raise InputError(
                f"layer: weights: {type(weights).__name__} cannot be read as an array: {error}"
            ) from error
        refuse_masked("layer: weights", weights)
        refuse_masked("layer: bias", bias)
        if given.ndim != 2:
            raise InputError(
                f"layer: weights have {given.ndim} dimension(s); "
                "2 are expected (neurons_in x neurons_out)"
            )
        dtype = real_dtype(given.dtype, "layer: weights")
        if not sp.issparse(given):
            given = sp.csr_array(given.astype(dtype, copy=False))
        csr = canonical_csr("layer: weights", given).astype(dtype, copy=True)
        epilogue = Epilogue(None, activation, lower, upper)
        self._set(csr.indptr, csr.indices, csr.data, csr.shape, np.array(bias), epilogue)

    @classmethod
    def from_csr(
        cls,
        indptr: Array,
        indices: Array,
        data: Array | float,
        shape: tuple[int, int],
        bias: npt.ArrayLike = 0.0,
        activation: str = "relu",
        lower: float | None = None,
        upper: float | None = None,
        *,
        copy: bool = True,
    ) -> Layer:
        """Build a layer from CSR arrays.

        Parameters
        ----------
        indptr, indices : ndarray of integers
            CSR row offsets and columns; each row sorted by column, without duplicates.
        data : ndarray of shape (nnz,), or float
            The weights; a single number stands for all of them.
        shape : tuple of int
            (neurons_in, neurons_out)
        bias : float or array_like of shape (neurons_out,)
        activation, lower, upper
            As for the constructor.
        copy : bool
            False only where nobody changes the arrays any more: those that fit are then kept.

        Raises
        ------
        InputError
            If the arrays do not form a CSR matrix of this shape with sorted, unique columns,
            or for any reason that the constructor names.

        Examples
        --------
        >>> layer = Layer.from_csr(np.array([0, 1, 2]), np.array([1, 0]), 0.5, (2, 2), bias=-1)
        >>> layer.csr().toarray().tolist()
        [[0.0, 0.5], [0.5, 0.0]]
        """
        given = {"offsets": indptr, "indices": indices, "weights": data, "bias": bias}
        for name, array in given.items():
            refuse_masked(f"layer: {name}", array)
        layer = cls.__new__(cls)
        epilogue = Epilogue(None, activation, lower, upper)
        keep = True if copy else None
        try:
            # One number broadcast to all stays one.
            data = data if np.asarray(data).strides == (0,) else np.array(data, copy=keep)
            indptr, indices, bias = (np.array(one, copy=keep) for one in (indptr, indices, bias))
        except ValueError as error:  # lists of lists of other lengths
            raise InputError(f"layer: {error}") from error
        layer._set(indptr, indices, data, shape, bias, epilogue)
        return layer

    def _set(
        self,
        indptr: Array,
        indices: Array,
        data: Array | float,
        shape: tuple[int, int],
        bias: npt.ArrayLike,
        epilogue: Epilogue,
    ) -> None:
        if np.shape(shape) != (2,):
            raise InputError(
                f"layer: shape is {shown(shape)}; (neurons_in, neurons_out) is expected"
            )
        rows, columns = (
            checked_count("layer: a number of neurons", extent, 0, 1 << 48) for extent in shape
        )
        if not indices.size:  # an empty list has no integers
            indices = indices.astype(np.int64)
        values = np.shape(data) or indices.shape  # one number stands for all
        check_compressed("layer", indptr, indices, values, (rows, columns))
        indptr = np.ascontiguousarray(indptr, dtype=np.int64)
        nnz = int(indptr[-1])
        if indices.shape != (nnz,):
            raise InputError(
                f"layer: {indices.size} column indices; the row offsets call for {nnz}"
            )
        indices = np.ascontiguousarray(indices, dtype=index_dtype(columns))
        row = unsorted_row(indptr, indices)
        if row is not None:
            raise InputError(f"layer: columns of row {row} are unsorted or duplicated")
        self.shape = (rows, columns)
        self.indptr = _frozen(indptr)
        self.indices = _frozen(indices)
        self.data = _real_vector("weight", data, nnz)
        self.bias = _real_vector("bias", bias, columns, np.dtype(np.float64))
        self.activation = epilogue.activation
        self.lower, self.upper = epilogue.lower, epilogue.upper

    def __reduce__(self) -> tuple[Callable[..., Layer], tuple[object, ...]]:
        # One number for all weights, or biases, stays one.
        shared = [a[:1] if a.size and a.strides == (0,) else a for a in (self.data, self.bias)]
        rest = self.shape, self.activation, self.lower, self.upper
        return _restored, (self.indptr, self.indices, *shared, *rest)

    @property
    def nnz(self) -> int:
        """Number of stored weights: the layer's edges."""
        return int(self.indices.size)

    @property
    def constant(self) -> float | None:
        """The weight that all entries share, or None where they differ or there are none."""
        return float(self.data[0]) if self.nnz and self.data.strides == (0,) else None

    @property
    def row_length(self) -> int | None:
        """Number of entries in each row where all rows have the same, else None."""
        length = common_value(np.diff(self.indptr))
        return None if length is None else int(length)

    def epilogue(self, y_max: float | None = None) -> Epilogue:
        """Return bias, activation and bounds; `y_max` bounds a ReLU layer above."""
        upper = self.upper
        if self.activation == "relu" and y_max is not None:
            upper = y_max if upper is None else min(upper, y_max)
        # One number for all outputs, where they share it.
        bias = self.bias[0] if self.bias.size and self.bias.strides == (0,) else self.bias
        return Epilogue(bias, self.activation, self.lower, upper)

    @property
    def is_plain_relu(self) -> bool:
        """Whether the layer is one of the Graph Challenge's: ReLU, without bounds of its own."""
        return self.activation == "relu" and self.lower is None and self.upper is None

    @property
    def zeros_stay(self) -> bool:
        """Whether a row of zeros gives a row of zeros; see `Epilogue.zeros_stay`.

        A ReLU layer has the property where no bias is positive. ``y_max``, which is positive,
        changes nothing.
        """
        return self.epilogue().zeros_stay

    def csr(self, dtype: npt.DTypeLike | None = None) -> sp.csr_array:
        """Return W, (neurons_in, neurons_out), as a new csr_array of `dtype` (default: as stored).

        >>> Layer([[0.0, 2.0]], bias=-1).csr("float32").toarray()
        array([[0., 2.]], dtype=float32)
        """
        csr = wide_csr(np.array(self.data, dtype=dtype), self.indices, self.indptr, self.shape)
        csr.has_canonical_format = True
        return csr

    def kept_csr(self) -> sp.csr_array:
        """Return W as `csr` does, but made once and kept, with arrays that are not writeable.

        For single products: where the layer's indices have 16 bits this keeps four bytes an entry
        more, and as many again of values where all are one number.
        """
        if not hasattr(self, "_kept_csr"):
            data = np.ascontiguousarray(self.data)
            kept = wide_csr(data, self.indices, self.indptr, self.shape, copy=False)
            kept.has_canonical_format = True
            for array in (kept.data, kept.indices, kept.indptr):
                array.flags.writeable = False
            object.__setattr__(self, "_kept_csr", kept)
        return self._kept_csr

    def kept_epilogue(self) -> Epilogue:
        """Return what `epilogue` does, but made once and kept: for single products."""
        if not hasattr(self, "_kept_epilogue"):
            object.__setattr__(self, "_kept_epilogue", self.epilogue())
        return self._kept_epilogue

    def __repr__(self) -> str:
        kind = "" if self.is_plain_relu else f", {self.activation}"
        return f"Layer({self.shape[0]} x {self.shape[1]}, {self.nnz} edges{kind})"


def _restored(
    indptr: Array, indices: Array, data: Array, bias: Array, shape: tuple[int, int], *rest: Any
) -> Layer:
    """Return the layer that was pickled."""
    data = np.broadcast_to(data, indices.shape)
    return Layer.from_csr(
        indptr, indices, data, shape, np.broadcast_to(bias, shape[1:]), *rest, copy=False
    )


def _frozen(array: Array) -> Array:
    """Return a read-only view, so that the owner of the memory keeps its own rights."""
    view = array.view()
    view.flags.writeable = False
    return view


def _real_vector(
    what: str, values: npt.ArrayLike, length: int, dtype: np.dtype[np.generic] | None = None
) -> Array:
    """Check `length` real, finite numbers; broadcast one number where all are equal."""
    array = np.asarray(values)
    computed = real_dtype(array.dtype, f"layer: {what}")
    if dtype is None:
        # One number for all weights is a float32, which every Python float would not be.
        dtype = computed if array.ndim else np.dtype(np.float32)
    if array.shape not in ((), (length,)):
        raise InputError(f"layer: {what} has shape {array.shape}; ({length},) or one number fits")
    if array.ndim and array.strides != (0,) and array.size:
        shared = common_value(array)
        array = array if shared is None else shared
    elif array.ndim:
        array = array[0] if array.size else np.zeros((), dtype)
    with np.errstate(over="ignore"):
        stored = array.astype(dtype, copy=False)
    if not np.isfinite(stored).all():
        place = int(np.argmin(np.isfinite(stored)))
        where = f" (entry {place})" if array.ndim else ""
        value, most = array.flat[place], np.finfo(np.float64).max
        if np.isfinite(value):
            raise InputError(
                f"layer: a {what}{where} is {value!s}, beyond the range of {dtype}"
                + ("; give all of them as an array of float64" if abs(value) <= most else "")
            )
        raise InputError(f"layer: a {what} is NaN or infinite{where}; all must be finite numbers")
    return _frozen(np.broadcast_to(stored, (length,)) if not stored.ndim else stored)
