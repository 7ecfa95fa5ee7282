"""Calibrations: what is recorded against plain runs; their files, whole and damaged."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from scaling_samples import calibration

import portable_spdnn as ps
from portable_spdnn.scaling import Sample, calibrate, load_calibration
from portable_spdnn.scaling import save_calibration as save
from portable_spdnn.scaling.message_costs import measure_messages
from portable_spdnn.scaling.sampling import load_spread, record_lives, spread
from portable_spdnn.workloads.request import Request

BACKENDS = [info.name for info in ps.backends() if info.availability.available]


def lives_one_layer_at_a_time(network: ps.Network, features: Any) -> list[int]:
    """Return after how many layers each input is alive, by running every prefix."""
    dense = features.toarray() if sp.issparse(features) else features.dense()
    lives = np.zeros(len(dense), np.int64)
    Y = dense.astype(np.float64)
    for number, layer in enumerate(network, start=1):
        Y = np.maximum(Y @ layer.csr(np.float64).toarray() + layer.bias, 0)
        Y = Y if network.y_max is None else np.minimum(Y, network.y_max)
        lives[(Y != 0).any(axis=1)] = number
    return lives.tolist()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bias", [-0.625, -0.25, [-0.5] * 4 + [0.125] + [-0.75] * 4])
def test_inputs_are_followed_until_they_die(backend: str, bias: Any) -> None:
    biases = bias if isinstance(bias, list) else [bias] * 9
    layers = [
        ps.Layer(layer.csr(), b)
        for layer, b in zip(ps.radixnet(64, 9, seed=4), biases, strict=True)
    ]
    network = ps.Network(layers, 32.0)
    rng = np.random.default_rng(1)
    features = ps.PackedFeatures.from_dense(rng.random((150, 64)) < np.linspace(0, 1, 150)[:, None])
    # In float64, with such biases, no sum is rounded.
    options = ps.PlanOptions("float64")
    run = ps.infer(network, features, backend, dtype="float64")
    record = record_lives(ps.get_backend(backend, 1), network, options, features, run)
    expected = lives_one_layer_at_a_time(network, features)
    if isinstance(bias, list):
        # A positive bias revives: nobody leaves before it, and then some die for good.
        expected = [max(life, 4) for life in expected]
    assert list(record.alive_after) == expected
    assert len(set(expected)) > 1
    live = record.live_per_layer()
    assert live[0] == 150
    assert live[-1] == run.records[-1].alive_inputs


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_calibration_of_a_small_network(backend: str, tmp_path: Path) -> None:
    shown: list[str] = []
    from contextlib import nullcontext

    def show(what: str) -> nullcontext[None]:
        shown.append(what)
        return nullcontext(None)

    request = Request(neurons=64, layers=300, first_inputs=400, bias=-0.25)
    sample = Sample(request, inputs=60, layers=8)
    found = calibrate(ps.get_backend(backend, 1), sample, ps.PlanOptions("float64"), show)
    assert (found.backend, found.threads, found.neurons) == (backend, 1, 64)
    assert (found.network_layers, found.layers) == (300, 8)
    assert found.edges_per_layer == (64 * 32,) * 8
    assert found.edges_of(10) == [2048.0] * 10
    assert found.edges_of(3) == [2048.0] * 3
    assert (found.lives.source_inputs, found.lives.stride) == (400, 7)
    assert len(found.lives.alive_after) == -(-400 // 7)
    features = ps.digits_features(64)[:400][::7]
    expected = lives_one_layer_at_a_time(ps.radixnet(64, 8, bias=-0.25), features)
    assert list(found.lives.alive_after) == expected
    assert found.start.inputs[-1] == len(expected)
    for curve in (found.dense, found.start):
        assert list(curve.seconds) == sorted(curve.seconds)
    assert found.dense.seconds[-1] > 0
    assert 0.5 <= found.depth_factor <= 2
    assert 1 <= found.start_layers <= 8
    assert len(shown) == len(set(shown)) > 3
    save(found, tmp_path / "kept.json")
    assert load_calibration(tmp_path / "kept.json") == found


def test_options_that_hide_costs_are_refused() -> None:
    sample = Sample(Request(neurons=64, layers=2))
    for options in (
        ps.PlanOptions(exact_passes=("merge-inputs",)),
        ps.PlanOptions(memory=1 << 30),
        ps.PlanOptions(keep_dead_inputs=True),
    ):
        with pytest.raises(ps.InputError, match="without exact passes"):
            calibrate(ps.get_backend("scipy"), sample, options)
    for changes in ({"inputs": 0}, {"layers": 0}):
        with pytest.raises(ps.InputError, match="--sample-"):
            Sample(Request(), **changes)


@given(st.integers(1, 10**6), st.integers(1, 10**4))
def test_a_sample_is_spread_by_an_odd_prime(inputs: int, wanted: int) -> None:
    step = spread(inputs, wanted)
    assert -(-inputs // step) <= wanted
    if inputs <= wanted:
        assert step == 1
    else:
        assert step >= 3
        assert all(step % factor for factor in range(2, math.isqrt(step) + 1))


def test_samples_of_every_kind_of_file(tmp_path: Path) -> None:
    from portable_spdnn.workloads.generation import generate_radixnet
    from portable_spdnn.workloads.loading import convert

    features = ps.digits_features(64)[:50]
    generate_radixnet(tmp_path / "text", 64, 3, features=features)
    convert(tmp_path / "text", tmp_path / "packed.spdnn")
    for request in (
        Request(tmp_path / "text", 64),
        Request(tmp_path / "packed.spdnn", 64),
        Request(neurons=64, first_inputs=50),
    ):
        found, inputs, stride, _ = load_spread(Sample(request, 12), 64)
        assert (inputs, stride) == (50, 5)
        dense = found.toarray() if sp.issparse(found) else found.dense()
        np.testing.assert_array_equal(dense, features.dense()[::5])


def test_messages_grow_with_what_is_in_them() -> None:
    found = measure_messages()
    assert found.bytes_each > 0
    assert found.bytes_batch > 0
    assert min(asdict(found).values()) >= 0


def test_a_file_gives_back_what_was_saved(tmp_path: Path) -> None:
    made = calibration()
    save(made, tmp_path / "c.json")
    assert load_calibration(tmp_path / "c.json") == made
    assert [path.name for path in tmp_path.iterdir()] == ["c.json"]
    with pytest.raises(ps.InputError, match="there is no folder"):
        save(made, tmp_path / "none" / "c.json")


DAMAGE: list[tuple[str, Any, str]] = [
    ("version", 99, "version 99"),
    ("format", "another", "is no calibration"),
    ("threads", 0, "field threads is 0"),
    ("threads", True, "field threads"),
    ("backend", 7, "field backend"),
    ("dtype", "float16", "float32 or float64"),
    ("depth_factor", 0, "field depth_factor"),
    ("depth_factor", None, "field depth_factor"),
    ("depth_factor_measured", 1, "true or false"),
    ("plan_seconds", -1, "field plan_seconds"),
    ("plan_seconds", math.nan, "field plan_seconds"),
    ("edges_per_layer", [], "at least one layer"),
    ("edges_per_layer", [1.5], "field edges_per_layer"),
    ("start_layers", 9, "at most 4 layers"),
    ("widest", 3, "at least 64 neurons"),
    ("dense", [], "field dense"),
    ("dense", {"inputs": [2, 2], "seconds": [1, 2]}, "field dense.inputs"),
    ("dense", {"inputs": [0], "seconds": [1]}, "field dense.inputs"),
    ("dense", {"inputs": [1], "seconds": [1, 2]}, "field dense.seconds"),
    ("start", {"inputs": [1], "seconds": ["x"]}, "field start.seconds"),
    ("start", {"inputs": [1]}, "no field start.seconds"),
    ("messages", {}, "no field messages.bytes_each"),
    ("lives", {"layers": 4, "source_inputs": 8, "stride": 1, "alive_after": [9] * 8},
     "field lives.alive_after"),
    ("lives", {"layers": 4, "source_inputs": 8, "stride": 1, "alive_after": [1]},
     "8 numbers is expected"),
    ("lives", {"layers": 3, "source_inputs": 1, "stride": 1, "alive_after": [1]},
     "field lives.layers"),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value", "message"), DAMAGE)
def test_damaged_files_name_the_field(field: str, value: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    save(calibration(), path)
    content = json.loads(path.read_text())
    content[field] = value
    path.write_text(json.dumps(content))
    with pytest.raises(ps.InputError) as error:
        load_calibration(path)
    assert str(path) in str(error.value)
    assert message in str(error.value)


@pytest.mark.parametrize("field", sorted(asdict(calibration())))
def test_missing_fields_are_named(field: str, tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    save(calibration(), path)
    content = json.loads(path.read_text())
    del content[field]
    path.write_text(json.dumps(content))
    with pytest.raises(ps.InputError, match=f"no field {field}"):
        load_calibration(path)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(path.read_bytes()[:200]),
        lambda path: path.write_text("[]"),
        lambda path: path.write_bytes(b"\xff\xfe"),
    ],
)
def test_files_that_are_no_calibration(spoil: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    save(calibration(), path)
    spoil(path)
    with pytest.raises(ps.InputError, match=r"c\.json: is no calibration"):
        load_calibration(path)
