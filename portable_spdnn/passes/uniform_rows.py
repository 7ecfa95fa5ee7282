"""Skip layers whose result is known: inputs whose features are all equal.

Where the weights into each neuron of a layer add up to the same sum s, and all biases are b,
features that all equal c become ``activation(s c + b)`` within the layer's bounds, all equal
again: one number stands for the input. When it does not change, its value after any further
layer with the same s, b, activation and bounds is known, and those layers are skipped. A
saturated input of the challenge is such a fixed point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from portable_spdnn.arrays import Array
from portable_spdnn.epilogue import Epilogue
from portable_spdnn.layer import Layer


@dataclass(frozen=True)
class Signature:
    """A layer that takes equal features to equal features: one number to one number.

    Attributes
    ----------
    total, bias : float
        Sum of the weights into each neuron, and the bias of each.
    activation : str
    lower, upper : float or None
    """

    total: float
    bias: float
    activation: str
    lower: float | None
    upper: float | None

    def apply(self, values: Array) -> Array:
        """Return what features that all equal `values` become, in their type."""
        total, bias = values.dtype.type(self.total), values.dtype.type(self.bias)
        finish = Epilogue(None, self.activation, self.lower, self.upper)
        with np.errstate(over="ignore", invalid="ignore"):  # NaN shows in the scores
            return finish.activated(total * values + bias)


def signature(layer: Layer, y_max: float | None) -> Signature | None:
    """Return the signature of a layer whose neurons agree in sum and bias, else None.

    Sums are compared in float64, and exactly: weights whose sums differ by rounding disagree.
    """
    if not layer.shape[1]:
        return None
    sums = np.bincount(
        layer.indices, weights=np.asarray(layer.data, np.float64), minlength=layer.shape[1]
    )
    if (sums == sums[0]).all() and (layer.bias == layer.bias[0]).all():
        own = layer.epilogue(y_max)
        bias = float(layer.bias[0])
        return Signature(float(sums[0]), bias, own.activation, own.lower, own.upper)
    return None


def uniform_rows(rows: Any) -> Array:
    """Return for each row of features, ndarray or csr_array, whether all its entries are equal.

    Rows without an entry have no value, and are not uniform.
    """
    if not rows.shape[1]:
        return np.zeros(rows.shape[0], np.bool_)
    if isinstance(rows, np.ndarray):
        return np.asarray((rows == rows[:, :1]).all(axis=1))
    lengths = np.diff(rows.indptr)
    full = lengths == rows.shape[1]
    if rows.nnz:
        model = np.repeat(rows.data[np.where(full, rows.indptr[:-1], 0)], lengths)
        differing = np.repeat(np.arange(rows.shape[0]), lengths)[rows.data != model]
        full[differing] = False
    return np.asarray(full)


def advance(values: Array, layers: Sequence[Signature]) -> tuple[Array, Array, int]:
    """Take uniform inputs through uniform layers.

    Parameters
    ----------
    values : ndarray of the plan's type, shape (inputs,)
        What all features of each input equal.
    layers : sequence of Signature

    Returns
    -------
    values : ndarray, shape (inputs,)
        After the last layer.
    nonzero : ndarray of bool, shape (layers, inputs)
        Which inputs were active after each layer.
    skipped : int
        Layers that were skipped because nothing could change any more.
    """
    nonzero = np.zeros((len(layers), values.size), np.bool_)
    skipped = 0
    fixed: Signature | None = None
    for number, layer in enumerate(layers):
        if fixed == layer:
            skipped += 1
        else:
            after = layer.apply(values)
            fixed = layer if np.array_equal(after, values) else None
            values = after
        nonzero[number] = values != 0
    return values, nonzero, skipped
