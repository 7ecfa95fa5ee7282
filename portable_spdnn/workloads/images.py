"""Binary features from grey images: bundled digits, MNIST files, Fourier resizing.

The inputs of the Graph Challenge are images enlarged to sqrt(N) x sqrt(N) pixels, one for each
of N neurons, and set to 0 or 1 by a threshold (Kepner et al., "Sparse Deep Neural Network Graph
Challenge", IEEE HPEC 2019). How they were enlarged is not published; what is done here gives
the official images of 1,024 neurons but for 5 pixels in 10,000.
"""

from __future__ import annotations

import math
import os
from importlib import resources

import numpy as np

from portable_spdnn.arrays import Array
from portable_spdnn.errors import InputError
from portable_spdnn.features import PackedFeatures
from portable_spdnn.io.idx import read_idx

MNIST_THRESHOLD = 184.6
"""Pixels brighter than this, of 255, become 1."""

DIGITS_THRESHOLD = MNIST_THRESHOLD / 255 * 16
"""The same fraction of full scale for the bundled digits, whose brightest pixels are 16."""

_DIGITS = "optdigits-8x8-images-idx3-ubyte.gz"


def digits() -> Array:
    """Return the bundled handwritten digits.

    They are the test part of "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak,
    UCI Machine Learning Repository, 1998, doi:10.24432/C50P49, CC BY 4.0).

    Returns
    -------
    ndarray of uint8, shape (1797, 8, 8)
        0 (paper) to 16 (ink).
    """
    with resources.as_file(resources.files("portable_spdnn") / "data" / _DIGITS) as path:
        return read_idx(path)


def digits_features(neurons: int, rows: slice = slice(None)) -> PackedFeatures:
    """Return the bundled digits as binary features.

    Their threshold is the MNIST one as a fraction of full scale. About 20 % of the features
    are 1, against 10 % for MNIST: these digits fill their 8 x 8 pixels, where those of MNIST
    leave a margin of 4 pixels around 20 x 20.

    Parameters
    ----------
    neurons : int
        A square: 1024, 4096, 16384, 65536, ...
    rows : slice
        Which of them; default all.

    Returns
    -------
    PackedFeatures, shape (1797, neurons)

    Raises
    ------
    InputError
        If `neurons` is not a square.

    Examples
    --------
    >>> import portable_spdnn as ps
    >>> ps.digits_features(1024).shape
    (1797, 1024)
    """
    return binary_features(digits()[rows], neurons, threshold=DIGITS_THRESHOLD)


def load_idx_features(
    path: str | os.PathLike[str], neurons: int, rows: slice = slice(None)
) -> PackedFeatures:
    """Read a file of images in IDX format as binary features.

    Parameters
    ----------
    path : path-like
        Pixels of 0 to 255, as in MNIST; gzipped or not.
    neurons : int
        A square: 1024, 4096, 16384, 65536, ...
    rows : slice
        Which of the images, numbered from 0; those after them are not read. Default all.

    Returns
    -------
    PackedFeatures, shape (images, neurons)

    Raises
    ------
    InputError
        As for `read_idx` and `binary_features`.
    """
    _side(neurons)
    return binary_features(read_idx(path, rows.stop or None)[rows], neurons)


def binary_features(
    images: Array, neurons: int, *, threshold: float = MNIST_THRESHOLD
) -> PackedFeatures:
    """Resize images to one pixel for each neuron and compare them with a threshold.

    ``Y[k, c * side + r] = 1`` where pixel (r, c) of image k, resized by `interpolation` to
    side x side, exceeds `threshold`, else 0, with ``side = sqrt(neurons)``: images are stored
    by columns, as in the official files.

    Parameters
    ----------
    images : ndarray of real numbers, shape (images, rows, columns)
    neurons : int
        A square: 1024, 4096, 16384, 65536, ...
    threshold : float
        In the units of the pixels.

    Returns
    -------
    PackedFeatures, shape (images, neurons)
        Besides it, the work takes some 20 MB, however many images there are.

    Raises
    ------
    InputError
        If `neurons` is not a square, or the images are not as stated, finite and non-empty.
    """
    side = _side(neurons)
    if images.ndim != 3 or 0 in images.shape[1:] or images.dtype.kind not in "buif":
        raise InputError(
            f"images are {images.dtype} of shape {images.shape}; real numbers of shape "
            "(images, rows, columns), with at least one pixel, are expected"
        )
    bits = np.empty((len(images), -(-neurons // 8)), np.uint8)
    # At most 2^19 pixels (4 MB of float64) at a time, before or after resizing: they stay in cache.
    step = max(1, (1 << 19) // max(neurons, images.shape[1] * images.shape[2]))
    across, down = interpolation(images.shape[2], side), interpolation(images.shape[1], side)
    for start in range(0, len(images), step):
        chunk = images[start : start + step].astype(np.float64)
        finite = np.isfinite(chunk).all(axis=(1, 2))
        if not finite.all():
            image = start + int(np.argmin(finite))
            raise InputError(f"image {image} (counted from 0) holds a NaN or infinite pixel")
        by_columns = across @ chunk.transpose(0, 2, 1) @ down.T
        ones = (by_columns > threshold).reshape(len(chunk), neurons)
        bits[start : start + step] = np.packbits(ones, axis=1)
    return PackedFeatures(bits, neurons)


def interpolation(pixels: int, side: int) -> Array:
    """Return the matrix that resizes one axis of images by trigonometric interpolation.

    The discrete spectrum of n pixels is padded with zeros, or cropped, to `side` terms; output
    pixel q is the value at ``q * n / side``, so that pixel 0 stays where it is. The Nyquist term
    of an even number of pixels is shared by both its frequencies when the spectrum grows and the
    two are joined when it shrinks, which keeps the values real. Images count as periodic, so that
    sharp edges ring: values may leave the range of the input.

    Resampling is linear: the matrix of its results for unit vectors resizes any number of images
    in two matrix products, several times faster than transforms of each.

    Returns
    -------
    ndarray of float64, shape (side, pixels)
    """
    if pixels == side:
        return np.eye(side)
    spectrum = np.fft.rfft(np.eye(pixels), axis=0)
    resized = np.zeros((side // 2 + 1, pixels), complex)
    kept = min(pixels, side)
    resized[: kept // 2 + 1] = spectrum[: kept // 2 + 1]
    if kept % 2 == 0:
        resized[kept // 2] *= 0.5 if side > pixels else 2.0
    matrix: Array = np.fft.irfft(resized, side, axis=0) * (side / pixels)
    return matrix


def _side(neurons: int) -> int:
    side = math.isqrt(neurons) if neurons > 0 else 0
    if neurons < 1 or side * side != neurons:
        raise InputError(
            f"images cannot fill {neurons} neurons: their number must be a square, e.g. 1024 or "
            "4096; sizes 16 * 2^s are squares where s is even"
        )
    return side
