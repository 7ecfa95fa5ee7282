"""Plans under a memory budget: the same answers, within the budget, whatever the blocks."""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from tile_settings import set_tile_costs

import portable_spdnn as ps
from portable_spdnn.plans.batch import BatchOutput
from portable_spdnn.plans.layer_loop import LayerLoopPlan
from portable_spdnn.plans.memory_budget import Budget, running_bytes
from portable_spdnn.plans.planner import make_plan
from portable_spdnn.plans.streamed import Piece, StreamedPlan
from portable_spdnn.testing import oracle
from portable_spdnn.workloads.streamed_network import GeneratedLayers, StreamedNetwork

GIB = 1 << 30
BACKENDS = [info.name for info in ps.backends() if info.availability.available]


@pytest.fixture
def budget(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set what a plan finds to share out, in place of what is free."""

    def share(weights: int, pool: int, piece: int) -> None:
        given = Budget(GIB, weights, pool, piece, 4)
        monkeypatch.setattr(Budget, "of", classmethod(lambda *arguments: given))

    return share


def random_network(rng: np.random.Generator, widths: list[int], highest_bias: float) -> ps.Network:
    layers = []
    for rows, columns in itertools.pairwise(widths):
        weights = sp.random_array((rows, columns), density=0.5, rng=rng)
        layers.append(ps.Layer(weights, rng.uniform(-0.5, highest_bias, columns)))
    return ps.Network(layers, 4.0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("path", "highest_bias"),
    [("auto", 0.0), ("spmm", 0.0), ("spgemm", 0.0), ("auto", 0.2), ("spmm", 0.2)],
)
def test_any_blocks_and_pieces_give_the_answer(
    backend: str, path: str, highest_bias: float, budget: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_tile_costs(monkeypatch, 64)
    rng = np.random.default_rng(3)
    network = random_network(rng, [20, 40, 7, 64, 64, 64, 26], highest_bias)
    Y = sp.random_array((150, 20), density=0.2, rng=rng).tocsr()
    bits = ps.PackedFeatures.from_dense(Y.toarray())
    of_values, of_bits = (oracle.infer(network, one) for one in (Y.toarray(), bits.dense()))
    row = 64 * 4
    for weights, pool, piece in [(1, 10 * row, 7), (10**5, 1000 * row, 40), (10**9, row, 1000)]:
        budget(weights, pool, piece)
        options = ps.PlanOptions(path=path, memory=GIB)
        plan = make_plan(ps.get_backend(backend), network, options)
        assert isinstance(plan, StreamedPlan)
        for features, expected in ((Y, of_values), (Y.toarray(), of_values), (bits, of_bits)):
            categories, _, alive = expected
            result = plan.run(features)
            assert result.categories.tolist() == categories
            assert [record.alive_inputs for record in result.records] == alive
            with pytest.raises(ps.InputError, match="scores were not kept"):
                _ = result.scores
        assert f"{len(plan.blocks)} block(s)" in plan.describe()


@pytest.mark.parametrize("passes", ["none", "merge-inputs", "fixed-point"])
def test_a_backend_may_leave_inactive_inputs_out_that_come_back_later(
    budget: Any, monkeypatch: pytest.MonkeyPatch, passes: str
) -> None:
    run = LayerLoopPlan.run_batch

    def without_inactive(plan: LayerLoopPlan, features: Any, report: Any) -> BatchOutput:
        output = run(plan, features, report)
        active = output.rows.any(axis=1)
        return replace(output, active=output.active[active], rows=output.rows[active])

    monkeypatch.setattr(LayerLoopPlan, "run_batch", without_inactive)
    dying = [ps.Layer(np.eye(6), -0.25)] * 12
    network = ps.Network([*dying, ps.Layer(np.eye(6), [0.5, 0, 0, 0, 0, 0]), *dying])
    Y = np.zeros((20, 6))
    Y[3], Y[5], Y[7, 2] = 1, 9, 5
    categories, _, alive = oracle.infer(network, Y)
    options = {} if passes != "none" else {"memory": GIB}
    budget(1, 10**4, 7)
    result = ps.infer(network, Y, "scipy", path="spmm", exact_passes=passes, **options)
    assert result.categories.tolist() == categories
    for record, expected in zip(result.records, alive, strict=True):
        assert record.alive_inputs in (None, expected)


def test_a_batch_takes_what_its_survivors_allow(budget: Any) -> None:
    network = StreamedNetwork(GeneratedLayers(1024, 30), 32.0)
    features = ps.digits_features(1024)[:600]
    expected = ps.infer(ps.radixnet(1024, 30), features, "scipy")
    budget(3 << 20, 150 * 4096, 25)
    plan = make_plan(ps.get_backend("numba"), network, ps.PlanOptions(memory=GIB))
    assert isinstance(plan, StreamedPlan)
    assert len(plan.blocks) > 3
    done = []
    batches = list(plan.finished_batches(features, progress=lambda now, all: done.append(now)))
    assert np.concatenate([batch.categories for batch in batches]).tolist() == (
        expected.categories.tolist()
    )
    # The first block ends before all that will die have died: some 150 inputs come through it.
    assert 3 <= len(batches) <= 7
    assert sum(batch.inputs for batch in batches) == 600
    assert done == sorted(done)
    assert done[-1] == 600 * 30


def test_pieces_of_both_forms_are_joined(budget: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    network = ps.Network([ps.Layer(np.eye(12))] * 4)
    Y = np.vstack((np.ones((12, 12)), np.eye(12), np.ones((12, 12))))
    budget(1, 1 << 20, 12)
    plan = make_plan(ps.get_backend("scipy"), network, ps.PlanOptions(memory=GIB))
    assert isinstance(plan, StreamedPlan)
    monkeypatch.setattr(plan._first, "break_even", 0.3)
    monkeypatch.setattr(plan, "_plan", lambda number, layers: plan._first)
    forms = []
    run = plan._first.run_batch

    def noted(features: Any, report: Any) -> Any:
        output = run(features, report)
        forms.append(sp.issparse(output.rows))
        return output

    monkeypatch.setattr(plan._first, "run_batch", noted)
    plan.budget = Budget(GIB, 1, 1 << 20, 36, 4)
    monkeypatch.setattr(plan, "_offered", lambda features, pool: (
        Piece(np.arange(at, at + 12), features[at : at + 12]) for at in (0, 12, 24)
    ))  # fmt: skip
    output = plan.run_batch(Y, lambda done: None)
    assert forms[:3] == [False, True, False]
    np.testing.assert_array_equal(output.rows, Y)
    assert output.active.tolist() == list(range(36))


def test_dead_batches_stop_reading(budget: Any) -> None:
    asked = []

    class Watched(GeneratedLayers):
        def read(self, number: int) -> ps.Layer:
            asked.append(number)
            return super().read(number)

    network = StreamedNetwork(Watched(64, 40), 32.0)
    budget(2 * 2 * running_bytes(network.source.statistics[0], 4), 1 << 20, 10)
    plan = make_plan(ps.get_backend("scipy"), network, ps.PlanOptions(memory=GIB))
    result = plan.run(sp.csr_array((30, 64)))
    assert result.categories.size == 0
    assert max(asked) < 4  # the block that was being read when the last input died


def test_an_error_while_reading_ahead_is_raised(budget: Any) -> None:
    class Broken(GeneratedLayers):
        def read(self, number: int) -> ps.Layer:
            if number == 5:
                raise ps.InputError("layer 6: damaged")
            return super().read(number)

    network = StreamedNetwork(Broken(64, 8), 32.0)
    budget(1, 1 << 20, 10)
    plan = make_plan(ps.get_backend("scipy"), network, ps.PlanOptions(memory=GIB))
    with pytest.raises(ps.InputError, match="layer 6: damaged"):
        plan.run(np.ones((3, 64)))


def test_memory_and_exact_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    network = StreamedNetwork(GeneratedLayers(1024, 40), 32.0)
    features = ps.digits_features(1024)[:300]
    expected = ps.infer(ps.radixnet(1024, 40), features, "scipy").categories
    for passes in ("all", "merge-inputs"):
        result = ps.infer(network, features, "numba", exact_passes=passes, memory=4 * GIB)
        np.testing.assert_array_equal(result.categories, expected)
    # No inputs wait between blocks: layers may take the room for that.
    given = Budget(GIB, 1, 1 << 27, 100, 4)
    monkeypatch.setattr(Budget, "of", classmethod(lambda *arguments: given))
    result = ps.infer(network, features, "numba", exact_passes="merge-inputs", memory=GIB)
    np.testing.assert_array_equal(result.categories, expected)
    given = Budget(GIB, 1 << 17, 1 << 17, 100, 4)
    for passes, advice in (
        ("merge-inputs", r"allow 1\.\d+ GiB, add merge-neurons, or leave"),
        ("merge-neurons", r"allow more than 1 GiB, or leave"),
    ):
        match = f"more than the 256 KiB for layers of 1 GiB; {advice}"
        with pytest.raises(ps.InputError, match=match):
            ps.infer(network, features, "numba", exact_passes=passes, memory=GIB)


def test_the_process_stays_within_its_budget() -> None:
    limit = 700 << 20
    script = f"""
import portable_spdnn as ps
from portable_spdnn.host import peak_resident_bytes
from portable_spdnn.workloads.streamed_network import GeneratedLayers, StreamedNetwork
network = StreamedNetwork(GeneratedLayers(16384, 240), 32.0)
features = ps.digits_features(16384)[:600]
result = ps.infer(network, features, "numba", memory={limit})
weights = sum(statistics.bytes for statistics in network.source.statistics)
print(peak_resident_bytes(), weights, result.categories.size, len(result.records))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    peak, weights, survivors, layers = map(int, done.stdout.split())
    assert peak < limit
    assert weights > 250 << 20
    assert survivors > 0
    assert layers == 240
