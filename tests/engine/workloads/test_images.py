"""Images: Fourier resizing and binary features."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from portable_spdnn.errors import InputError
from portable_spdnn.graphchallenge.radixnet import radixnet_layers
from portable_spdnn.workloads.images import (
    binary_features,
    digits,
    digits_features,
    interpolation,
    load_idx_features,
)


def resize_fourier(images: np.ndarray, side: int) -> np.ndarray:
    """Resize images to side x side pixels."""
    down, across = interpolation(images.shape[1], side), interpolation(images.shape[2], side)
    return np.asarray(down @ images @ across.T)


def interpolated(values: np.ndarray, at: float) -> float:
    """Evaluate the real trigonometric polynomial of least degree through `values`."""
    n = len(values)
    total = 0.0
    for k in range(n // 2 + 1):
        a = sum(v * math.cos(2 * math.pi * k * q / n) for q, v in enumerate(values)) * 2 / n
        b = sum(v * math.sin(2 * math.pi * k * q / n) for q, v in enumerate(values)) * 2 / n
        half = k == 0 or 2 * k == n
        total += (a / 2 if half else a) * math.cos(2 * math.pi * k * at / n)
        total += (0 if half else b) * math.sin(2 * math.pi * k * at / n)
    return total


@pytest.mark.parametrize(("pixels", "side"), [(1, 4), (2, 5), (3, 6), (4, 7), (5, 8), (6, 6)])
def test_enlarging_samples_the_trigonometric_polynomial(pixels: int, side: int) -> None:
    image = np.random.default_rng(1).normal(size=(pixels, pixels))
    along_rows = np.array(
        [[interpolated(row, q * pixels / side) for q in range(side)] for row in image]
    )
    expected = np.array(
        [[interpolated(col, q * pixels / side) for col in along_rows.T] for q in range(side)]
    )
    resized = resize_fourier(image[None], side)
    assert resized.shape == (1, side, side)
    assert resized.dtype == np.float64
    np.testing.assert_allclose(resized[0], expected, atol=1e-12)


@pytest.mark.parametrize(("pixels", "side"), [(8, 4), (8, 5), (7, 4), (7, 3), (6, 1), (9, 8)])
def test_reducing_crops_the_spectrum(pixels: int, side: int) -> None:
    image = np.random.default_rng(2).normal(size=(3, pixels, pixels))
    spectrum = np.fft.fft2(image)
    cropped = np.zeros((3, side, side), complex)
    kept = (
        range(-(side // 2), side // 2 + 1)
        if side % 2 == 0
        else range(-(side // 2), (side + 1) // 2)
    )
    for u in kept:
        for v in kept:
            # Both Nyquist frequencies of an even side fall on one term.
            cropped[:, u % side, v % side] += spectrum[:, u % pixels, v % pixels]
    expected = np.fft.ifft2(cropped) * (side / pixels) ** 2
    np.testing.assert_allclose(expected.imag, 0, atol=1e-12)
    np.testing.assert_allclose(resize_fourier(image, side), expected.real, atol=1e-12)


def test_resizing_keeps_samples_means_and_bands() -> None:
    image = np.random.default_rng(3).normal(size=(2, 5, 4))
    doubled = resize_fourier(image, 20)
    np.testing.assert_allclose(doubled[:, ::4, ::5], image, atol=1e-12)
    np.testing.assert_allclose(doubled.mean(axis=(1, 2)), image.mean(axis=(1, 2)), atol=1e-12)
    odd = np.random.default_rng(4).normal(size=(2, 5, 5))
    np.testing.assert_allclose(resize_fourier(resize_fourier(odd, 16), 5), odd, atol=1e-12)
    np.testing.assert_array_equal(resize_fourier(odd, 5), odd)


def test_features_are_stored_by_columns() -> None:
    image = np.zeros((1, 4, 4))
    image[0, 1, 3] = 200
    np.testing.assert_array_equal(np.flatnonzero(binary_features(image, 16).dense()), [3 * 4 + 1])


def test_features_of_oblong_images() -> None:
    image = np.random.default_rng(5).integers(0, 256, (7, 3, 6))
    above = resize_fourier(image, 5) > 100
    features = binary_features(image, 25, threshold=100)
    assert features.shape == (7, 25)
    np.testing.assert_array_equal(features.dense().reshape(7, 5, 5), above.transpose(0, 2, 1))


def test_the_threshold_itself_is_dark() -> None:
    image = np.array([[[9.0, 10.0], [11.0, 10.0]]])
    np.testing.assert_array_equal(binary_features(image, 4, threshold=10).dense(), [[0, 1, 0, 0]])


def test_features_do_not_depend_on_the_images_beside() -> None:
    # Above 2^19 pixels the work is done in several pieces.
    image = np.random.default_rng(6).integers(0, 256, (70, 4, 4), dtype=np.uint8)
    together = binary_features(image, 256 * 256)
    for place in (0, 7, 8, 69):
        alone = binary_features(image[place : place + 1], 256 * 256)
        np.testing.assert_array_equal(together.bits[place], alone.bits[0])


def test_no_images_give_no_features() -> None:
    assert binary_features(np.zeros((0, 8, 8)), 1024).shape == (0, 1024)


@pytest.mark.parametrize("neurons", [-4, 0, 2, 2048, 1023])
def test_neurons_that_are_no_square(neurons: int, tmp_path: Path) -> None:
    for attempt in (
        lambda: digits_features(neurons),
        lambda: binary_features(np.zeros((1, 2, 2)), neurons),
        lambda: load_idx_features(tmp_path / "absent", neurons),
    ):
        with pytest.raises(InputError, match=rf"cannot fill {neurons} neurons.*where s is even"):
            attempt()


@pytest.mark.parametrize(
    "bad", [np.zeros((2, 2)), np.zeros((1, 0, 2)), np.zeros((1, 2, 2), complex)]
)
def test_images_of_wrong_shape_or_type(bad: np.ndarray) -> None:
    with pytest.raises(InputError, match="real numbers of shape"):
        binary_features(bad, 4)


def test_images_that_are_not_finite() -> None:
    image = np.zeros((3, 2, 2))
    image[2, 0, 1] = np.nan
    with pytest.raises(InputError, match=r"image 2 .* NaN"):
        binary_features(image, 4)


def test_digits() -> None:
    images = digits()
    assert images.shape == (1797, 8, 8)
    assert images.dtype == np.uint8
    assert (images.min(), images.max()) == (0, 16)
    # The first image of the published file, a zero.
    np.testing.assert_array_equal(images[0, 0], [0, 0, 5, 13, 9, 1, 0, 0])
    np.testing.assert_array_equal(images[0, 7], [0, 0, 6, 13, 10, 0, 0, 0])
    # A sum over all pixels that any change of them would move.
    assert images.sum() == 561718


def test_digits_features() -> None:
    features = digits_features(64)
    above = digits() > 184.6 / 255 * 16
    np.testing.assert_array_equal(features.dense(), above.transpose(0, 2, 1).reshape(1797, 64))
    for neurons in (1024, 4096):
        density = digits_features(neurons).nnz / (1797 * neurons)
        assert 0.15 < density < 0.25


def survivors(features, layers: int) -> int:
    """Count the inputs that a seeded challenge network keeps active."""
    Y = features.csr(np.float64)
    for layer in radixnet_layers(features.neurons, layers):
        Y = sp.csr_array(Y @ layer.csr(np.float64))
        Y.data = np.clip(Y.data + layer.bias[0], 0, 32)
        Y.eliminate_zeros()
        Y = Y[np.diff(Y.indptr) > 0]
    return Y.shape[0]


def test_the_network_tells_digits_apart() -> None:
    active = survivors(digits_features(1024)[:400], 24)
    assert 20 < active < 200


def test_mnist_gives_the_official_inputs(shared: Path) -> None:
    path = shared / "mnist" / "train-images-idx3-ubyte.gz"
    truth = shared / "graphchallenge" / "sparse-images-1024.tsv.gz"
    if not (path.is_file() and truth.is_file()):
        pytest.skip(f"official images are not there: {path}, {truth}")
    table = pd.read_csv(truth, sep="\t", header=None).to_numpy()
    official = np.zeros((1200, 1024), bool)
    official[table[:, 0] - 1, table[:, 1] - 1] = True
    features = load_idx_features(path, 1024, slice(1200)).dense(bool)
    assert (features != official).mean() < 0.00055
