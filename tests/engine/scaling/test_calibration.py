"""Calibrations: what is recorded against plain runs; their files, whole and damaged."""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scaling_samples import calibration

import portable_spdnn as ps
from portable_spdnn.plans.planner import make_plan
from portable_spdnn.scaling import measuring
from portable_spdnn.scaling.calibration import load_calibration, save_calibration
from portable_spdnn.workloads.generation import generate_radixnet
from portable_spdnn.workloads.loading import convert
from portable_spdnn.workloads.sources import Request, resolve

BACKENDS = [info.name for info in ps.backends() if info.availability.available]


def lives_one_layer_at_a_time(network: ps.Network, features: ps.PackedFeatures) -> list[int]:
    """Return after how many layers each input is alive, in plain dense arithmetic."""
    lives, Y = np.zeros(features.shape[0], np.int64), features.dense(np.float64)
    for number, layer in enumerate(network, start=1):
        Y = np.clip(Y @ layer.csr(np.float64).toarray() + layer.bias, 0, network.y_max)
        lives[(Y != 0).any(axis=1)] = number
    return lives.tolist()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bias", [[-0.625] * 9, [-0.25] * 9, [-0.5] * 4 + [0.125] + [-0.75] * 4])
def test_inputs_are_followed_until_they_die(backend: str, bias: list[float]) -> None:
    layers = zip(ps.radixnet(64, 9, seed=4), bias, strict=True)
    network = ps.Network([ps.Layer(layer.csr(), b) for layer, b in layers], 32.0)
    rng = np.random.default_rng(1)
    features = ps.PackedFeatures.from_dense(rng.random((150, 64)) < np.linspace(0, 1, 150)[:, None])
    # In float64, with such biases, no sum is rounded.
    plan = make_plan(ps.get_backend(backend, 1), network, ps.PlanOptions("float64"))
    survivors = plan.run(features).records[-1].alive_inputs
    expected = lives_one_layer_at_a_time(network, features)
    if bias[4] > 0:
        # A positive bias revives: nobody leaves before it, and then some die for good.
        expected = [max(life, 4) for life in expected]
    for known in (survivors, 0):
        assert measuring.follow_inputs(plan, features, known or 0).tolist() == expected
    assert len(set(expected)) > 1
    assert expected.count(9) == survivors


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_calibration_of_a_small_network(backend: str, tmp_path: Path) -> None:
    request = Request(neurons=64, layers=300, first_inputs=400, bias=-0.25)
    found = measuring.calibrate(
        ps.get_backend(backend, 1), request, 60, 8, "float64", lambda what: nullcontext()
    )
    assert (found.backend, found.threads, found.neurons) == (backend, 1, 64)
    assert (found.network_layers, found.edges_per_layer) == (300, (64 * 32,) * 8)
    assert (found.lives.source_inputs, found.lives.stride) == (400, 7)
    features = ps.digits_features(64)[:400][::7]
    expected = lives_one_layer_at_a_time(ps.radixnet(64, 8, bias=-0.25), features)
    assert list(found.lives.active_after) == expected
    assert found.start.inputs[-1] == len(expected) == -(-400 // 7)
    for curve in (found.dense, found.start):
        assert list(curve.seconds) == sorted(curve.seconds)
    assert found.dense.seconds[-1] > 0
    assert 0.5 <= found.depth_factor <= 2
    assert 1 <= found.start_layers <= 8
    assert found.messages.bytes_each > 0
    assert found.messages.bytes_batch > 0
    assert min(asdict(found.messages).values()) >= 0
    save_calibration(found, tmp_path / "kept.json")
    assert load_calibration(tmp_path / "kept.json") == found


@given(st.integers(1, 10**6), st.integers(1, 10**4))
def test_a_sample_is_spread_by_an_odd_prime(inputs: int, wanted: int) -> None:
    step = measuring.spread(inputs, wanted)
    assert -(-inputs // step) <= wanted
    assert step == 1 if inputs <= wanted else step >= 3
    assert all(step % factor for factor in range(2, math.isqrt(step) + 1))


def test_samples_of_every_kind_of_file(tmp_path: Path) -> None:
    features = ps.digits_features(64)[:50]
    generate_radixnet(tmp_path / "text", 64, 3, features=features)
    convert(tmp_path / "text", tmp_path / "packed.spdnn")
    for request in (
        Request(tmp_path / "text", 64),
        Request(tmp_path / "packed.spdnn", 64),
        Request(neurons=64, first_inputs=50),
    ):
        found, inputs, stride = measuring.load_inputs(resolve(request), 64, 12)
        assert (inputs, stride) == (50, 5)
        dense = found.dense() if isinstance(found, ps.PackedFeatures) else found.toarray()
        np.testing.assert_array_equal(dense, features.dense()[::5])


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    save_calibration(calibration(), tmp_path / "c.json")
    return tmp_path / "c.json"


def test_a_file_gives_back_what_was_saved(kept: Path, tmp_path: Path) -> None:
    assert load_calibration(kept) == calibration()
    assert list(tmp_path.iterdir()) == [kept]
    with pytest.raises(ps.InputError, match="there is no folder"):
        save_calibration(calibration(), tmp_path / "none" / "c.json")


LIVES = {"layers": 4, "source_inputs": 8, "stride": 1, "active_after": [1] * 8}


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("version", 99, "version 99"),
        ("format", "another", "is no calibration"),
        ("threads", 0, "field threads is 0"),
        ("threads", True, "field threads"),
        ("backend", 7, "field backend"),
        ("dtype", "float16", "float32 or float64"),
        ("depth_factor", 0, "field depth_factor"),
        ("depth_factor_measured", 1, "true or false"),
        ("plan_seconds", math.nan, "field plan_seconds"),
        ("edges_per_layer", [1.5], "field edges_per_layer"),
        ("start_layers", 9, "at most 4 layers"),
        ("widest", 3, "at least 64 neurons"),
        ("dense", [], "field dense"),
        ("dense", {"inputs": [2, 2], "seconds": [1, 2]}, "field dense.inputs"),
        ("dense", {"inputs": [1], "seconds": [1, 2]}, "field dense.seconds"),
        ("start", {"inputs": [1], "seconds": ["x"]}, "field start.seconds"),
        ("start", {"inputs": [1]}, "no field start.seconds"),
        ("messages", {}, "no field messages.bytes_each"),
        ("lives", {**LIVES, "active_after": [9] * 8}, "field lives.active_after"),
        ("lives", {**LIVES, "active_after": [1]}, "8 numbers is expected"),
        ("lives", {**LIVES, "layers": 3}, "field lives.layers"),
    ],
)
def test_damaged_files_name_the_field(field: str, value: Any, message: str, kept: Path) -> None:
    kept.write_text(json.dumps({**json.loads(kept.read_text()), field: value}))
    with pytest.raises(ps.InputError) as error:
        load_calibration(kept)
    assert str(kept) in str(error.value)
    assert message in str(error.value)


@pytest.mark.parametrize("field", sorted(asdict(calibration())))
def test_missing_fields_are_named(field: str, kept: Path) -> None:
    content = json.loads(kept.read_text())
    del content[field]
    kept.write_text(json.dumps(content))
    with pytest.raises(ps.InputError, match=f"no field {field}"):
        load_calibration(kept)


@pytest.mark.parametrize("content", [b"", b'{"format": "portable_spdnn', b"[]", b"\xff\xfe"])
def test_files_that_are_no_calibration(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "c.json").write_bytes(content)
    for name in ("c.json", "absent.json"):
        with pytest.raises(ps.InputError, match=f"{name}: is no calibration"):
            load_calibration(tmp_path / name)
