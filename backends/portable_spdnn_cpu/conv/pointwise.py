"""Convolutions by kernels of 1 x 1, without padding and strides: products of matrices.

With W the weights, outputs x channels, and X an image, channels x pixels, the result is W X, an
spmm: it has kernels of its own, and dense ones for weights that are hardly pruned.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from portable_spdnn.arrays import Array
from portable_spdnn.epilogue import Epilogue
from portable_spdnn.operations.convolutions.geometry import ConvGeometry
from portable_spdnn_cpu.conv.images import channels_first
from portable_spdnn_cpu.machine.thread_pool import ThreadPool
from portable_spdnn_cpu.spmm.handle import WeightsProduct


def is_product(geometry: ConvGeometry) -> bool:
    """Whether a convolution is a product of matrices for each image."""
    bare = geometry.stride == (1, 1) and geometry.padding == ((0, 0), (0, 0))
    return bare and geometry.kernel == (1, 1) and geometry.groups == 1


class PointwiseProduct:
    """A convolution by an spmm for each image, of pixels in place of columns.

    Parameters
    ----------
    workers : ThreadPool
    weights : ndarray, shape (outputs, channels, 1, 1)
    geometry : ConvGeometry
    epilogue : Epilogue
    tried : bool
        Whether kernels are tried now; else a model chooses at the first call.
    """

    def __init__(
        self,
        workers: ThreadPool,
        weights: Array,
        geometry: ConvGeometry,
        epilogue: Epilogue,
        tried: bool,
    ) -> None:
        self.geometry, self.dtype = geometry, weights.dtype
        self.pixels = geometry.height * geometry.width
        matrix = sp.csr_array(weights.reshape(geometry.outputs, geometry.channels))
        columns = self.pixels if tried else None
        self.product = WeightsProduct(workers, matrix, epilogue, columns)

    def __call__(self, x: Array, out: Array | None, residual: Array | None) -> Array:
        """Return the convolution of x, shape (images, channels, height, width), finished."""
        if out is None:
            out = np.empty(self.geometry.output_shape(len(x)), self.dtype)
        images = self._matrices(x)
        results = out.reshape(len(x), self.geometry.outputs, self.pixels)
        added: Any = [None] * len(x) if residual is None else self._matrices(residual)
        for image, result, more in zip(images, results, added, strict=True):
            self.product.multiply(image, result, more, out.nbytes)
        return out

    def _matrices(self, images: Array) -> Array:
        """Return each image as a matrix of channels by pixels.

        They are copied unless each of them is in C order and aligned; images may lie apart.
        """
        if not (images.flags.aligned and images[:1].flags.c_contiguous):
            images = channels_first(images, self.product.workers)
        return images.reshape(*images.shape[:2], self.pixels)

    def describe(self) -> str:
        """Return how the product is computed."""
        return (
            f"A product of matrices for each image, of pixels as columns. {self.product.describe()}"
        )
