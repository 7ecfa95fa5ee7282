"""The whole-network plan of cupy: lists of inputs, streams, precision, reports."""

from __future__ import annotations

import gc
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from command_line import Cli
from cuda_emulation.device_at_hand import ON_GPU, needs_device
from cuda_emulation.emulated_backend import EmulatedCupyBackend, cache_folder
from cuda_emulation.emulated_device import EmulatedDevice
from hypothesis import given, settings
from hypothesis import strategies as st

import portable_spdnn as ps
from portable_spdnn.errors import InputError, NumericalError
from portable_spdnn.graphchallenge.categories import read_categories
from portable_spdnn.kernel_model import Limits
from portable_spdnn.plans.device_report import DeviceReport, merged
from portable_spdnn.plans.machine_limits import known_limits, limits_of
from portable_spdnn.plans.planner import make_plan
from portable_spdnn.testing import oracle
from portable_spdnn_gpu.cupy_backend import CupyBackend
from portable_spdnn_gpu.network.weights import steps_that_fit
from portable_spdnn_gpu.spmm import tuning
from portable_spdnn_gpu.spmm.output_rows import OutputRows
from portable_spdnn_gpu.spmm.tuning import TunedStaged, tune_staged

pytestmark = needs_device


@pytest.fixture(scope="module")
def backend() -> CupyBackend:
    return CupyBackend() if ON_GPU else EmulatedCupyBackend()


def network_of(layers: int, neurons: int = 60, seed: int = 0, bias: float = -0.2) -> ps.Network:
    """Return layers in which inputs become inactive one after the other."""
    rng = np.random.default_rng(seed)
    weights = [
        sp.csr_array(
            np.where(rng.random((neurons, neurons)) < 0.1, rng.uniform(0, 0.9, (neurons,) * 2), 0)
        )
        for _ in range(layers)
    ]
    return ps.Network([ps.Layer(W, bias) for W in weights], y_max=4.0)


