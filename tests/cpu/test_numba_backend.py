"""What the numba backend promises beyond the contract."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from tile_settings import set_tile_costs

import portable_spdnn as ps
from portable_spdnn.plans.planner import make_plan
from portable_spdnn.testing import oracle
from portable_spdnn_cpu.activations import Activation
from portable_spdnn_cpu.layout.packing import ABSENT, FIRST_VALUE, pack_layers
from portable_spdnn_cpu.machine.thread_pool import ThreadPool
from portable_spdnn_cpu.network import plan as depth_first

pytestmark = pytest.mark.usefixtures("depth_first_plans")


def thinning_network(neurons: int = 48, layers: int = 12) -> ps.Network:
    """Random weights and a bias under which inputs become inactive all along the way."""
    rng = np.random.default_rng(0)
    return ps.Network(
        [
            ps.Layer(
                np.where(
                    rng.random((neurons, neurons)) < 0.15, rng.random((neurons, neurons)) / 2, 0
                ),
                -0.22,
            )
            for _ in range(layers)
        ],
        y_max=4.0,
    )


def inputs_of_every_strength(count: int = 700, neurons: int = 48) -> Any:
    rng = np.random.default_rng(1)
    return (rng.random((count, neurons)) * rng.random((count, 1)) ** 2).astype(np.float32)


def test_tiles_are_spilled_and_regrouped_without_changing_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network, Y = thinning_network(), inputs_of_every_strength()
    set_tile_costs(monkeypatch, 32)
    stages: list[tuple[int, int]] = []
    launch = depth_first.launch

    def counted(*arguments: Any, **options: Any) -> Any:
        tiles = arguments[4]
        stages.append((tiles.layer, tiles.inputs.size))
        return launch(*arguments, **options)

    monkeypatch.setattr(depth_first, "launch", counted)
    result = ps.infer(network, Y, "numba")
    categories, scores, _ = oracle.infer(network, Y[:150])
    assert 0 < len(categories) < 150
    assert result.categories[result.categories < 150].tolist() == categories
    np.testing.assert_allclose(result.scores[:150], scores, rtol=1e-4, atol=1e-5)
    # The first launch is the plan's own, without inputs; then tiles stop and are regrouped.
    assert len({layer for layer, inputs in stages if inputs}) >= 3
    whole = ps.infer(network, Y, "numba", keep_dead_inputs=True)
    np.testing.assert_array_equal(whole.scores, result.scores)
    assert [r.alive_inputs for r in whole.records] == [r.alive_inputs for r in result.records]
    assert result.executed_edges < 0.7 * whole.executed_edges == 0.7 * 700 * network.edges


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_answers_are_the_same_to_the_bit(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the batch size, the threads and the width of tiles."""
    network, Y = thinning_network(), inputs_of_every_strength(300)
    first = ps.infer(network, Y, "numba", dtype=dtype, threads=1).scores
    for threads in (1, 2, 3):
        for batch_size in (1, 5, 64, 299, None):
            again = ps.infer(network, Y, "numba", dtype=dtype, threads=threads,
                             batch_size=batch_size)  # fmt: skip
            np.testing.assert_array_equal(again.scores, first)
    for width in (16, 48, 128, 320):
        set_tile_costs(monkeypatch, width, 64 // np.dtype(dtype).itemsize)
        again = ps.infer(network, Y, "numba", dtype=dtype, threads=2)
        np.testing.assert_array_equal(again.scores, first)


def test_planning_picks_the_leanest_form_of_each_layer() -> None:
    ring = np.eye(6) + np.roll(np.eye(6), 1, axis=0)
    ragged = np.triu(np.ones((6, 6)))
    values = np.arange(36.0).reshape(6, 6) + 1
    layers = [ps.Layer(m) for m in (ring / 2, ring * values, ragged, ragged * values)]
    table = pack_layers(
        layers, [Activation(1, 0.0, 50.0)] * 4, np.dtype(np.float32), ThreadPool(2)
    ).table
    assert (table[:, FIRST_VALUE] == ABSENT).tolist() == [True, False, True, False]
    network = ps.Network(layers, y_max=50)
    Y = np.random.default_rng(0).random((20, 6))
    np.testing.assert_allclose(
        ps.infer(network, Y, "numba").scores, oracle.infer(network, Y)[1], rtol=1e-5
    )
    said = make_plan(ps.get_backend("numba"), network).describe()
    assert "2 of 4 layers have one weight for all edges" in said
    assert "2 have a weight for each edge.\nColumn indices are stored in 16 bits" in said


def test_layers_too_wide_for_16_bit_indices() -> None:
    wide = (1 << 16) + 3
    rng = np.random.default_rng(0)
    rows = np.array([0, 1, (1 << 16) - 1, 1 << 16, wide - 1])
    spread = sp.csr_array((np.ones(5), (np.zeros(5, int), rows)), shape=(1, wide))
    gather = sp.csr_array((rng.random(5), (rows, np.arange(5))), shape=(wide, 5))
    network = ps.Network([ps.Layer(spread), ps.Layer(gather)])
    Y = np.array([[1.0], [0.0], [3.0]])
    np.testing.assert_allclose(
        ps.infer(network, Y, "numba").scores, (Y @ spread @ gather), rtol=1e-6
    )
    assert "stored in 32 bits" in make_plan(ps.get_backend("numba"), network).describe()


def test_a_worker_that_fails_or_an_interrupt_reaches_the_caller() -> None:
    workers = ThreadPool(3)
    stopped: list[bool] = []

    def fail(worker: int) -> None:
        if worker == 2:
            raise ZeroDivisionError("worker 2")

    with pytest.raises(ZeroDivisionError, match="worker 2"):
        workers.run(fail)
    plan = make_plan(ps.get_backend("numba", threads=2), thinning_network())

    def interrupt(done: int, total: int) -> None:
        stopped.append(True)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        plan.run(inputs_of_every_strength(), interrupt)
    assert stopped == [True]
    # The plan is as good as before.
    assert plan.run(inputs_of_every_strength()).inputs == 700


def test_numba_num_threads_is_honoured_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_NUM_THREADS", "3")
    assert ps.get_backend("numba").threads == 3
    assert ps.get_backend("numba", threads=2).threads == 2
    assert "3 threads" in ps.get_backend("numba").device
    monkeypatch.setenv("NUMBA_NUM_THREADS", "many")
    with pytest.raises(ps.InputError, match="NUMBA_NUM_THREADS is 'many'"):
        ps.get_backend("numba")


PLANNED = """
import gc
import numpy as np
from numba.core.dispatcher import Dispatcher
import portable_spdnn as ps
from portable_spdnn.plans.planner import make_plan

def kernels():
    found = [each for each in gc.get_objects() if isinstance(each, Dispatcher)]
    return {(id(each), signature) for each in found for signature in each.overloads}, sum(
        sum(each.stats.cache_misses.values()) for each in found
    )

network = ps.Network([ps.Layer(np.eye(8))] * 2)
plan = make_plan(ps.get_backend("numba"), network, ps.PlanOptions(np.float64))
planned, compiled = kernels()
assert plan.run(np.ones((2, 8))).categories.tolist() == [0, 1]
assert kernels()[0] == planned, "the run compiled kernels"
print(len(planned), compiled)
"""


def test_compilation_is_planning_and_its_result_is_kept() -> None:
    """A run compiles nothing, and a new process loads what the first plan left."""

    def kernels() -> list[int]:
        done = subprocess.run(
            [sys.executable, "-c", PLANNED], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return [int(word) for word in done.stdout.split()]

    kernels()
    loaded, compiled = kernels()
    assert loaded > 0
    assert compiled == 0


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("inputs", [1, 7, 8, 9, 100, 257])
def test_layer_keeps_the_order_of_its_features(order: Any, inputs: int) -> None:
    rng = np.random.default_rng(inputs)
    W = sp.random_array((45, 51), density=0.3, rng=rng, format="csr")
    Y = np.array(rng.random((inputs, 45)), order=order)
    out = ps.get_backend("numba", threads=2).layer(W, Y, -0.3, 1.0)
    assert out.flags[f"{order}_CONTIGUOUS"]
    np.testing.assert_allclose(out, oracle.layer(W, Y, np.full(51, -0.3), 1.0), atol=1e-12)


def test_concurrent_calls_do_not_share_buffers() -> None:
    from concurrent.futures import ThreadPoolExecutor

    rng = np.random.default_rng(0)
    backend = ps.get_backend("numba", threads=1)
    W = sp.random_array((256, 256), density=0.1, rng=rng, format="csr")
    features = [rng.random((200, 256)) for _ in range(8)]
    expected = [np.clip(Y @ W, 0, None) for Y in features]
    plan = make_plan(backend, ps.Network([ps.Layer(W)]), ps.PlanOptions(np.float64))
    with ThreadPoolExecutor(4) as pool:
        for got, want in zip(
            pool.map(lambda Y: backend.layer(W, Y), features * 5), expected * 5, strict=True
        ):
            np.testing.assert_allclose(got, want, rtol=1e-10)
        for result, want in zip(pool.map(plan.run, features), expected, strict=True):
            np.testing.assert_allclose(result.scores, want, rtol=1e-10)


def read_only(array: Any) -> Any:
    view = array.view()
    view.flags.writeable = False
    return view


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("path", ["spmm", "spgemm"])
def test_no_form_of_features_compiles_after_planning(path: str, dtype: Any) -> None:
    from portable_spdnn_cpu.spgemm import epilogue, gustavson
    from portable_spdnn_cpu.tiles import kernel as depth_first_tiles

    network, Y = thinning_network(), inputs_of_every_strength(50)
    csr = sp.csr_array(Y)
    frozen = sp.csr_array((read_only(csr.data), read_only(csr.indices), csr.indptr), csr.shape)
    long = sp.csr_array(
        (csr.data, csr.indices.astype(np.int64), csr.indptr.astype(np.int64)), csr.shape
    )
    forms = [
        Y, read_only(Y), np.asfortranarray(Y), Y.astype(np.float64), Y > 0, csr, frozen, long,
        csr.tocsc(), read_only(np.packbits(Y > 0, axis=1)), Y[:0], Y[:1],
    ]  # fmt: skip
    plan = make_plan(ps.get_backend("numba", threads=2), network, ps.PlanOptions(dtype, path))
    kernels = [
        depth_first_tiles.run_tiles, gustavson.add_rows, gustavson.count_products_of_rows,
        epilogue.gather_rows,
    ]  # fmt: skip
    before = [len(kernel.signatures) for kernel in kernels]
    for form in forms:
        plan.run(form)
    assert [len(kernel.signatures) for kernel in kernels] == before
