"""Operands of layers: how they fit each other, and what follows the sums."""

from __future__ import annotations

from dataclasses import replace

import numpy.typing as npt

from portable_spdnn.epilogue import Epilogue
from portable_spdnn.errors import InputError
from portable_spdnn.layer import Layer
from portable_spdnn.network import checked_y_max
from portable_spdnn.operations.operands import SparseOperand, checked_epilogue

# Of layers that say nothing else: to make one takes as long as a small product.
RELU = Epilogue(0.0, "relu")


def check_layer_operands(
    W: tuple[int, ...], Y: tuple[int, ...], sparse: bool, zeros_stay: bool, **dense_only: object
) -> None:
    """Raise InputError where features of shape Y, or what goes with dense ones, do not fit W."""
    if Y[1] != W[0]:
        turned = "; weights of shape (neurons_out, neurons_in) are to be transposed, by .T"
        raise InputError(
            f"layer: weights are {W[0]} x {W[1]} but features have {Y[1]} columns; they must have "
            f"{W[0]}{turned if Y[1] == W[1] else ''}"
        )
    if sparse and not zeros_stay:
        raise InputError(
            "layer: the epilogue turns zeros into nonzeros (a positive bias under ReLU, or "
            "activation(bias) other than 0); pass dense features"
        )
    for what, given in dense_only.items():
        if sparse and given is not None:
            raise InputError(f"layer: {what} goes with dense features; these are sparse")


def layer_epilogue(
    weights: Layer | SparseOperand,
    bias: npt.ArrayLike | None,
    y_max: float | None,
    epilogue: Epilogue | None,
) -> Epilogue:
    """Return what follows the sums of a layer, or raise InputError."""
    y_max = checked_y_max(y_max)
    if isinstance(bias, Epilogue):
        raise InputError("layer: bias is an Epilogue; give it as epilogue=...")
    if epilogue is not None and not (bias is None and y_max is None):
        raise InputError("layer: an epilogue has its own bias and bounds; leave out the others")
    if epilogue is not None:
        return checked_epilogue("layer", epilogue)
    if isinstance(weights, Layer):
        own = weights.kept_epilogue() if y_max is None else weights.epilogue(y_max)
        return own if bias is None else replace(own, bias=bias)
    if bias is None and y_max is None:
        return RELU
    return Epilogue(0.0 if bias is None else bias, "relu", upper=y_max)
