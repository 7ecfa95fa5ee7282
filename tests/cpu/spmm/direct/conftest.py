"""What all tests of single products share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from portable_spdnn_cpu.spmm.direct import product


def full_of_nan(shape: Any, dtype: Any, order: Any = "C") -> np.ndarray:
    return np.full(shape, np.nan, dtype, order)


@pytest.fixture(autouse=True)
def _threads_share_all_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small a product is."""
    monkeypatch.setattr(product, "is_shared", lambda *size: True)


@pytest.fixture(autouse=True)
def _results_begin_as_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what a kernel leaves unwritten shows."""
    monkeypatch.setattr(product, "empty", full_of_nan)
