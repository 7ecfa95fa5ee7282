"""Layer and Network: validated, immutable sparse weights in host memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from portable_spdnn.epilogue import ACTIVATIONS, Epilogue, checked_bound
from portable_spdnn.errors import InputError

Array = npt.NDArray[Any]


def index_dtype(extent: int) -> np.dtype[Any]:
    """Return the narrowest of uint16, int32 and int64 that holds 0 .. `extent` - 1."""
    if extent <= 1 << 16:
        return np.dtype(np.uint16)
    return np.dtype(np.int32 if extent <= 1 << 31 else np.int64)


def common_value(array: Array) -> Any:
    """Return the value that all entries of a vector have, None where they differ or are none."""
    return array[0] if array.size and (array == array[0]).all() else None


class Layer:
    """One layer, ``Y' = min(max(activation(Y W + bias), lower), upper)``, with W in CSR.

    By default it is a layer of the Graph Challenge: ReLU, bounded above by the network's
    ``y_max``. `portable_spdnn.epilogue` has the activations.

    W has one row per input neuron and one column per output neuron, so that features are
    multiplied from the left. Rows are sorted by column and free of duplicates. The arrays are
    read-only; they may be memory-mapped.

    Parameters
    ----------
    weights : sparse matrix or array, or 2-D array_like; shape (neurons_in, neurons_out)
        Duplicated entries are summed. float32 and float64 keep their type, other real types
        become float32.
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
    >>> linear = ps.Layer([[1.0], [1.0]], activation="none")
    >>> ps.Network([hidden, linear]).edges
    4
    """

    __slots__ = ("activation", "bias", "data", "indices", "indptr", "lower", "shape", "upper")

    indptr: Array
    indices: Array
    data: Array
    bias: Array
    shape: tuple[int, int]
    activation: str
    lower: float | None
    upper: float | None

    def __init__(
        self,
        weights: Any,
        bias: npt.ArrayLike = 0.0,
        activation: str = "relu",
        lower: float | None = None,
        upper: float | None = None,
    ) -> None:
        if not sp.issparse(weights):
            weights = np.asarray(weights)
        if weights.ndim != 2:
            raise InputError(
                f"layer weights have {weights.ndim} dimension(s); "
                "expected 2 (neurons_in x neurons_out)"
            )
        csr = sp.csr_array(weights, copy=True)
        csr.sum_duplicates()
        self._set(csr.indptr, csr.indices, csr.data, csr.shape, bias)
        self._set_epilogue(activation, lower, upper)

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
    ) -> Layer:
        """Build a layer from CSR arrays without copying those that already fit.

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

        Returns
        -------
        Layer

        Raises
        ------
        InputError
            If the arrays do not form a CSR matrix of this shape with sorted, unique columns,
            or for any reason that the constructor names.
        """
        layer = cls.__new__(cls)
        layer._set(indptr, indices, data, shape, bias)
        layer._set_epilogue(activation, lower, upper)
        return layer

    def _set(
        self,
        indptr: Array,
        indices: Array,
        data: Array | float,
        shape: tuple[int, int],
        bias: npt.ArrayLike,
    ) -> None:
        rows, columns = (int(extent) for extent in shape)
        indptr = np.ascontiguousarray(indptr, dtype=np.int64)
        if indptr.shape != (rows + 1,) or indptr[0] != 0 or np.any(np.diff(indptr) < 0):
            raise InputError(
                f"layer: row offsets do not describe {rows} rows "
                f"({indptr.size} offsets; {rows + 1} non-decreasing ones from 0 expected)"
            )
        nnz = int(indptr[-1])
        indices = np.asarray(indices)
        if indices.shape != (nnz,) or indices.dtype.kind not in "iu":
            raise InputError(
                f"layer: {indices.size} column indices of type {indices.dtype}; "
                f"the row offsets call for {nnz} integers"
            )
        if nnz and (int(indices.max()) >= columns or int(indices.min()) < 0):
            raise InputError(
                f"layer: column index {_first_outside(indices, columns)} is outside "
                f"0 .. {columns - 1}"
            )
        indices = np.ascontiguousarray(indices, dtype=index_dtype(columns))
        if nnz > 1:
            rising = indices[1:] > indices[:-1]
            starts = indptr[1:-1]
            rising[starts[(starts > 0) & (starts < nnz)] - 1] = True
            if not rising.all():
                row = int(np.searchsorted(indptr, int(np.argmin(rising)) + 1, "right")) - 1
                raise InputError(f"layer: columns of row {row} are unsorted or duplicated")
        self.shape = (rows, columns)
        self.indptr = _frozen(indptr)
        self.indices = _frozen(indices)
        self.data = _real_vector("weight", data, nnz)
        self.bias = _real_vector("bias", bias, columns, np.dtype(np.float64))

    def _set_epilogue(self, activation: str, lower: float | None, upper: float | None) -> None:
        if activation not in ACTIVATIONS:
            raise InputError(
                f"layer: activation is {activation!r}; choose one of {', '.join(ACTIVATIONS)}"
            )
        self.activation = activation
        self.lower, self.upper = checked_bound("lower", lower), checked_bound("upper", upper)
        Epilogue(None, activation, lower, upper)  # raises where the bounds contradict each other

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
        return _common_difference(self.indptr)

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

    def csr(self, dtype: npt.DTypeLike | None = None) -> Any:
        """Return W as a new `scipy.sparse.csr_array` of `dtype` (default: as stored)."""
        wide = np.int32 if max(self.nnz, *self.shape) < 1 << 31 else np.int64
        return sp.csr_array(
            (
                np.array(self.data, dtype=dtype),
                self.indices.astype(wide),
                self.indptr.astype(wide),
            ),
            shape=self.shape,
        )

    def __repr__(self) -> str:
        kind = "" if self.is_plain_relu else f", {self.activation}"
        return f"Layer({self.shape[0]} x {self.shape[1]}, {self.nnz} edges{kind})"


class Network:
    """A chain of layers, and the upper bound that its ReLU layers share.

    Parameters
    ----------
    layers : iterable of Layer
        At least one; the outputs of each are the inputs of the next.
    y_max : float, optional
        Upper bound of every feature after a ReLU layer (32 in the Graph Challenge). None: no
        bound. Other layers have bounds of their own.

    Raises
    ------
    InputError
        If there is no layer, if two neighbours do not fit, or if `y_max` is not positive.
    """

    __slots__ = ("layers", "y_max")

    layers: Sequence[Layer]
    y_max: float | None

    def __init__(self, layers: Iterable[Layer], y_max: float | None = None) -> None:
        self.layers = tuple(layers)
        if not self.layers:
            raise InputError("a network needs at least one layer")
        for number, layer in enumerate(self.layers, start=1):
            if not isinstance(layer, Layer):
                raise InputError(f"layer {number} is a {type(layer).__name__}, not a Layer")
        for number, (first, second) in enumerate(
            zip(self.layers, self.layers[1:], strict=False), start=1
        ):
            if first.shape[1] != second.shape[0]:
                raise InputError(
                    f"layer {number} gives {first.shape[1]} outputs "
                    f"but layer {number + 1} takes {second.shape[0]} inputs"
                )
        self.y_max = checked_y_max(y_max)

    @property
    def neurons(self) -> int:
        """Number of input neurons."""
        return self.layers[0].shape[0]

    @property
    def neurons_out(self) -> int:
        """Number of neurons of the last layer."""
        return self.layers[-1].shape[1]

    @property
    def widest(self) -> int:
        """Largest number of neurons on either side of any layer."""
        return max(max(layer.shape) for layer in self.layers)

    @property
    def edges(self) -> int:
        """Number of weights of all layers together."""
        return sum(layer.nnz for layer in self.layers)

    @property
    def layers_filling_zeros(self) -> tuple[int, ...]:
        """Layers that turn a row of zeros into nonzeros, counted from 0; see `Layer.zeros_stay`."""
        return tuple(n for n, layer in enumerate(self.layers) if not layer.zeros_stay)

    @property
    def sparse_features_exact(self) -> bool:
        """Whether sparse features give the exact answer: in every layer zeros stay zeros."""
        return not self.layers_filling_zeros

    def fingerprint(self) -> str:
        """Return a hash of all weights, epilogues and `y_max`: equal for equal networks."""
        digest = hashlib.sha256(repr(self.y_max).encode())
        for layer in self.layers:
            digest.update(repr((layer.shape, layer.constant, layer.data.dtype)).encode())
            values = layer.data if layer.constant is None else layer.data[:0]
            for array in (layer.indptr, layer.indices, values, layer.bias):
                digest.update(np.ascontiguousarray(array).data)
            if not layer.is_plain_relu:
                digest.update(repr((layer.activation, layer.lower, layer.upper)).encode())
        return digest.hexdigest()

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.layers)

    def __repr__(self) -> str:
        return (
            f"Network({self.neurons} neurons, {len(self)} layers, {self.edges} edges, "
            f"y_max={self.y_max})"
        )


def checked_y_max(y_max: float | None) -> float | None:
    """Return an upper bound of features, None for none; raise InputError where it is no bound."""
    if y_max is not None and not y_max > 0:
        raise InputError(f"y_max is {y_max}; it must be positive, or None for no bound")
    return None if y_max is None or y_max == np.inf else float(y_max)


def _frozen(array: Array) -> Array:
    """Return a read-only view, so that the owner of the memory keeps its own rights."""
    view = array.view()
    view.flags.writeable = False
    return view


def _first_outside(indices: Array, columns: int) -> int:
    outside = (indices < 0) | (indices >= columns)
    return int(indices[np.argmax(outside)])


def _common_difference(offsets: Array) -> int | None:
    """Return the difference between neighbours where all are equal, else None."""
    step = common_value(np.diff(offsets))
    return None if step is None else int(step)


def _real_vector(
    what: str, values: npt.ArrayLike, length: int, dtype: np.dtype[Any] | None = None
) -> Array:
    """Check `length` real, finite numbers; broadcast one number where all are equal."""
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise InputError(f"layer: {what} has type {array.dtype}; real numbers are expected")
    if dtype is None:
        keeps = array.dtype in (np.float32, np.float64) and array.ndim
        dtype = array.dtype if keeps else np.dtype(np.float32)
    if array.shape not in ((), (length,)):
        raise InputError(f"layer: {what} has shape {array.shape}; ({length},) or one number fits")
    if array.ndim and array.strides != (0,) and array.size:
        shared = common_value(array)
        array = array if shared is None else shared
    elif array.ndim:
        array = array[0] if array.size else np.zeros((), dtype)
    array = array.astype(dtype, copy=False)
    if not np.isfinite(array).all():
        where = f" (entry {int(np.argmin(np.isfinite(array)))})" if array.ndim else ""
        raise InputError(f"layer: a {what} is NaN or infinite{where}; all must be finite numbers")
    return _frozen(np.broadcast_to(array, (length,)) if not array.ndim else array)
