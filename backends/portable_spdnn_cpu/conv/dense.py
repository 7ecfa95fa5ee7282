"""Convolutions by BLAS, for weights with too few zeros: images become matrices, band by band.

Each column of such a matrix has what the kernels see of the image at one pixel of the result
("im2col"). Bands of rows bound its memory.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from portable_spdnn.arrays import Array
from portable_spdnn.epilogue import Epilogue
from portable_spdnn.operations.convolutions.geometry import ConvGeometry
from portable_spdnn.operations.convolutions.windows import seen_windows
from portable_spdnn.operations.handles import Prepared
from portable_spdnn_cpu.activations import activation_of
from portable_spdnn_cpu.conv.images import channels_first
from portable_spdnn_cpu.machine.thread_pool import ThreadPool
from portable_spdnn_cpu.spmm.dense import apply_epilogue, blas_threads

BAND_BYTES = 1 << 22  # of the matrix of a band, unless a single row takes more
MAX_PADDED = 4  # a padded image may be this many times as large as the image
LEAST_NONZERO = 0.5  # a part of prepared weights: below it BLAS is not tried
# Of a thread with AVX-512: multiply-adds in a second by BLAS, and of streamed weights; seconds to
# pack a weight, zero or not. It is their ratios that choose.
DENSE_RATE, STREAM_RATE, PACKING = 6e10, 3.5e10, 1.2e-8


class DenseConv:
    """A convolution by a dense product for each group and band of each image.

    Parameters
    ----------
    workers : ThreadPool
    weights : ndarray, shape (outputs, channels / groups, kernel height, kernel width), C order
    geometry : ConvGeometry
    epilogue : Epilogue
    streamed : callable
        Returns the streamed convolution, used for images with NaN or infinity: there zeros of the
        weights are not multiplied.
    """

    def __init__(
        self,
        workers: ThreadPool,
        weights: Array,
        geometry: ConvGeometry,
        epilogue: Epilogue,
        streamed: Callable[[], Prepared],
    ) -> None:
        self.workers, self.geometry, self.streamed = workers, geometry, streamed
        self.matrices = weights.reshape(geometry.matrix_shape).copy()
        self.bias, self.activation = epilogue.bias, activation_of(epilogue, weights.dtype)
        row = geometry.matrix_shape[2] * geometry.output_size[1] * weights.itemsize
        self.rows = max(1, min(geometry.output_size[0], BAND_BYTES // max(1, row)))

    def __call__(self, x: Array, out: Array | None, residual: Array | None) -> Array:
        """Return the convolution of x, shape (images, channels, height, width), finished."""
        geometry, dtype, x = self.geometry, self.matrices.dtype, channels_first(x, self.workers)
        with np.errstate(all="ignore"):
            finite = np.isfinite(x.sum())
        if not finite:
            return np.asarray(self.streamed()(x, out, residual))
        if out is None:
            out = np.empty(geometry.output_shape(len(x)), dtype)
        height, width = geometry.output_size
        groups, outputs, patch = geometry.matrix_shape
        results = out.reshape(len(x), groups, outputs, height * width)
        buffer = np.empty(patch * self.rows * width, dtype)
        with blas_threads(self.workers.threads):
            for image, result in zip(x, results, strict=True):
                seen = seen_windows(image[None], geometry)[0]
                for windows, matrix, sums in zip(seen, self.matrices, result, strict=True):
                    for first in range(0, height, self.rows):
                        band = windows[..., first : first + self.rows, :]
                        columns = buffer[: band.size]
                        columns.reshape(band.shape)[...] = band
                        to = sums[:, first * width : (first + self.rows) * width]
                        np.matmul(matrix, columns.reshape(patch, -1), out=to)
        for number, result in enumerate(results.reshape(len(x), groups * outputs, height * width)):
            added = None if residual is None else residual[number].reshape(result.shape)
            apply_epilogue(result, self.bias, added, self.activation)
        return out

    def describe(self) -> str:
        """Return how the convolution is computed."""
        return (
            f"Dense products by BLAS, zeros included, of what kernels see at {self.rows} "
            f"row{'s' if self.rows > 1 else ''} of the result at a time"
        )


def dense_is_faster(weights: Array, geometry: ConvGeometry, images: int, threads: int) -> bool:
    """Whether BLAS convolves so many images sooner than weights are packed and streamed."""
    pixels = images * geometry.output_size[0] * geometry.output_size[1]
    dense = weights.size * pixels / DENSE_RATE / threads
    streamed = PACKING * weights.size
    streamed += np.count_nonzero(weights) * pixels / STREAM_RATE / threads
    return bool(dense < streamed) and dense_is_exact(weights, geometry)


def dense_is_exact(weights: Array, geometry: ConvGeometry) -> bool:
    """Whether dense products are correct, and padded images hardly larger than images."""
    height, width = geometry.padded_size
    padding_is_small = height * width <= MAX_PADDED * geometry.height * geometry.width
    return padding_is_small and bool(np.isfinite(weights).all())
