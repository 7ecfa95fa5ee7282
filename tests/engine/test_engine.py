"""`infer`, its result, and the package as a user meets it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import portable_spdnn as ps
from portable_spdnn.plans.base import BATCH_MEMORY
from portable_spdnn.plans.planner import make_plan


@pytest.fixture(scope="module")
def digits_network() -> tuple[ps.Network, ps.PackedFeatures]:
    return ps.radixnet(1024, 120, seed=0), ps.digits_features(1024)


def test_backends_agree_on_the_digits(
    digits_network: tuple[ps.Network, ps.PackedFeatures],
) -> None:
    network, features = digits_network
    expected = ps.infer(network, features, "scipy", dtype=np.float64, keep_dead_inputs=True)
    assert expected.categories.size == 367
    for dtype in (np.float32, np.float64):
        faithful = ps.infer(network, features, "scipy", dtype=dtype)
        np.testing.assert_array_equal(faithful.categories, expected.categories)
        for threads in (1, 2):
            for batch_size in (31, 1000, None):
                result = ps.infer(
                    network, features, "numba", dtype=dtype, threads=threads, batch_size=batch_size
                )
                np.testing.assert_array_equal(result.categories, expected.categories)
                np.testing.assert_allclose(result.scores, expected.scores, rtol=1e-4)


@pytest.mark.parametrize("batch_size", [1, 2, 3, 16, 17, 119])
def test_batches_of_any_size(
    digits_network: tuple[ps.Network, ps.PackedFeatures], batch_size: int
) -> None:
    network, features = digits_network
    few = features[:120]
    expected = ps.infer(network, few, "scipy").categories
    assert 0 < expected.size < 120
    for backend in ("scipy", "numba"):
        result = ps.infer(network, few, backend, batch_size=batch_size)
        np.testing.assert_array_equal(result.categories, expected)


def test_official_data_gives_the_official_categories(shared: Path) -> None:
    data = shared / "graphchallenge"
    truth = np.loadtxt(data / "neuron1024-l120-categories.tsv", dtype=int) - 1
    network = ps.load_network(data, neurons=1024, layers=120)
    features = ps.load_inputs(data, neurons=1024)
    for info in ps.backends():
        if info.availability.available:
            result = ps.infer(network, features, info.name)
            np.testing.assert_array_equal(result.categories, truth[truth < 1200])


def test_options_are_checked() -> None:
    network = ps.Network([ps.Layer(np.eye(2))])
    for options, message in [
        ({"dtype": "float16"}, "dtype is 'float16'; choose float32 or float64"),
        ({"dtype": "nonsense"}, "choose float32 or float64"),
        ({"path": "dense"}, "path is 'dense'; choose one of auto, spmm, spgemm"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"threads": -1}, "threads is -1"),
    ]:
        with pytest.raises(ps.InputError, match=message):
            ps.infer(network, np.eye(2), "scipy", **options)
    with pytest.raises(ps.InputError, match="backend given by name"):
        ps.infer(network, np.eye(2), ps.get_backend("scipy"), threads=2)


def test_default_batches_bound_memory() -> None:
    wide = ps.Network([ps.Layer(sp.csr_array((65536, 65536)))])
    for name in ("scipy", "numba"):
        plan = make_plan(ps.get_backend(name), wide)
        assert plan.batch_size * 65536 * 4 * 2 <= BATCH_MEMORY
        assert plan.batch_size == 2048


def test_importing_the_package_imports_no_backend_and_no_command_line() -> None:
    code = (
        "import sys, portable_spdnn as ps\n"
        "ps.Network; ps.infer; ps.PlanOptions\n"
        "print([m for m in ('numba', 'cupy', 'pandas', 'rich', 'typer') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_is_there() -> None:
    for name in ps.__all__:
        assert getattr(ps, name) is not None
    assert callable(ps.radixnet)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        ps.nonsense  # noqa: B018
    assert set(ps.__all__) <= set(dir(ps))
