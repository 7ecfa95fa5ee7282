"""What kernels need for an edge, by hand."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
import scipy.sparse as sp
from benchmark_scripts import load_script


@pytest.fixture
def models() -> ModuleType:
    return load_script("kernel_models")


def test_the_tile_kernel_is_served_by_the_level_that_holds_its_buffers(
    models: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {1: 1 << 15, 2: 1 << 19, 3: 1 << 25}
    monkeypatch.setattr(models, "cache_bytes", sizes.__getitem__)
    single = np.dtype(np.float32)
    for neurons, level in ((64, "l1"), (1024, "l2"), (16384, "l3"), (1 << 20, "memory")):
        assert models.tile_model(neurons, single, 64).bytes_per_edge == {level: 4}
    assert models.tile_model(64, np.dtype(np.float64), 64, 0.25).bytes_per_edge == {"l2": 2}


def test_a_product_also_moves_its_operands_and_a_sparse_one_its_entries(
    models: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {1: 1 << 15, 2: 1 << 19, 3: 1 << 25}
    monkeypatch.setattr(models, "cache_bytes", sizes.__getitem__)
    single = np.dtype(np.float32)
    # 32 edges an output, 4 bytes a load; in once and out twice: 12 bytes for 32 edges.
    small = models.product_model((1024, 1024), 32 * 1024, 64, single, 64).bytes_per_edge
    assert small == {"l2": 4 + 12 / 32}
    large = models.product_model((1024, 1024), 32 * 1024, 65536, single, 64, 0.5).bytes_per_edge
    assert large == {"l2": 2, "memory": 12 / 32}
    A = sp.csr_array(np.ones((3, 4), np.float32))
    B = sp.csr_array(np.ones((4, 5), np.float32))
    # 60 multiply-adds on 12 entries of A, 20 of B and 15 of C, 8 bytes each.
    assert models.sparse_product_model(A, B, 15).bytes_per_edge == {
        "l1": 8 + 8,
        "memory": 8 * (12 + 2 * 15) / 60,
    }
