"""Random networks for property tests, and a loop over float64 with a bound on rounding errors."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from hypothesis import strategies as st

import portable_spdnn as ps
from portable_spdnn.epilogue import ACTIVATIONS
from portable_spdnn.testing import oracle

Array = npt.NDArray[Any]
# Of all activations the steepest is hardswish: (2 z + 3) / 6 at z = 3.
STEEPEST = 1.5
# Units in the last place that an activation may be off, of its argument's magnitude or its own.
ACTIVATION_ULPS = 16


@dataclass(frozen=True)
class Case:
    """A network, its inputs, and how they are to be run."""

    network: ps.Network
    features: Array
    form: str
    options: dict[str, Any]
    threads: int

    def given(self) -> Any:
        """Return the features as they are handed over."""
        forms = {
            "C": np.ascontiguousarray,
            "Fortran": np.asfortranarray,
            "float64": lambda Y: Y.astype(np.float64),
            "csr": sp.csr_array,
            "coo": sp.coo_array,
        }
        return forms[self.form](self.features)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw a case; numbers are seeded, so that an example shrinks by its sizes."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    widths = draw(st.lists(st.integers(1, 20), min_size=2, max_size=5))
    sign = draw(st.sampled_from((-1.0, 0.0, 1.0)))
    layers = []
    for rows, columns in pairwise(widths):
        density = draw(st.sampled_from((0.0, 0.2, 0.6, 1.0)))
        weights = rng.normal(size=(rows, columns)) * (rng.random((rows, columns)) < density)
        if draw(st.booleans()):  # one number for all, as in the challenge
            weights = np.sign(weights) ** 2 / 16
        dtype = draw(st.sampled_from((np.float32, np.float64)))
        bias: Any = sign * rng.random(columns)
        if draw(st.booleans()):
            bias = -0.25
        layers.append(
            ps.Layer(
                weights.astype(dtype),
                bias,
                draw(st.sampled_from(("relu", *ACTIVATIONS))),
                draw(st.sampled_from((None, None, -0.5, 0.0))),
                draw(st.sampled_from((None, None, 0.5, 6.0))),
            )
        )
    network = ps.Network(layers, draw(st.sampled_from((None, 1.0, 32.0))))
    inputs = draw(st.integers(0, 40))
    features = rng.random((inputs, widths[0])) * (rng.random((inputs, 1)) < 0.7)
    features *= rng.random(features.shape) < draw(st.sampled_from((0.1, 0.5, 1.0)))
    options: dict[str, Any] = {
        "dtype": draw(st.sampled_from(("float32", "float64"))),
        "path": draw(st.sampled_from(("auto", "auto", "spmm", "spgemm"))),
        "batch_size": draw(st.sampled_from((None, 1, 7))),
        "keep_dead_inputs": draw(st.booleans()),
        "exact_passes": draw(st.sampled_from(("none", "all", "merge-neurons", "fixed-point"))),
    }
    form = draw(st.sampled_from(("C", "Fortran", "float64", "csr", "coo")))
    return Case(network, features.astype(np.float32), form, options, draw(st.integers(1, 3)))


def scores_and_bound(case: Case) -> tuple[Array, Array]:
    """Return the scores in float64, and how far those in the case's type may be off.

    Running error analysis (Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition,
    section 3.3): a sum of n products has an error of at most (n + 2) u times the sum of their
    magnitudes; errors of features go through the weights' magnitudes, and through an activation
    with at most its steepest slope.
    """
    unit = float(np.finfo(case.options["dtype"]).eps) / 2
    Y = case.features.astype(np.float64)
    error = unit * np.abs(Y)
    for layer in case.network:
        W = layer.csr(np.float64).toarray()
        magnitude = (np.abs(Y) + error) @ np.abs(W) + np.abs(layer.bias)
        z = Y @ W + layer.bias
        off = error @ np.abs(W) + (layer.shape[0] + 5) * unit * magnitude
        upper = [bound for bound in (layer.upper,) if bound is not None]
        if layer.activation == "relu" and case.network.y_max is not None:
            upper.append(case.network.y_max)
        finish = (layer.activation, layer.lower, min(upper, default=None))
        Y = oracle.finish(z, np.zeros(1), *finish)
        error = STEEPEST * off + ACTIVATION_ULPS * unit * (np.abs(z) + np.abs(Y))
        error[(off == 0) & (z == 0) & (Y == 0)] = 0
    return Y, error
