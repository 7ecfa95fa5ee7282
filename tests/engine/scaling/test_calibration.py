"""Calibrations: what is recorded against plain runs; their files, whole and damaged."""

from __future__ import annotations

import pickle
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scaling_samples import calibration

import portable_spdnn as ps
from portable_spdnn.plans.planner import make_plan
from portable_spdnn.plans.result import ReplicaRecord
from portable_spdnn.scaling import measuring
from portable_spdnn.scaling.calibration import count_active, load_calibration, save_calibration
from portable_spdnn.scaling.prediction import RESULT_BYTES
from portable_spdnn.workloads.sources import Request

BACKENDS = [info.name for info in ps.backends() if info.availability.available]


def lifetimes_in_dense_arithmetic(network: ps.Network, features: ps.PackedFeatures) -> list[int]:
    """Return after how many layers each input is last active, layer by layer."""
    lifetimes, Y = np.zeros(features.shape[0], np.int64), features.dense(np.float64)
    for number, layer in enumerate(network, start=1):
        Y = np.clip(Y @ layer.csr(np.float64).toarray() + layer.bias, 0, network.y_max)
        lifetimes[(Y != 0).any(axis=1)] = number
    return lifetimes.tolist()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bias", [[-0.625] * 9, [-0.25] * 9, [-0.5] * 4 + [0.125] + [-0.75] * 4])
def test_inputs_are_counted_until_they_die(backend: str, bias: list[float]) -> None:
    layers = zip(ps.radixnet(64, 9, seed=4), bias, strict=True)
    network = ps.Network([ps.Layer(layer.csr(), b) for layer, b in layers], 32.0)
    rng = np.random.default_rng(1)
    features = ps.PackedFeatures.from_dense(rng.random((150, 64)) < np.linspace(0, 1, 150)[:, None])
    # In float64, with such biases, no sum is rounded.
    plan = make_plan(ps.get_backend(backend, 1), network, ps.PlanOptions("float64"))
    expected = lifetimes_in_dense_arithmetic(network, features)
    if bias[4] > 0:
        # A positive bias makes inputs active again: nobody leaves before it.
        expected = [max(lifetime, 4) for lifetime in expected]
    found = measuring.active_inputs(plan.run(features))
    np.testing.assert_array_equal(found, count_active(expected, 9))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_calibration_of_a_small_network(backend: str) -> None:
    request = Request(neurons=64, layers=300, first_inputs=400, bias=-0.25)
    found = measuring.calibrate(
        ps.get_backend(backend, 1), request, 60, 8, "float64", lambda what: nullcontext()
    )
    assert (found.backend, found.threads, found.neurons) == (backend, 1, 64)
    assert (found.network_layers, found.edges_per_layer) == (300, (64 * 32,) * 8)
    # 7 is the first odd step with which the sample has at most 60 inputs.
    assert found.source_inputs == 400
    sample = ps.digits_features(64)[:400:7]
    expected = lifetimes_in_dense_arithmetic(ps.radixnet(64, 8, bias=-0.25), sample)
    np.testing.assert_array_equal(found.active, count_active(expected, 8))
    assert found.start.inputs == (1, 2, 4, 8, 16, 58)
    for curve in (found.dense, found.start):
        assert list(curve.seconds) == sorted(curve.seconds)
    assert min(found.dense.seconds[-1], found.load_seconds_edge, found.plan_seconds_edge) > 0


def test_sizes_of_results() -> None:
    plan = make_plan(ps.get_backend("scipy"), ps.radixnet(64, 20), ps.PlanOptions(batch_size=100))
    batches = list(plan.finished_batches(ps.digits_features(64)[:400]))
    light = [replace(one, output=replace(one.output, rows=None)) for one in batches]
    record = ReplicaRecord(0, "node-00000", "a processor", 400, 1.5, 1.5, 1.5, 1)
    size = len(pickle.dumps((light, [None] * 4, ((record,), 1.5)), -1))
    survivors = sum(one.categories.size for one in batches)
    rank, batch, layer, survivor = RESULT_BYTES.values()
    assert size == pytest.approx(rank + 4 * (batch + 20 * layer) + survivors * survivor, rel=0.5)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"version": 5', '"version": 4', "is no calibration of version 5"),
        ('"threads": 1', '"threads": 2', "c.json: is damaged, or was edited by hand"),
        ("}", "", "is no calibration that can be read"),
        ("{", "[" * 100_000, "is no calibration that can be read"),
        ('"format"', '"another"', "is no calibration that can be read"),
    ],
)
def test_files_that_are_whole_and_damaged(old: str, new: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    save_calibration(calibration(), path)
    assert load_calibration(path) == calibration()
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ps.InputError, match=message):
        load_calibration(path)
