"""What follows a product by clusters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from portable_spdnn_cpu.activations import RELU
from portable_spdnn_cpu.jit.compilation import read_only
from portable_spdnn_cpu.spmm.clustered.kernel import SPAN, add_residual


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("first", [0, 1, 5])
@pytest.mark.parametrize("count", [0, 1, SPAN - 1, SPAN, SPAN + 3, 3 * SPAN + 7])
def test_a_residual_is_added_to_its_own_values(dtype: Any, first: int, count: int) -> None:
    rng = np.random.default_rng(count)
    values, residual = rng.uniform(-1, 1, (2, first + count + 9)).astype(dtype)
    expected, part = values.copy(), slice(first, first + count)
    expected[part] = np.clip(values[part] + residual[part], 0, 0.5)
    add_residual(values, read_only(residual), first, first + count, RELU, -np.inf, 0.5)
    np.testing.assert_array_equal(values, expected)
