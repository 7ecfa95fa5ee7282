"""A small network in files, for the tests of all commands."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import portable_spdnn as ps


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network of 64 neurons x 5 layers with 9 inputs in the official layout, with truth."""
    from portable_spdnn.graphchallenge.categories import write_categories
    from portable_spdnn.workloads.generation import generate_radixnet

    folder = tmp_path_factory.mktemp("data") / "small"
    rng = np.random.default_rng(0)
    features = ps.PackedFeatures.from_dense(
        rng.random((9, 64)) < np.linspace(0.02, 0.9, 9)[:, None]
    )
    generate_radixnet(folder, 64, 5, seed=3, features=features)
    result = ps.infer(ps.load_network(folder, 64), features, "scipy")
    assert 0 < result.categories.size < 9
    write_categories(folder / "neuron64-l5-categories.tsv", result.categories)
    return folder
