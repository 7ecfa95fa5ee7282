"""Checkpoints: an interrupted run goes on with the same answer; nothing else is taken for it."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import portable_spdnn as ps
from portable_spdnn.plans.checkpoint import features_fingerprint
from portable_spdnn.plans.planner import make_plan

NETWORK = ps.radixnet(64, 9, seed=2, bias=-0.1)
BITS = ps.digits_features(64)[:40]


class Interrupted(Exception):
    """Stands for a key press, a full queue, a power cut."""


def interrupted_after(plan: Any, batches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    original, run = type(plan).run_batch, []

    def failing(self: Any, features: Any, report: Any) -> Any:
        if features.shape[0]:
            run.append(features.shape[0])
        if len(run) > batches:
            raise Interrupted
        return original(self, features, report)

    monkeypatch.setattr(type(plan), "run_batch", failing)


@pytest.mark.usefixtures("known_break_even")
@pytest.mark.parametrize("backend", ["scipy", "numba"])
@pytest.mark.parametrize("options", [{}, {"path": "spgemm"}, {"exact_passes": "all"},
                                     {"memory": 4 << 30}])  # fmt: skip
def test_a_run_goes_on_where_it_was_interrupted(
    tmp_path: Path, backend: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = ps.get_backend(backend)
    plan = make_plan(chosen, NETWORK, ps.PlanOptions(batch_size=9, **options))
    kept = tmp_path / "new" / "kept"
    whole = plan.run(BITS, checkpoint=tmp_path / "whole")
    with monkeypatch.context() as patched:
        interrupted_after(plan, 2, patched)
        with pytest.raises(Interrupted):
            plan.run(BITS, checkpoint=kept)
    assert sorted(path.name for path in kept.glob("*.npz")) == [
        "batch-000000000000.npz", "batch-000000000009.npz",
    ]  # fmt: skip
    again = make_plan(chosen, NETWORK, ps.PlanOptions(batch_size=9, **options))
    result = again.run(BITS, checkpoint=kept)
    assert result.resumed_inputs == 18
    np.testing.assert_array_equal(result.categories, whole.categories)
    np.testing.assert_array_equal(result.scores, whole.scores)
    assert result.scores.dtype == whole.scores.dtype
    assert result.executed_edges == whole.executed_edges
    ours, theirs = result.records, whole.records
    assert [one.alive_inputs for one in ours] == [one.alive_inputs for one in theirs]
    assert result.inference_seconds > 0
    # A third run runs nothing.
    with monkeypatch.context() as patched:
        interrupted_after(again, 0, patched)
        last = again.run(BITS, checkpoint=kept)
    assert last.resumed_inputs == 40
    np.testing.assert_array_equal(last.scores, whole.scores)
    # What an earlier run spent counts.
    spent = [float(np.load(path)["seconds"]) for path in kept.glob("*.npz")]
    assert last.inference_seconds >= sum(spent)


def test_no_inputs_and_no_survivors(tmp_path: Path) -> None:
    nobody = ps.PackedFeatures.empty(64)
    for _ in range(2):
        assert ps.infer(NETWORK, nobody, "numba", checkpoint=tmp_path / "a").inputs == 0
    for _ in range(2):
        dark = np.zeros((3, 64))
        result = ps.infer(NETWORK, dark, "numba", checkpoint=tmp_path / "b")
        assert result.categories.size == 0
        assert not result.scores.any()


def test_another_run_is_refused(tmp_path: Path) -> None:
    ps.infer(NETWORK, BITS, "numba", checkpoint=tmp_path)
    flipped = BITS.dense()
    flipped[7, 3] = 1 - flipped[7, 3]
    others: list[tuple[str, Any, Any, dict[str, Any]]] = [
        ("its network is", ps.radixnet(64, 9, seed=3, bias=-0.1), BITS, {}),
        ("its inputs is 40, here it is 39", NETWORK, BITS[:39], {}),
        ("its features is", NETWORK, ps.PackedFeatures.from_dense(flipped), {}),
        ("its dtype is float32, here it is float64", NETWORK, BITS, {"dtype": np.float64}),
        ("its path is auto, here it is spmm", NETWORK, BITS, {"path": "spmm"}),
        ("its exact_passes is", NETWORK, BITS, {"exact_passes": "all"}),
        ("its keep_dead_inputs is", NETWORK, BITS, {"keep_dead_inputs": True}),
    ]
    for message, network, features, options in others:
        with pytest.raises(ps.InputError, match=message):
            ps.infer(network, features, "numba", checkpoint=tmp_path, **options)
    with pytest.raises(ps.InputError, match="its backend is numba, here it is scipy"):
        ps.infer(NETWORK, BITS, "scipy", checkpoint=tmp_path)


def test_folders_that_hold_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(ps.InputError, match="holds files but no checkpoint"):
        ps.infer(NETWORK, BITS, "numba", checkpoint=tmp_path)
    with pytest.raises(ps.InputError, match="cannot hold a checkpoint"):
        ps.infer(NETWORK, BITS, "numba", checkpoint=tmp_path / "thesis.tex" / "sub")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "checkpoint.json").write_text("{")
    with pytest.raises(ps.InputError, match=r"checkpoint\.json: cannot be read"):
        ps.infer(NETWORK, BITS, "numba", checkpoint=broken)
    (broken / "checkpoint.json").write_text("[]")
    with pytest.raises(ps.InputError, match="is the checkpoint of another run"):
        ps.infer(NETWORK, BITS, "numba", checkpoint=broken)


@pytest.mark.parametrize("name", ["batch-000000000000.npz", "batch-000000000000.rows.npy"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "empty"])
def test_damage_is_noticed(tmp_path: Path, name: str, damage: str) -> None:
    ps.infer(NETWORK, BITS, "numba", path="spmm", checkpoint=tmp_path)
    path = tmp_path / name
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 0x55
    path.write_bytes({"flip": content, "truncate": content[:-9], "empty": b""}[damage])
    with pytest.raises(ps.InputError, match=r"batch-0+\.npz: is damaged .*remove it"):
        ps.infer(NETWORK, BITS, "numba", path="spmm", checkpoint=tmp_path)
    (tmp_path / "batch-000000000000.npz").unlink()
    result = ps.infer(NETWORK, BITS, "numba", path="spmm", checkpoint=tmp_path)
    assert result.resumed_inputs == 0


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    script = f"""
import resource, signal, portable_spdnn as ps
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
network, bits = ps.radixnet(64, 9, seed=2, bias=-0.1), ps.digits_features(64)
plan = ps.plan(network, "scipy", path="spmm")
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
try:
    plan.run(bits, checkpoint={str(tmp_path / "kept")!r})
except ps.InputError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "cannot be written" in done.stdout, done.stderr
    assert os.listdir(tmp_path / "kept") == ["checkpoint.json"]
    assert json.loads((tmp_path / "kept" / "checkpoint.json").read_text())["inputs"] == 1797
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 2000


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_fingerprints_of_parts_add_up(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    inputs = data.draw(st.integers(0, 12))
    dense = (rng.random((inputs, 19)) < 0.3) * rng.random((inputs, 19))
    form = data.draw(st.sampled_from(["dense", "csr", "bits"]))
    features: Any = dense
    if form == "csr":
        features = sp.csr_array(dense)
    elif form == "bits":
        features = ps.PackedFeatures.from_dense(dense)
    whole = features_fingerprint(features)
    cut = data.draw(st.integers(0, inputs))
    parts = features_fingerprint(features[:cut]) + features_fingerprint(features[cut:], cut)
    assert parts % (1 << 64) == whole
    if inputs > 1:
        order = np.roll(np.arange(inputs), 1)
        if not np.array_equal(dense[order], dense) and form != "bits":
            assert features_fingerprint(features[order]) != whole