def binary(inputs: int, neurons: int = 60, seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.random((inputs, neurons)) < rng.random((inputs, 1)) * 0.6


@pytest.fixture(scope="module")
def official(shared: Path) -> tuple[Any, ...]:
    """The network of 1,024 neurons, its inputs and their categories."""
    data = shared / "graphchallenge"
    truth = read_categories(data / "neuron1024-l120-categories.tsv")
    return ps.load_network(data), ps.load_inputs(data, 1024), truth


@pytest.mark.parametrize("options", [
    {}, {"kernel": "csr"}, {"kernel": "staged"}, {"kernel": "clustered"}, {"profile": True},
    {"kernel": "resident"}, {"storage": "float16"}, {"kernel": "resident", "storage": "float16"},
    {"dtype": np.float64}, {"exact_passes": "all"},
], ids=str)  # fmt: skip
def test_the_official_network_gives_the_official_categories(
    backend: CupyBackend, official: tuple[Any, ...], options: dict[str, Any]
) -> None:
    network, inputs, truth = official
    result = ps.infer(network, inputs, backend, **options)
    np.testing.assert_array_equal(result.categories, truth[truth < result.inputs])


def test_every_official_layer_of_a_block_by_itself(backend: CupyBackend, shared: Path) -> None:
    network = ps.load_network(shared / "graphchallenge", layers=20)
    rng = np.random.default_rng(0)
    Y = np.where(rng.random((24, 1024)) < 0.3, rng.uniform(0, 32, (24, 1024)), 0)
    for layer in network.layers[6:14]:  # across the end of a block of six
        one = ps.Network([layer], network.y_max)
        expected = oracle.layer(layer.csr(), Y, np.array(layer.bias), 32.0)
        for kernel in ("clustered", "csr", "staged"):
            found = ps.infer(one, Y, backend, dtype=np.float64, kernel=kernel)
            np.testing.assert_allclose(found.scores, expected, rtol=1e-12, atol=1e-12)


def test_one_recording_serves_batches_of_any_size(backend: CupyBackend) -> None:
    network = network_of(6)
    plan = make_plan(backend, network, ps.PlanOptions(batch_size=70))
    for inputs in (0, 1, 69, 70, 71, 200):
        Y = binary(inputs)
        categories, scores, active = oracle.infer(network, Y)
        result = plan.run(Y)
        assert result.categories.tolist() == categories
        np.testing.assert_allclose(result.scores, scores, rtol=1e-4, atol=1e-5)
        assert [record.alive_inputs for record in result.records] == active


def test_dead_inputs_leave_on_the_device(backend: CupyBackend) -> None:
    network, Y = network_of(8), binary(150)
    active = np.array(oracle.infer(network, Y)[2])
    assert active[-1] < active[0] < 150
    dropped = ps.infer(network, Y, backend)
    before = np.concatenate(([np.count_nonzero(Y.any(axis=1))], active[:-1]))
    edges = [layer.nnz for layer in network]
    # Some inactive inputs may stay: fewer than a sixteenth of those that a layer computes.
    assert before @ edges <= dropped.executed_edges <= 16 / 15 * (before @ edges) + sum(edges)
    kept = ps.infer(network, Y, backend, keep_dead_inputs=True)
    assert kept.executed_edges == 150 * network.edges
    np.testing.assert_array_equal(kept.categories, dropped.categories)


def test_nothing_is_launched_for_lists_but_the_first(backend: CupyBackend) -> None:
    if ON_GPU:
        pytest.skip("the emulated device tells its launches")
    network, Y = network_of(8), binary(150)
    for kernel in ("clustered", "csr", "resident"):
        plan = make_plan(backend, network, ps.PlanOptions(kernel=kernel))
        for _ in range(2):  # counters of blocks begin anew
            backend.cuda.launches.clear()  # type: ignore[attr-defined]
            assert plan.run(Y).categories.tolist() == oracle.infer(network, Y)[0]
            assert backend.cuda.launches.count("list_active") == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("kernel", ["auto", "csr", "staged", "resident"])
def test_layers_without_outputs(backend: CupyBackend, kernel: str) -> None:
    rng = np.random.default_rng(0)
    shapes = {(9, 7): -1.0, (7, 0): 0.0, (0, 5): 1.0, (5, 3): 0.0}
    layers = [ps.Layer(rng.random(shape), bias) for shape, bias in shapes.items()]
    network, Y = ps.Network(layers), binary(21, 9)
    categories, scores, active = oracle.infer(network, Y)
    result = ps.infer(network, Y, backend, kernel=kernel)
    assert result.categories.tolist() == categories
    np.testing.assert_allclose(result.scores, scores, rtol=1e-5)
    assert [record.alive_inputs for record in result.records] == active


@pytest.mark.parametrize("kernel", ["auto", "clustered", "csr", "resident"])
@pytest.mark.parametrize("bias", [-0.2, 0.3])
def test_outputs_without_edges_beside_clusters(
    backend: CupyBackend, kernel: str, bias: float
) -> None:
    rng = np.random.default_rng(4)
    layers = []
    for inputs, outputs in ((60, 70), (70, 37), (37, 48)):
        kinds = rng.random((inputs, outputs // 16)) < 0.3
        pattern = np.pad(np.repeat(kinds, 16, axis=1), ((0, 0), (0, outputs % 16)))
        W = sp.csr_array(pattern[:, rng.permutation(outputs)].astype(np.float32))
        weights = np.broadcast_to(np.float32(0.125), W.nnz)
        layers.append(ps.Layer.from_csr(W.indptr, W.indices, weights, W.shape, bias))
        assert OutputRows.of_layer(layers[-1], np.float32).equal is not None
    network, Y = ps.Network(layers, 4.0), binary(21, 60)
    categories, scores, _ = oracle.infer(network, Y)
    result = ps.infer(network, Y, backend, kernel=kernel)
    assert result.categories.tolist() == categories
    np.testing.assert_allclose(result.scores, scores, rtol=1e-5, atol=1e-6)


def test_batches_fit_the_memory_of_the_device(backend: CupyBackend) -> None:
    if ON_GPU:
        pytest.skip("the memory of the emulated device is known")
    wide = ps.Network([ps.Layer(sp.csr_array((1 << 17, 1 << 17)))])
    before = backend.cuda.free_memory()
    plan = make_plan(backend, wide)
    assert 1 <= plan.batch_size <= before / (8 << 17)
    assert backend.cuda.free_memory() > before / 16
    features = np.zeros((2 * plan.batch_size + 1, 1 << 17), bool)
    assert ps.infer(wide, features, backend).categories.size == 0
    del plan
    with pytest.raises(InputError, match=r"16 inputs of this network, the fewest .* 16 MiB"):
        ps.infer(wide, np.zeros((1, 1 << 17)), backend, device_memory="17MiB")


@pytest.mark.parametrize("copies_late", [True, False])
@pytest.mark.parametrize("storage", ["same", "float16"])
def test_weights_beyond_the_limit_are_copied_while_others_run(
    copies_late: bool, storage: str
) -> None:
    class Ordered(EmulatedCupyBackend):
        def open_device(self, number: int | None) -> EmulatedDevice:
            late = {"copies_late": copies_late, "launches_late": not copies_late}
            return EmulatedDevice(cache_folder(), **late)

    device = CupyBackend() if ON_GPU else Ordered()
    network = network_of(9)
    options = ps.PlanOptions(storage=storage, device_memory=30_000, batch_size=40)
    plan = make_plan(device, network, options)
    # Two batches: the first layers of the second wait for the last of the first.
    Y = binary(75)
    result = plan.run(Y)
    categories, scores, active = oracle.infer(network, Y)
    assert result.categories.tolist() == categories
    rtol = 1e-4 if storage == "same" else 1e-2
    np.testing.assert_allclose(result.scores, scores, rtol=rtol, atol=rtol)
    assert [record.alive_inputs for record in result.records] == active
    assert "of 9 layers" in plan.describe()
    assert "copied while others run" in plan.describe()
    report = result.device_report
    assert report is not None
    assert report.weight_copy_seconds > 0
    assert 0 <= (report.hidden_copies or 0) <= 1


def test_a_limit_that_two_layers_exceed(backend: CupyBackend) -> None:
    with pytest.raises(InputError, match=r"do not hold two layers of .* KiB"):
        ps.infer(network_of(3), binary(4), backend, device_memory=4000)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.integers(1, 400))
def test_as_many_layers_stay_as_fit(sizes: list[int], limit: int) -> None:
    def needed(on_device: int) -> int:
        return sum(sizes[:on_device]) + 2 * max(sizes[on_device:], default=0)

    fitting = [n for n in range(len(sizes) + 1) if needed(n) <= limit]
    if not fitting:
        with pytest.raises(InputError, match="do not hold two layers"):
            steps_that_fit(sizes, limit)
    else:
        assert steps_that_fit(sizes, limit) == fitting[-1]


def test_half_precision_states_its_error_and_keeps_to_it(backend: CupyBackend) -> None:
    network, Y = network_of(4), binary(60)
    plan = make_plan(backend, network, ps.PlanOptions(storage="float16"))
    assert "within 2^-11" in plan.describe()
    scores = plan.run(Y).scores
    exact = oracle.infer(network, Y)[1]
    # Each layer rounds weights and features once: (1 + 2^-11)^2 a layer, on sums of positives,
    # to which the bias, exact, is added: relative to the sums before it.
    bound = ((1 + 2**-11) ** (2 * 4) - 1) * (np.abs(exact) + 4 * 0.2 * 5)
    assert (np.abs(scores - exact) <= bound).all()
    assert np.abs(scores - exact).max() > 0


def test_numbers_beyond_half_precision_are_errors(backend: CupyBackend) -> None:
    grows = ps.Network([ps.Layer(sp.csr_array(np.full((1, 1), 300.0)))] * 3)
    with pytest.raises(NumericalError, match="layer 2: features left the range of half"):
        ps.infer(grows, np.ones((2, 1)), backend, storage="float16")
    np.testing.assert_allclose(ps.infer(grows, np.ones((2, 1)), backend).scores, 300.0**3)
    large = ps.Network([ps.Layer(sp.csr_array(np.full((1, 1), 1e6)))])
    with pytest.raises(InputError, match=r"a weight is 1e.06, and 65504 is the largest"):
        ps.infer(large, np.ones((1, 1)), backend, storage="float16")
    one = ps.Network([ps.Layer(sp.csr_array(np.ones((1, 1))))], y_max=2.0)
    for features in (np.full((2, 1), 7e4), sp.csr_array(np.full((2, 1), 7e4))):
        with pytest.raises(InputError, match="features have 70000, and 65504 is the largest"):
            ps.infer(one, features, backend, storage="float16")
    held = make_plan(backend, network_of(3), ps.PlanOptions(kernel="clustered"))
    assert [step.packed.memory.size for step in held.steps] == [0] * 3  # type: ignore[attr-defined]


def test_nan_matters_where_it_reaches_the_scores(backend: CupyBackend) -> None:
    grows = sp.csr_array(np.full((2, 2), 3e38, np.float32))
    overflowing = [ps.Layer(grows), ps.Layer(sp.csr_array(np.array([[1.0, 0], [-1, 0]])))]
    with pytest.raises(NumericalError, match="became NaN"):
        ps.infer(ps.Network(overflowing), np.ones((3, 2)), backend)
    unseen = [*overflowing, ps.Layer(sp.csr_array(np.array([[0, 0], [0, 1.0]])))]
    expected = ps.infer(ps.Network(unseen), np.ones((3, 2)), "scipy", path="spmm")
    found = ps.infer(ps.Network(unseen), np.ones((3, 2)), backend)
    np.testing.assert_array_equal(found.categories, expected.categories)


def test_scores_stay_on_the_device_until_asked_for(backend: CupyBackend) -> None:
    network, Y = network_of(3), binary(90)
    result = make_plan(backend, network, ps.PlanOptions(batch_size=30)).run(Y)
    rows = [batch.output.rows for batch in result._batches]
    assert any(row.on_device for row in rows if not isinstance(row, np.ndarray))
    expected = oracle.infer(network, Y)[1]
    np.testing.assert_allclose(result.scores, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(result.scores, expected, rtol=1e-4, atol=1e-5)


def test_profile_times_every_layer(backend: CupyBackend) -> None:
    network, Y = network_of(5), binary(40)
    plain, timed = (ps.infer(network, Y, backend, profile=profile) for profile in (False, True))
    assert {record.seconds for record in plain.records} == {None}
    assert all(record.seconds > 0 for record in timed.records if record.seconds is not None)
    assert len([record for record in timed.records if record.seconds is not None]) == 5
    for result in (plain, timed):
        report = result.device_report
        assert report is not None
        assert report.kernel_seconds > 0
        assert report.copy_seconds > 0
        assert report.peak_memory > 0
        assert report.hidden_copies is None
    assert plain.device_report is not None
    assert plain.device_report.gap_seconds is None
    assert timed.device_report is not None
    assert timed.device_report.gap_seconds is not None


def test_plans_share_their_buffers_and_give_them_back(backend: CupyBackend) -> None:
    network = network_of(2)
    plans = [make_plan(backend, network), make_plan(backend, network_of(3, neurons=20))]
    assert plans[0].features is plans[1].features  # type: ignore[attr-defined]
    for plan, neurons in zip(plans, (60, 20), strict=True):
        Y = binary(17, neurons)
        assert plan.run(Y).categories.tolist() == oracle.infer(plan.network, Y)[0]
    other = make_plan(backend, network, ps.PlanOptions(np.float64))
    assert other.features is not plans[0].features  # type: ignore[attr-defined]
    del plans, plan
    assert [precision.sums for precision in backend.features] == [np.float64]


def test_sparse_features_take_the_layer_loop(backend: CupyBackend) -> None:
    plan = make_plan(backend, network_of(2), ps.PlanOptions(path="spgemm"))
    assert plan.describe().startswith("layer loop on cupy")
    with pytest.raises(InputError, match="path spgemm takes no option kernel"):
        make_plan(backend, network_of(2), ps.PlanOptions(path="spgemm", kernel="csr"))
    with pytest.raises(InputError, match=r"kernel 'fast' is none of backend cupy: .*clustered"):
        make_plan(backend, network_of(2), ps.PlanOptions(kernel="fast"))


def drawn_layers(draw: Callable[..., Any], most: int) -> list[ps.Layer]:
    """Return up to `most` layers of any widths, some with rows that share all their inputs."""
    widths = draw(st.lists(st.integers(1, 40), min_size=2, max_size=most + 1))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    layers = []
    for before, after in itertools.pairwise(widths):
        values = np.round(8 * rng.normal(size=(before, after))) / 8
        dense = np.where(rng.random((before, after)) < 0.3, values, 0)
        shared = np.repeat(dense[:, :1], after, axis=1) if draw(st.booleans()) else dense
        layers.append(ps.Layer(sp.csr_array(shared), draw(st.sampled_from([-0.3, 0.0, 0.2]))))
    return layers


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_network_gives_what_the_oracle_gives(backend: CupyBackend, data: st.DataObject) -> None:
    draw = data.draw
    layers = drawn_layers(draw, most=4)
    network = ps.Network(layers, y_max=draw(st.sampled_from([None, 1.5])))
    Y = binary(draw(st.integers(0, 40)), network.neurons)
    options = ps.PlanOptions(
        np.float64,
        batch_size=draw(st.sampled_from([None, 1, 13])),
        kernel=draw(st.sampled_from(["auto", "csr", "staged", "clustered"])),
        keep_dead_inputs=draw(st.booleans()),
        device_memory=draw(st.sampled_from([None, 200_000])),
    )
    categories, scores, active = oracle.infer(network, Y)
    result = make_plan(backend, network, options).run(Y)
    assert result.categories.tolist() == categories
    np.testing.assert_allclose(result.scores, scores, rtol=1e-9, atol=1e-9)
    assert [record.alive_inputs for record in result.records] == active


def test_the_command_reports_where_the_time_went(
    backend: CupyBackend, cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    limits = Limits(flops=1e12, l1=1e13, l2=4e12, l3=2e12, memory=2e12)
    monkeypatch.setattr("portable_spdnn.registry.get_backend", lambda *_: backend)
    monkeypatch.setattr("portable_spdnn.plans.machine_limits.limits_of", lambda _: limits)
    done = cli(
        "run", "--neurons", 1024, "--layers", 14, "--first-inputs", 40, "--profile",
        "--kernel", "clustered", "--device-memory", "400KiB", "--json", tmp_path / "run.json",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "between them" in done.out
    assert "of it hidden" in done.out
    assert "slowest layers" in done.out
    record = json.loads((tmp_path / "run.json").read_text())
    report = record["device_report"]
    assert report["kernel_seconds"] > 0
    assert 0 <= report["hidden_copies"] <= 1
    layers = record["layers_beside_limits"]
    assert len(layers) == 14
    assert {layer["binding"] for layer in layers} <= {"flops", "l1", "l2", "memory"}
    seconds = [layer["seconds"] for layer in layers]
    assert seconds == record["seconds_per_layer"]


def test_reports_of_batches_add_up() -> None:
    one = DeviceReport(1.0, 0.5, 2.0, 0.5, 0.25, 7)
    both = merged([one, DeviceReport(2.0, 1.0, 2.0, 2.5, 0.5, 5)])
    assert both == DeviceReport(3.0, 1.5, 4.0, 3.0, 0.75, 7)
    assert both.hidden_copies == 0.25
    assert merged([one, None]) is None
    assert merged([]) is None
    unprofiled = merged([one, DeviceReport(1.0, 1.0)])
    assert unprofiled is not None
    assert unprofiled.gap_seconds is None
    assert DeviceReport(1.0, 1.0).hidden_copies is None


def test_the_challenge_takes_the_options_of_devices(
    backend: CupyBackend, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("portable_spdnn.registry.get_backend", lambda *_: backend)
    done = cli(
        "challenge", "--sizes", 1024, "--layers", 120, "--first-inputs", 20, "--json", "-",
        "--storage", "float16", "--kernel", "clustered", "--device-memory", "8MiB",
    )  # fmt: skip
    assert done.code == 0, done.err
    record = json.loads(done.out)
    assert (record["storage"], record["kernel"]) == ("float16", "clustered")
    assert record["device_memory"] == 8 << 20
    assert record["networks"][0]["state"] == "done"


# -- steps ---------------------------------------------------------------------------------------


class Large(EmulatedCupyBackend):
    """As large as an H200, which the choices depend on."""

    def open_device(self, number: int | None) -> EmulatedDevice:
        device = EmulatedDevice(cache_folder(), number=number)
        device.multiprocessors, device.l2_bytes = 132, 50 << 20
        return device


def test_narrow_networks_run_many_layers_in_a_launch(shared: Path) -> None:
    if ON_GPU:
        pytest.skip("what is chosen depends on the device")
    data, backend = shared / "graphchallenge", Large()
    network, inputs = ps.load_network(data), ps.load_inputs(data, 1024)
    plan = make_plan(backend, network, ps.PlanOptions(batch_size=1200))
    told = plan.describe()
    assert "layers 1 to 7: clustered, 94 % of the loads shared (least of csr" in told
    assert "layers 8 to 120: persistent kernel, 4 fused segments" in told
    steps = [line for line in told.splitlines() if line.startswith("layers ")]
    assert [line.endswith(" inputs, estimated)") for line in steps] == [True, True]
    backend.cuda.launches.clear()  # type: ignore[attr-defined]
    result = plan.run(inputs)
    assert backend.cuda.launches.count("persistent_layers") == 4  # type: ignore[attr-defined]
    np.testing.assert_array_equal(
        result.categories, read_categories(data / "neuron1024-l120-categories.tsv")[:19]
    )
    # Rounding aside, and no more inactive inputs than may stay, as layer by layer.
    alone = ps.infer(network, inputs, backend, kernel="clustered", batch_size=1200)
    np.testing.assert_allclose(result.scores, alone.scores, rtol=1e-5, atol=1e-5)
    active = [record.alive_inputs for record in result.records]
    assert active == [record.alive_inputs for record in alone.records]
    assert alone.executed_edges <= result.executed_edges <= 1.1 * alone.executed_edges


def test_equal_weights_make_segments_of_4096_neurons_pay() -> None:
    if ON_GPU:
        pytest.skip("what is chosen depends on the device")
    network, options = ps.radixnet(4096, 9), ps.PlanOptions(expected_inputs=60_000)
    told = make_plan(Large(), network, options).describe()
    fused = "layers 8 to 9: persistent kernel, 1 fused segment, one weight for each layer, "
    assert fused in told
    # One layer of other weights: all would be read again for each tile of inputs.
    W = network.layers[8].csr()
    W.data[::2] *= 2
    mixed = ps.Network([*network.layers[:8], ps.Layer(W, network.layers[8].bias)], network.y_max)
    told = make_plan(Large(), mixed, options).describe()
    assert "persistent" not in told
    assert "layers 1 to 9: clustered" in told


@pytest.mark.parametrize("kernel", ["auto", "resident", "clustered"])
def test_whether_weights_are_equal_is_asked_of_no_matrix(
    backend: CupyBackend, monkeypatch: pytest.MonkeyPatch, kernel: str
) -> None:
    network = ps.radixnet(64, 2)

    def fail(array: np.ndarray) -> None:
        raise AssertionError("layers know it")

    monkeypatch.setattr("portable_spdnn_gpu.spmm.output_rows.common_value", fail)
    plan = make_plan(backend, network, ps.PlanOptions(kernel=kernel))
    assert all(step.packed.constant for step in plan.steps)  # type: ignore[attr-defined]


@pytest.mark.parametrize("storage", ["same", "float16"])
def test_segments_of_equal_and_of_other_weights(backend: CupyBackend, storage: str) -> None:
    equal, others, Y = ps.radixnet(64, 12), network_of(1, 64), binary(50, 64)
    layers = [*equal.layers[:9], *others.layers, *equal.layers[9:]]
    network = ps.Network(layers, equal.y_max)
    options = ps.PlanOptions(kernel="resident", storage=storage, keep_dead_inputs=True)
    plan = make_plan(backend, network, options)
    assert [step.packed.constant for step in plan.steps] == [True, False]  # type: ignore[attr-defined]
    assert "2 fused segments, 1 of them of one weight for each layer" in plan.describe()
    result, (categories, scores, _) = plan.run(Y), oracle.infer(network, Y)
    assert result.categories.tolist() == categories
    tolerance = 1e-5 if storage == "same" else 1e-2
    np.testing.assert_allclose(result.scores, scores, rtol=tolerance, atol=tolerance)


def test_wide_or_exact_networks_run_layer_by_layer() -> None:
    if ON_GPU:
        pytest.skip("what is chosen depends on the device")
    wide = make_plan(Large(), ps.radixnet(16384, 9), ps.PlanOptions(batch_size=64))
    assert "layers 1 to 9: clustered" in wide.describe()
    double = make_plan(Large(), network_of(12), ps.PlanOptions(np.float64))
    assert "persistent" not in double.describe()


def test_segments_that_cannot_be_are_errors(backend: CupyBackend) -> None:
    with pytest.raises(InputError, match="'resident' computes in float32, not in float64; take"):
        make_plan(backend, network_of(3), ps.PlanOptions(np.float64, kernel="resident"))
    with pytest.raises(InputError, match="kernel 'resident': 16384 neurons in float32 do not fit"):
        make_plan(backend, ps.radixnet(16384, 2), ps.PlanOptions(kernel="resident"))
    with pytest.raises(InputError, match="kernel 'resident': the weights do not fit the device"):
        make_plan(
            backend,
            network_of(9),
            ps.PlanOptions(kernel="resident", device_memory=30_000, batch_size=40),
        )


def test_layers_of_segments_share_their_time(backend: CupyBackend) -> None:
    network, Y = network_of(12), binary(50)
    result = ps.infer(network, Y, backend, kernel="resident", profile=True)
    assert result.device_report is not None
    seconds = [record.seconds or 0.0 for record in result.records]
    assert min(seconds) > 0
    assert sum(seconds) <= result.device_report.kernel_seconds * 1.001
    models = make_plan(backend, network, ps.PlanOptions(kernel="resident")).layer_models([50] * 12)
    assert models is not None
    assert len(models) == 12
    assert all(model.bytes_per_edge["l2"] > 0 for model in models)


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_any_segment_gives_what_the_oracle_gives(backend: CupyBackend, data: st.DataObject) -> None:
    draw = data.draw
    layers = drawn_layers(draw, most=11)
    network = ps.Network(layers, y_max=1.5)
    Y = binary(draw(st.integers(0, 40)), network.neurons)
    options = ps.PlanOptions(
        kernel="resident",
        batch_size=draw(st.sampled_from([None, 1, 13])),
        keep_dead_inputs=draw(st.booleans()),
    )
    scores = oracle.infer(network, Y)[1]
    result = make_plan(backend, network, options).run(Y)
    np.testing.assert_allclose(result.scores, scores, rtol=1e-3, atol=1e-4)
    if options.keep_dead_inputs:
        assert result.executed_edges == len(Y) * network.edges


def test_staged_tiles_are_measured_once_for_a_kind_of_layers(
    backend: CupyBackend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measured: list[int] = []

    def tune(device: Any, A: Any, precision: Any, versions: Any) -> TunedStaged:
        measured.append(A.nnz)
        return tune_staged(device, A, precision, versions)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tuning, "INPUTS", 1)
    monkeypatch.setattr("portable_spdnn_gpu.network.plan.tune_staged", tune)
    monkeypatch.setattr(type(backend), "tunes", True)
    network, Y = ps.radixnet(64, 3), binary(30, 64)
    for origin in ("measured", "from disk"):
        plan = make_plan(backend, network, ps.PlanOptions(kernel="staged"))
        assert "staged_spmm for " in plan.describe()
        assert f"({origin})" in plan.describe()
        assert plan.run(Y).categories.tolist() == oracle.infer(network, Y)[0]
    assert measured == [network.layers[0].nnz] * 2


def test_estimates_take_limits_that_were_measured(
    backend: CupyBackend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert known_limits(backend) is None
    slow = Limits(flops=1e6, l1=1e6, l2=1e6, l3=1e6, memory=1e6)
    monkeypatch.setattr(type(backend), "measure_limits", lambda self: slow)
    assert limits_of(backend) == slow
    assert known_limits(backend) == slow
    told = make_plan(backend, ps.radixnet(64, 1), ps.PlanOptions(batch_size=100)).describe()
    seconds = float(re.search(r"clustered ([\d.e+]+) us", told)[1]) / 1e6  # type: ignore[index]
    assert seconds > 2 * 64 * 32 * 100 / 1e6


def test_memory_is_freed_with_a_plan_and_its_result(backend: CupyBackend) -> None:
    if ON_GPU:
        pytest.skip("the library's pool keeps memory")
    gc.collect()
    gc.disable()
    try:
        before = backend.cuda.free_memory()
        for options in ({}, {"profile": True}, {"kernel": "resident"}, {"device_memory": 30_000}):
            plan = make_plan(backend, network_of(9), ps.PlanOptions(batch_size=40, **options))
            result = plan.run(binary(75))
            assert backend.cuda.free_memory() < before
            del plan, result
            assert backend.cuda.free_memory() == before
    finally:
        gc.enable()


def test_estimates_take_the_expected_survival(backend: CupyBackend) -> None:
    network, Y = network_of(3), binary(35)
    options = {"expected_inputs": 1000, "expected_survival": [1, 0.25, 0.004]}
    plan = make_plan(backend, network, ps.PlanOptions(**options))
    said = [int(re.search(r"for (\d+) inputs", step.reason)[1]) for step in plan.steps]
    assert said == [1000, 250, 4]
    assert plan.run(Y).categories.tolist() == oracle.infer(network, Y)[0]
    kept = ps.PlanOptions(**options, keep_dead_inputs=True)
    for step in make_plan(backend, network, kept).steps:
        assert "for 1000 inputs" in step.reason


def test_buffers_are_as_large_as_the_inputs_to_come(backend: CupyBackend) -> None:
    network = network_of(2)
    sizes = {
        expected: make_plan(
            backend, network, ps.PlanOptions(np.float64, expected_inputs=expected)
        ).batch_size
        for expected in (0, 5, 300, None)
    }
    assert (sizes[0], sizes[5], sizes[300]) == (1, 5, 300)
    assert sizes[None] > 300
    # A hint, no limit.
    plan = make_plan(backend, network, ps.PlanOptions(expected_inputs=10))
    Y = binary(35)
    assert plan.run(Y).categories.tolist() == oracle.infer(network, Y)[0]


def test_the_peak_of_memory_is_of_each_run(backend: CupyBackend) -> None:
    if ON_GPU:
        pytest.skip("the library's pool keeps memory")
    peaks = []
    for neurons in (256, 64):
        plan = make_plan(backend, ps.radixnet(neurons, 2), ps.PlanOptions(batch_size=100))
        report = plan.run(binary(100, neurons)).device_report
        assert report is not None
        peaks.append(report.peak_memory)
        del plan, report
        gc.collect()
    assert 2 * 64 * 100 * 4 < peaks[1] < peaks[0]
