"""The convolutions of the contract suite: shapes, operands, and how results are compared."""

from __future__ import annotations

from typing import Any

import numpy as np

NONE = ((0, 0), (0, 0))
SAME = ((1, 1), (1, 1))

# x, weights, stride, padding, dilation, groups
CASES = [
    ((1, 1, 1, 1), (1, 1, 1, 1), (1, 1), NONE, (1, 1), 1),
    ((1, 4, 6, 7), (5, 4, 1, 1), (1, 1), NONE, (1, 1), 1),
    ((2, 3, 8, 9), (4, 3, 3, 3), (1, 1), SAME, (1, 1), 1),
    ((3, 3, 5, 18), (2, 3, 3, 3), (1, 1), NONE, (1, 1), 1),
    # A kernel larger than the image; of even extents; of one row, of one column.
    ((1, 2, 2, 3), (3, 2, 5, 7), (1, 1), ((2, 2), (3, 3)), (1, 1), 1),
    ((2, 2, 6, 5), (3, 2, 2, 4), (1, 1), ((1, 0), (2, 1)), (1, 1), 1),
    ((1, 3, 4, 20), (2, 3, 1, 5), (1, 1), ((0, 0), (2, 2)), (1, 1), 1),
    ((1, 3, 20, 4), (2, 3, 5, 1), (1, 1), ((2, 2), (0, 0)), (1, 1), 1),
    # Strides, some larger than the kernel; dilations; padding on one side, and wider than needed.
    ((2, 3, 9, 11), (4, 3, 3, 3), (2, 2), SAME, (1, 1), 1),
    ((1, 3, 10, 13), (4, 3, 3, 3), (3, 2), ((0, 1), (2, 0)), (1, 1), 1),
    ((1, 2, 9, 9), (3, 2, 1, 1), (2, 3), NONE, (1, 1), 1),
    ((1, 2, 11, 12), (3, 2, 2, 2), (4, 5), NONE, (1, 1), 1),
    ((1, 2, 9, 12), (3, 2, 3, 3), (1, 1), ((2, 2), (3, 3)), (2, 3), 1),
    ((1, 2, 13, 14), (3, 2, 3, 2), (2, 3), ((2, 1), (3, 4)), (3, 2), 1),
    ((1, 1, 2, 2), (2, 1, 2, 2), (1, 1), ((3, 4), (5, 6)), (1, 1), 1),
    ((1, 3, 15, 15), (4, 3, 7, 7), (2, 2), ((3, 3), (3, 3)), (1, 1), 1),
    # Groups; one channel to each; several outputs of a channel.
    ((2, 6, 5, 8), (4, 3, 3, 3), (1, 1), SAME, (1, 1), 2),
    ((1, 6, 7, 6), (9, 2, 3, 2), (2, 1), SAME, (1, 2), 3),
    ((2, 5, 7, 19), (5, 1, 3, 3), (1, 1), SAME, (1, 1), 5),
    ((1, 3, 9, 17), (6, 1, 3, 3), (2, 2), SAME, (1, 1), 3),
    ((1, 4, 10, 9), (4, 1, 5, 5), (1, 1), ((2, 2), (2, 2)), (1, 1), 4),
    ((1, 2, 12, 34), (4, 1, 3, 2), (1, 2), ((1, 0), (0, 3)), (2, 1), 2),
    # No images, no outputs, no channels.
    ((0, 3, 5, 5), (4, 3, 3, 3), (1, 1), SAME, (1, 1), 1),
    ((2, 3, 5, 5), (0, 3, 3, 3), (1, 1), SAME, (1, 1), 1),
    ((2, 0, 5, 5), (4, 0, 3, 3), (1, 1), SAME, (1, 1), 1),
    # Many channels, and a wide image.
    ((1, 70, 4, 5), (40, 70, 3, 3), (1, 1), SAME, (1, 1), 1),
    ((1, 2, 3, 150), (3, 2, 3, 3), (1, 1), SAME, (1, 1), 1),
]  # fmt: skip


def pruned(rng: np.random.Generator, shape: Any, density: float, dtype: Any) -> Any:
    """Return weights in -1 .. 1 of which a share is left; of several outputs the second is 0."""
    weights = np.where(rng.random(shape) < density, rng.uniform(-1, 1, shape), 0).astype(dtype)
    if shape[0] > 1 and density < 1:
        weights[1] = 0
    return weights


def images(rng: np.random.Generator, shape: Any, dtype: Any) -> Any:
    """Return images of values in -1 .. 1."""
    return rng.uniform(-1, 1, shape).astype(dtype)


def assert_sums(found: Any, expected: Any, dtype: Any) -> None:
    """Compare sums of up to 700 products of order 1."""
    assert found.shape == expected.shape
    assert found.dtype == dtype
    tolerance = 3e-5 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def named(case: Any) -> str:
    """Return the name of a case."""
    x, weights, *_ = case
    return f"{'x'.join(map(str, x))}-{'x'.join(map(str, weights))}"
