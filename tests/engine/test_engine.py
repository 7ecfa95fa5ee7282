"""`infer`, its result, and the package as a user meets it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

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


def test_result_states_its_rates_and_builds_scores_on_demand() -> None:
    network = ps.Network([ps.Layer(np.eye(3), -0.5)] * 2)
    Y = np.array([[2.0, 0, 0], [0.6, 0, 0], [0, 0, 4]])
    result = ps.infer(network, Y, "scipy", path="spgemm")
    assert result.categories.tolist() == [0, 2]
    np.testing.assert_array_equal(result.scores, [[1, 0, 0], [0, 0, 0], [0, 0, 3]])
    np.testing.assert_array_equal(result.score_rows(1, 3), result.scores[1:])
    assert result.scores is not result.scores
    assert result.edge_rate == pytest.approx(3 * 6 / result.inference_seconds)
    assert result.executed_edge_rate == pytest.approx(
        result.executed_edges / result.inference_seconds
    )
    # Sparse features: 3 stored entries meet one weight each, in layer 1 and, all alive, in 2.
    assert result.executed_edges == 6
    assert [record.seconds is not None for record in result.records] == [True, True]
    assert result.exact_passes == ()


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


@pytest.mark.parametrize("break_even", [0.0, 0.15, 0.6, 2.0])
def test_the_layer_loop_changes_path_with_the_density(
    break_even: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Layer 1 spreads each feature over all neurons, layer 4 gathers them in one again.
    spread, keep, gather = np.ones((12, 12)), np.eye(12), np.zeros((12, 12))
    gather[:, 0] = 1
    network = ps.Network([ps.Layer(part) for part in (spread, keep, keep, gather, keep, spread)])
    Y = np.zeros((5, 12))
    Y[range(5), range(5)] = 1
    plan = make_plan(ps.get_backend("scipy"), network)
    assert "sparse below" in plan.describe()
    monkeypatch.setattr(plan, "break_even", break_even)
    expected = ps.infer(network, Y, "scipy", path="spmm").scores
    np.testing.assert_array_equal(ps.infer(network, Y, "scipy", path="spgemm").scores, expected)
    words = {
        0.0: "layers 1 to 6 dense",
        0.15: "layer 1 sparse, layers 2 to 6 dense",  # one in twelve is above half of 0.15
        0.6: "layer 1 sparse, layers 2 to 4 dense, layers 5 to 6 sparse",
        2.0: "layers 1 to 6 sparse",
    }[break_even]
    for features in (Y, sp.csr_array(Y), ps.PackedFeatures.from_dense(Y)):
        result = plan.run(features)
        np.testing.assert_array_equal(result.scores, expected)
        assert f"in the last batch {words}\n" in plan.describe()


def test_the_path_is_measured_only_where_there_is_a_choice() -> None:
    network = ps.radixnet(64, 3)
    biased = ps.Network([ps.Layer(np.eye(4), 0.5)])
    for chosen, options, words in [
        (network, ps.PlanOptions(path="spmm"), "dense (asked for)"),
        (network, ps.PlanOptions(path="spgemm"), "sparse (asked for)"),
        (biased, ps.PlanOptions(), "dense (a layer turns zeros into nonzeros)"),
    ]:
        plan = make_plan(ps.get_backend("scipy"), chosen, options)
        assert plan.break_even is None
        plan.run(np.ones((2, chosen.neurons)))
        assert f"features between layers: {words}\n" in plan.describe()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel": "csr"}, "kernel"),
        ({"storage": "float16"}, r"takes no option storage \('float16'\)"),
        ({"device_memory": 1 << 30}, "takes no option device_memory"),
        ({"devices": "all"}, r"takes no option devices \('all'\)"),
    ],
)
def test_options_of_other_backends_are_errors(options: dict[str, Any], message: str) -> None:
    network = ps.Network([ps.Layer(sp.csr_array(np.eye(3)))])
    with pytest.raises(ps.InputError, match=message):
        ps.infer(network, np.eye(3), "scipy", **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"storage": "float8"}, "storage is 'float8'; choose one of same, float16"),
        ({"storage": "float16", "dtype": "float64"}, "storage float16 goes with dtype float32"),
        ({"device_memory": 0}, "device_memory is 0;"),
        ({"devices": "0;1"}, "devices is '0;1'; give 'all' or numbers"),
    ],
)
def test_device_options_without_a_valid_value(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ps.InputError, match=message):
        ps.PlanOptions(**options)
