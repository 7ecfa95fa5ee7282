"""Convolutions by kernels of 1 x 1, without padding and strides: products of matrices.

With W the weights, outputs x channels, and X an image, channels x pixels, the result is W X. So it
is an spmm, or, where hardly a weight is 0, a product of dense matrices by the BLAS of NumPy.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from portable_spdnn.arrays import Array
from portable_spdnn.epilogue import Epilogue
from portable_spdnn.operations.convolutions.geometry import ConvGeometry
from portable_spdnn_cpu.machine.thread_pool import ThreadPool
from portable_spdnn_cpu.spmm.handle import DenseLayer

DENSE_FROM = 0.5  # of the weights; BLAS is as fast as a sparse kernel from about here on


def is_product(geometry: ConvGeometry) -> bool:
    """Whether a convolution is a product of matrices for each image."""
    bare = geometry.stride == (1, 1) and geometry.padding == ((0, 0), (0, 0))
    return bare and geometry.kernel == (1, 1) and geometry.groups == 1


class PointwiseProduct:
    """A convolution by an spmm for each image, of pixels in place of columns."""

    def __init__(
        self, workers: ThreadPool, weights: Array, geometry: ConvGeometry, epilogue: Epilogue
    ) -> None:
        self.geometry, self.pixels = geometry, geometry.height * geometry.width
        matrix = sp.csr_array(weights.reshape(geometry.outputs, geometry.channels))
        self.product = DenseLayer(workers, matrix, epilogue, prepare=True, columns=self.pixels)

    def __call__(self, x: Array, out: Array | None, residual: Array | None) -> Array:
        """Return the convolution of x, shape (images, channels, height, width), finished."""
        shape = self.geometry.output_shape(x.shape[0])
        if out is None:
            out = np.empty(shape, self.product.dtype)
        images = np.ascontiguousarray(x).reshape(len(x), self.geometry.channels, self.pixels)
        results = out.reshape(len(x), self.geometry.outputs, self.pixels)
        added = [None] * len(x) if residual is None else residual.reshape(results.shape)
        for image, result, more in zip(images, results, added, strict=True):
            self.product.multiply(image, result, more)
        return out

    def describe(self) -> str:
        """Return how the product is computed."""
        return f"A product of matrices for each image. {self.product.describe_product()}"


class DenseProduct:
    """A convolution by a product of dense matrices for each image.

    BLAS multiplies zeros too. Where that would show, because an image holds NaN or infinity,
    `exact` computes the convolution.
    """

    def __init__(
        self, weights: Array, geometry: ConvGeometry, epilogue: Epilogue, exact: PointwiseProduct
    ) -> None:
        self.weights = weights.reshape(geometry.outputs, geometry.channels)
        self.geometry, self.epilogue, self.exact = geometry, epilogue, exact
        self.has_zeros = bool((weights == 0).any())

    def __call__(self, x: Array, out: Array | None, residual: Array | None) -> Array:
        """Return the convolution of x, shape (images, channels, height, width), finished."""
        if self.has_zeros and not np.isfinite(x).all():
            return self.exact(x, out, residual)
        if out is None:
            out = np.empty(self.geometry.output_shape(x.shape[0]), self.weights.dtype)
        images = x.reshape(len(x), self.geometry.channels, -1)
        results = out.reshape(len(x), self.geometry.outputs, -1)
        added = [None] * len(x) if residual is None else residual.reshape(results.shape)
        for image, result, more in zip(images, results, added, strict=True):
            np.matmul(self.weights, image, out=result)
            if more is not None or not self.epilogue.is_identity:
                result[...] = self.epilogue.apply(result, more, per_row=True)
        return out

    def describe(self) -> str:
        """Return how the product is computed."""
        return "A product of dense matrices by the BLAS of NumPy for each image"
