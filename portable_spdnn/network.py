"""Network: a chain of layers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from portable_spdnn.arguments import shown
from portable_spdnn.arrays import Immutable
from portable_spdnn.errors import InputError
from portable_spdnn.layer import Layer
from portable_spdnn.sparse_arrays import index_dtype


@dataclass(frozen=True)
class LayerStatistics:
    """What is known of a layer before it is read.

    Attributes
    ----------
    shape : tuple of int
        (neurons_in, neurons_out)
    nnz : int
        Its weights.
    value_bytes : int
        Bytes that a weight takes; 0 where all are equal.
    zeros_stay : bool
        Whether a row of zeros stays one; see `Layer.zeros_stay`.
    """

    shape: tuple[int, int]
    nnz: int
    value_bytes: int
    zeros_stay: bool

    @property
    def bytes(self) -> int:
        """Memory of the layer in CSR."""
        index = index_dtype(self.shape[1]).itemsize
        return (index + self.value_bytes) * self.nnz + 8 * (self.shape[0] + 1)

    @classmethod
    def of(cls, layer: Layer) -> LayerStatistics:
        """Return the statistics of a layer at hand."""
        width = 0 if layer.constant is not None else layer.data.itemsize
        return cls(layer.shape, layer.nnz, width, layer.zeros_stay)


class Network(Immutable):
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

    Examples
    --------
    >>> import numpy as np, portable_spdnn as ps
    >>> network = ps.Network([ps.Layer(np.eye(4), -0.5), ps.Layer(np.ones((4, 2)))], y_max=32)
    >>> network
    Network(4 neurons, 2 layers, 12 edges, y_max=32.0)
    >>> network.sparse_features_exact
    True
    """

    __slots__ = ("layers", "y_max")

    layers: Sequence[Layer]
    y_max: float | None

    def __init__(self, layers: Iterable[Layer], y_max: float | None = None) -> None:
        if not isinstance(layers, Iterable):
            raise InputError(f"layers is a {type(layers).__name__}; expected a list of Layer")
        self.layers = tuple(layers)
        for number, layer in enumerate(self.layers, start=1):
            if not isinstance(layer, Layer):
                raise InputError(
                    f"layer {number} is a {type(layer).__name__}, not a Layer: make it one by "
                    "Layer(weights, bias, activation)"
                )
        self._set(y_max)

    def _set(self, y_max: float | None) -> None:
        """Check that the layers make a chain, and take the bound."""
        known = self._known()
        if not known:
            raise InputError("a network needs at least one layer")
        check_chain([layer.shape for layer in known])
        self.y_max = checked_y_max(y_max)

    def _known(self) -> Sequence[Layer | LayerStatistics]:
        """Return what is known of the layers without reading them, where they are not at hand."""
        return self.layers

    @property
    def neurons(self) -> int:
        """Number of input neurons."""
        return self._known()[0].shape[0]

    @property
    def neurons_out(self) -> int:
        """Number of neurons of the last layer."""
        return self._known()[-1].shape[1]

    @property
    def widest(self) -> int:
        """Largest number of neurons on either side of any layer."""
        return max(max(layer.shape) for layer in self._known())

    @property
    def edges(self) -> int:
        """Number of weights of all layers together."""
        return sum(layer.nnz for layer in self._known())

    @property
    def layers_filling_zeros(self) -> tuple[int, ...]:
        """Layers that turn a row of zeros into nonzeros, counted from 0; see `Layer.zeros_stay`."""
        return tuple(n for n, layer in enumerate(self._known()) if not layer.zeros_stay)

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


def check_weights_fit(layers: Iterable[Layer], dtype: npt.DTypeLike, first: int = 1) -> None:
    """Raise InputError where a weight or bias of float64 is infinite in the type of a plan.

    Parameters
    ----------
    layers : iterable of Layer
    dtype : numpy dtype
        That of the plan.
    first : int
        Number of the first of these layers, for messages.
    """
    largest, size = float(np.finfo(np.dtype(dtype)).max), np.dtype(dtype).itemsize
    for number, layer in enumerate(layers, start=first):
        for what, values in (("weight", layer.data), ("bias", layer.bias)):
            extreme = values[:1] if values.strides == (0,) else values
            if values.dtype.itemsize > size and extreme.size:
                found = max(float(extreme.max()), -float(extreme.min()))
                if found > largest:
                    raise InputError(
                        f"layer {number}: a {what} of magnitude {found:.4g} does not fit in "
                        f"{np.dtype(dtype)}; use dtype=float64, or scale the network"
                    )


def check_chain(shapes: Iterable[tuple[int, int]]) -> None:
    """Raise InputError where the outputs of a layer are not as many as the next one's inputs."""
    for number, ((_, outputs), (inputs, _)) in enumerate(pairwise(shapes), start=1):
        if outputs != inputs:
            raise InputError(
                f"layer {number} gives {outputs} outputs but layer {number + 1} takes "
                f"{inputs} inputs"
            )


def checked_y_max(y_max: Any) -> float | None:
    """Return an upper bound of features, None for none; raise InputError where it is no bound."""
    if y_max is None:
        return None
    try:
        bound = float(y_max)
    except (TypeError, ValueError, OverflowError):
        bound = np.nan
    if isinstance(y_max, str | bytes | bool) or not bound > 0:
        raise InputError(
            f"y_max is {shown(y_max)}; it must be a positive number, or None for no bound"
        )
    return None if bound == np.inf else bound
