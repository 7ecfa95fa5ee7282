"""Activation functions by their definitions, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import special


def exact(name: str, z: Any) -> Any:
    """Return the activation by its definition, in float64."""
    if name == "none":
        return z
    if name == "relu":
        return np.maximum(z, 0)
    if name == "gelu":
        return 0.5 * z * (1 + special.erf(z / np.sqrt(2)))
    if name == "gelu_tanh":
        return 0.5 * z * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)))
    if name == "silu":
        return z / (1 + np.exp(-z))
    if name == "hardswish":
        return z * np.minimum(np.maximum(z + 3, 0), 6) / 6
    if name == "sigmoid":
        return special.expit(z)
    return np.tanh(z)
