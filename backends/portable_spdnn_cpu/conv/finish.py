"""What follows the sums of a convolution, in the form of kernels."""

from __future__ import annotations

import numpy as np

from portable_spdnn.epilogue import Epilogue
from portable_spdnn_cpu.activations import RELU, Activation, activation_of
from portable_spdnn_cpu.jit.compilation import read_only


class Finish:
    """What follows the sums of a convolution, in the form of kernels.

    Attributes
    ----------
    activation : Activation
    bias : ndarray, shape (outputs,)
    bounds : ndarray, shape (2,)
        Lower and upper bound where these express the activation, else infinite.
    """

    def __init__(self, epilogue: Epilogue, outputs: int, dtype: np.dtype[np.generic]) -> None:
        self.activation: Activation = activation_of(epilogue)
        bias = np.zeros(outputs, dtype) if epilogue.bias is None else epilogue.bias
        self.bias = read_only(bias)
        simple = self.activation.code <= RELU
        found = self.activation[1:] if simple else (-np.inf, np.inf)
        self.bounds = read_only(np.array(found, dtype))
