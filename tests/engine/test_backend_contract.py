"""The contract of `portable_spdnn.backend`, on every registered backend.

Run it on one with ``pytest tests/test_backend_contract.py -k NAME``. Of a backend that is not
available here, what can be checked is that it says why.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import oracle
import pytest
import scipy.sparse as sp
from cuda_emulation.emulated_backend import EmulatedCupyBackend
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import portable_spdnn as ps
from portable_spdnn.backend import OPTIONAL_OPERATIONS
from portable_spdnn.registry import backends

# The cupy backend runs on the emulated device where there is no GPU.
EMULATED = "cupy-emulated"
SURVEY = {info.name: info.availability for info in backends()}
DTYPES = [np.float32, np.float64]
# Rows, inner, columns: empty, single, around 8, 16, 32, 64 and 128, and of no round number.
SHAPES = [
    (1, 1, 1), (0, 5, 3), (5, 0, 3), (5, 3, 0), (1, 70, 1), (70, 1, 5), (9, 40, 7), (7, 9, 15),
    (8, 8, 16), (16, 17, 31), (17, 16, 32), (31, 33, 33), (33, 31, 48), (12, 64, 63), (13, 65, 64),
    (64, 12, 65), (20, 30, 127), (6, 5, 128), (5, 6, 129), (3, 4, 260),
]  # fmt: skip


RUNNABLE = [name for name in SURVEY if SURVEY[name].available]
if "cupy" not in RUNNABLE and EmulatedCupyBackend.availability().available:
    RUNNABLE.append(EMULATED)


@pytest.fixture(params=RUNNABLE, scope="module")
def backend(request: pytest.FixtureRequest) -> ps.Backend:
    if request.param == EMULATED:
        return EmulatedCupyBackend()
    return ps.get_backend(request.param)


@pytest.mark.parametrize("name", [name for name in SURVEY if not SURVEY[name].available])
def test_a_backend_that_cannot_run_says_why(name: str) -> None:
    with pytest.raises(ps.BackendUnavailable, match=rf"backend {name} is not available: \w+"):
        ps.get_backend(name)


def random_sparse(
    rng: np.random.Generator, shape: tuple[int, int], density: float, dtype: Any
) -> Any:
    """Return a csr_array with entries in -1 .. 1; at low density with empty rows and columns."""
    dense = np.where(rng.random(shape) < density, rng.uniform(-1, 1, shape), 0)
    return sp.csr_array(dense.astype(dtype))


def tolerance(dtype: Any) -> dict[str, float]:
    """Rounding of sums of up to 70 terms of order 1."""
    return {"rtol": 2e-5, "atol": 1e-5} if dtype == np.float32 else {"rtol": 1e-12, "atol": 1e-12}


def host(backend: ps.Backend, array: Any) -> Any:
    backend.synchronize()
    return backend.download(array)


def as_dense(array: Any) -> Any:
    return array.toarray() if sp.issparse(array) else array


# -- spmm ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("density", [0.05, 0.6])
def test_spmm(backend: ps.Backend, shape: Any, density: float, dtype: Any) -> None:
    rng = np.random.default_rng(1)
    A = random_sparse(rng, shape[:2], density, dtype)
    B = rng.uniform(-1, 1, shape[1:]).astype(dtype)
    C = host(backend, backend.spmm(A, B))
    assert C.shape == (shape[0], shape[2])
    assert C.dtype == dtype
    np.testing.assert_allclose(C, oracle.spmm(A, B), **tolerance(dtype))
    handle = backend.spmm_handle(A)
    for _ in range(2):
        again = host(backend, handle.multiply(B))
        assert again.dtype == dtype
        np.testing.assert_allclose(again, oracle.spmm(A, B), **tolerance(dtype))


def test_spmm_takes_any_layout_format_and_type(backend: ps.Backend) -> None:
    rng = np.random.default_rng(2)
    A = random_sparse(rng, (20, 30), 0.3, np.float32)
    B = rng.uniform(-1, 1, (60, 40)).astype(np.float32)
    for view in (B[::2, ::-1], np.asfortranarray(B[:30]), B[:30].astype(np.float64), B[5:35, 3:4]):
        C = host(backend, backend.spmm(A, view))
        assert C.dtype == view.dtype
        np.testing.assert_allclose(C, oracle.spmm(A, view), **tolerance(np.float32))
    integers = rng.integers(-3, 4, (30, 5))
    for same in (A.tocsc(), A.tocoo(), sp.csr_matrix(A)):
        C = host(backend, backend.spmm(same, integers))
        np.testing.assert_allclose(C, oracle.spmm(A, integers), **tolerance(np.float32))


def test_spmm_sums_duplicates_and_leaves_operands_alone(backend: ps.Backend) -> None:
    # Row 0 holds column 2 twice and out of order.
    A = sp.csr_array(
        (np.array([1.0, 2.0, 4.0], np.float32), np.array([2, 0, 2]), np.array([0, 3, 3])),
        shape=(2, 3),
    )
    B = np.arange(6, dtype=np.float32).reshape(3, 2)
    C = host(backend, backend.spmm(A, B))
    np.testing.assert_array_equal(C, [[2 * 0 + 5 * 4, 2 * 1 + 5 * 5], [0, 0]])
    assert A.indices.tolist() == [2, 0, 2]
    assert B.tolist() == [[0, 1], [2, 3], [4, 5]]


def test_spmm_propagates_nan_and_infinity_through_stored_entries_alone(
    backend: ps.Backend,
) -> None:
    A = sp.csr_array(np.array([[1.0, 0, 2], [0, 3, 0], [0, 0, 0]]))
    B = np.array([[np.nan, 1], [np.inf, -np.inf], [1, 1]])
    C = host(backend, backend.spmm(A, B))
    np.testing.assert_array_equal(C, [[np.nan, 3], [np.inf, -np.inf], [0, 0]])
    A.data[0] = np.nan
    np.testing.assert_array_equal(host(backend, backend.spmm(A, B))[0], [np.nan, np.nan])


def test_spmm_names_what_does_not_fit(backend: ps.Backend) -> None:
    A = sp.csr_array((4, 5), dtype=np.float32)
    with pytest.raises(ps.InputError, match=r"spmm: A is 4 x 5 but B has 6 rows"):
        backend.spmm(A, np.zeros((6, 2)))
    with pytest.raises(ps.InputError, match=r"spmm: A is ndarray; a scipy.sparse"):
        backend.spmm(np.zeros((4, 5)), np.zeros((5, 2)))
    with pytest.raises(ps.InputError, match=r"spmm: B has 1 dimension"):
        backend.spmm(A, np.zeros(5))
    with pytest.raises(ps.InputError, match=r"type complex128"):
        backend.spmm(A, np.zeros((5, 2), complex))


def test_spmm_handle_writes_where_it_is_told_and_names_what_does_not_fit(
    backend: ps.Backend,
) -> None:
    A = random_sparse(np.random.default_rng(5), (12, 16), 0.3, np.float32)
    B = np.random.default_rng(6).uniform(-1, 1, (16, 32)).astype(np.float32)
    handle = backend.spmm_handle(A)
    out = backend.upload(np.full((12, 32), np.nan, np.float32))
    assert handle.multiply(B, out) is out
    np.testing.assert_allclose(host(backend, out), oracle.spmm(A, B), **tolerance(np.float32))
    with pytest.raises(ps.InputError, match=r"spmm: A is 12 x 16 but B has 6 rows"):
        handle.multiply(np.zeros((6, 2), np.float32))
    with pytest.raises(ps.InputError, match=r"spmm: B is float64 but .* as float32"):
        handle.multiply(B.astype(np.float64))
    for wrong in (
        np.zeros((12, 31), np.float32),
        np.zeros((12, 32)),
        np.asfortranarray(host(backend, out)),
    ):
        with pytest.raises(ps.InputError, match=r"spmm: out is .* of shape \(12, 32\) in C order"):
            handle.multiply(B, backend.upload(wrong))
    square = backend.spmm_handle(sp.csr_array(np.eye(4, dtype=np.float32)))
    both = backend.upload(np.ones((4, 4), np.float32))
    with pytest.raises(ps.InputError, match="out overlaps"):
        square.multiply(both, both)


@pytest.mark.parametrize("columns", [1, 16, 20, 64, 320])
def test_spmm_handle_takes_operands_in_any_order_and_every_way(
    backend: ps.Backend, columns: int
) -> None:
    rng = np.random.default_rng(columns)
    A = random_sparse(rng, (21, 40), 0.3, np.float32)
    wide = rng.uniform(-1, 1, (40, 2 * columns)).astype(np.float32)
    handle = backend.spmm_handle(A)
    out = backend.upload(np.empty((21, columns), np.float32))
    for B in (wide[:, :columns].copy(), np.asfortranarray(wide[:, :columns]), wide[:, ::2]):
        expected = oracle.spmm(A, B)
        for _ in range(20):  # whatever is tried on the way
            for found in (handle.multiply(B, out), handle.multiply(B)):
                np.testing.assert_allclose(host(backend, found), expected, **tolerance(np.float32))


# -- spgemm -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("density", [0.05, 0.4])
def test_spgemm(backend: ps.Backend, shape: Any, density: float, dtype: Any) -> None:
    rng = np.random.default_rng(3)
    A = random_sparse(rng, shape[:2], density, dtype)
    B = random_sparse(rng, shape[1:], density, dtype)
    expected, pattern = oracle.spgemm(A, B)
    handle = backend.spgemm_handle(A, B)
    offsets = handle.symbolic()
    rows = np.bincount([i for i, _ in pattern], minlength=shape[0])[: shape[0]]
    np.testing.assert_array_equal(offsets, np.concatenate(([0], np.cumsum(rows))))
    C = host(backend, handle.numeric())
    assert C.shape == expected.shape
    assert C.dtype == dtype
    assert C.has_canonical_format
    assert {(i, j) for i, j, _ in oracle.entries(C)} <= pattern
    np.testing.assert_allclose(C.toarray(), expected, **tolerance(dtype))


def test_spgemm_handle_is_reused_with_new_values(backend: ps.Backend) -> None:
    rng = np.random.default_rng(4)
    A = random_sparse(rng, (30, 20), 0.3, np.float64)
    B = random_sparse(rng, (20, 25), 0.3, np.float64)
    handle = backend.spgemm_handle(A, B)
    first = host(backend, handle.numeric()).toarray()
    new = rng.uniform(-1, 1, A.nnz)
    second = host(backend, handle.numeric(A_data=new)).toarray()
    changed = sp.csr_array((new, A.indices, A.indptr), shape=A.shape)
    np.testing.assert_allclose(second, oracle.spgemm(changed, B)[0], atol=1e-12)
    doubled = host(backend, handle.numeric(B_data=2 * B.data)).toarray()
    np.testing.assert_allclose(doubled, 2 * first, atol=1e-12)
    np.testing.assert_array_equal(host(backend, handle.numeric()).toarray(), first)
    with pytest.raises(ps.InputError, match=rf"new values for A, which stores {A.nnz}"):
        handle.numeric(A_data=np.ones(A.nnz + 1))


def test_spgemm_propagates_nan_and_names_what_does_not_fit(backend: ps.Backend) -> None:
    A = sp.csr_array(np.array([[np.nan, 0], [0, 1.0]]))
    C = host(backend, backend.spgemm(A, sp.csr_array(np.eye(2)))).toarray()
    np.testing.assert_array_equal(C, [[np.nan, 0], [0, 1]])
    with pytest.raises(ps.InputError, match=r"spgemm: A is 2 x 2 but B has 3 rows"):
        backend.spgemm(A, sp.csr_array((3, 3)))
    with pytest.raises(ps.InputError, match=r"spgemm: B is ndarray"):
        backend.spgemm(A, np.eye(2))


# -- layer --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("form", ["C", "F", "sparse"])
def test_layer(backend: ps.Backend, shape: Any, form: str, dtype: Any) -> None:
    outputs, neurons, inputs = shape
    rng = np.random.default_rng(5)
    W = random_sparse(rng, (neurons, outputs), 0.4, dtype)
    Y = np.where(rng.random((inputs, neurons)) < 0.4, rng.random((inputs, neurons)), 0)
    Y = Y.astype(dtype)
    # The sparse form is exact only where no bias is positive.
    bias = rng.uniform(-0.4, 0 if form == "sparse" else 0.3, outputs).astype(dtype)
    given_features = sp.csr_array(Y) if form == "sparse" else np.array(Y, order=form)
    out = host(backend, backend.layer(W, given_features, bias, 0.5))
    assert sp.issparse(out) == (form == "sparse")
    assert out.dtype == dtype
    if form == "sparse":
        assert (out.data != 0).all()
    np.testing.assert_allclose(as_dense(out), oracle.layer(W, Y, bias, 0.5), **tolerance(dtype))


@pytest.mark.parametrize("form", ["C", "F", "sparse"])
@pytest.mark.parametrize("bias", [-0.1, 0.1])
def test_layer_handle(backend: ps.Backend, form: str, bias: float) -> None:
    rng = np.random.default_rng(8)
    W = random_sparse(rng, (40, 30), 0.3, np.float32)
    Y = np.where(rng.random((48, 40)) < 0.5, rng.random((48, 40)), 0).astype(np.float32)
    expected = oracle.layer(W, Y, np.full(30, bias), 0.5)
    handle = backend.layer_handle(W, bias, 0.5)
    if form == "sparse":
        given = backend.upload(sp.csr_array(Y))
        if bias > 0:
            with pytest.raises(ps.InputError, match="turns zeros into nonzeros"):
                handle.apply(given)
            return
        with pytest.raises(ps.InputError, match="these are sparse"):
            handle.apply(given, np.zeros((48, 30), np.float32))
    else:
        given = backend.upload(np.array(Y, order=form))
        out = backend.upload(np.empty((48, 30), np.float32))
        np.testing.assert_allclose(host(backend, handle.apply(given, out)), expected, atol=1e-5)
    for _ in range(3):
        found = as_dense(host(backend, handle.apply(given)))
        np.testing.assert_allclose(found, expected, atol=1e-5)
    with pytest.raises(ps.InputError, match=r"weights are 40 x 30 but features have 41 columns"):
        handle.apply(np.zeros((2, 41), np.float32))


def test_layer_clamps_only_where_asked_and_takes_a_layer(backend: ps.Backend) -> None:
    rng = np.random.default_rng(6)
    one = ps.Layer(random_sparse(rng, (12, 9), 0.5, np.float32), rng.uniform(-0.2, 0.2, 9))
    Y = 10 * rng.random((21, 12)).astype(np.float32)
    expected = oracle.layer(one.csr(), Y, one.bias, None)
    assert expected.max() > 2
    np.testing.assert_allclose(
        host(backend, backend.layer(one, Y)), expected, **tolerance(np.float32)
    )
    clamped = host(backend, backend.layer(one, Y, y_max=2.0))
    assert clamped.max() == 2
    no_bias = host(backend, backend.layer(one, Y, bias=0.0))
    np.testing.assert_allclose(
        no_bias, oracle.layer(one.csr(), Y, np.zeros(9), None), **tolerance(np.float32)
    )


@pytest.mark.parametrize("form", ["dense", "sparse"])
def test_layer_passes_nan_on_and_clamps_infinity(backend: ps.Backend, form: str) -> None:
    W = sp.csr_array(np.array([[1.0, 0, 0], [0, 1, -1]]))
    Y = np.array([[np.nan, 1.0], [1, np.inf], [0, 2]])
    features = sp.csr_array(Y) if form == "sparse" else Y
    out = as_dense(host(backend, backend.layer(W, features, -0.5, 8.0)))
    np.testing.assert_array_equal(out, [[np.nan, 0.5, 0], [0.5, 8, 0], [0, 1.5, 0]])


def test_layer_names_what_does_not_fit(backend: ps.Backend) -> None:
    W = sp.csr_array((1024, 1024), dtype=np.float32)
    with pytest.raises(
        ps.InputError,
        match=r"weights are 1024 x 1024 but features have 4096 columns; they must have 1024",
    ):
        backend.layer(W, np.zeros((1, 4096)))
    with pytest.raises(ps.InputError, match=r"bias has shape \(3,\)"):
        backend.layer(W, np.zeros((1, 1024)), bias=np.zeros(3))
    with pytest.raises(ps.InputError, match=r"y_max is 0"):
        backend.layer(W, np.zeros((1, 1024)), y_max=0)
    with pytest.raises(ps.InputError, match=r"turns zeros into nonzeros.* pass dense features"):
        backend.layer(W, sp.csr_array((1, 1024)), bias=0.1)


# -- plans --------------------------------------------------------------------------------------


def small_network(seed: int, *, bias: tuple[float, float] = (-0.3, 0.0)) -> ps.Network:
    """Layers of changing width: ragged, fixed row length, equal weights, both, and empty rows."""
    rng = np.random.default_rng(seed)
    layers = []
    for rows, columns, density in [(20, 37, 0.3), (37, 37, 0.2), (37, 18, 0.05), (18, 26, 0.5)]:
        values = np.where(rng.random((rows, columns)) < density, rng.uniform(-0.5, 1), 0)
        values[values != 0] = rng.uniform(-0.5, 1, np.count_nonzero(values))
        layers.append(ps.Layer(values.astype(np.float32), rng.uniform(*bias, columns)))
    ring = sum(np.roll(np.eye(26), shift, axis=1) for shift in (0, 1, 5)) / 4
    layers.append(ps.Layer(ring, bias[0]))
    layers.append(ps.Layer(sp.random_array((26, 26), density=0.2, rng=rng) > 0, bias[0]))
    return ps.Network(layers, y_max=2.0)


def some_inputs(inputs: int, neurons: int = 20) -> Any:
    """Binary features of every density, some of them empty."""
    rng = np.random.default_rng(inputs)
    return rng.random((inputs, neurons)) < rng.random((inputs, 1)) * 0.5


@pytest.mark.parametrize("bias", [(-0.3, 0.0), (-0.3, 0.2)], ids=["bias<=0", "bias>0"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inputs", [0, 1, 2, 33, 150])
def test_plan(backend: ps.Backend, inputs: int, dtype: Any, bias: Any) -> None:
    network = small_network(7, bias=bias)
    Y = some_inputs(inputs)
    categories, scores, alive = oracle.infer(network, Y)
    paths = ["auto", "spmm"] + (["spgemm"] if bias[1] <= 0 else [])
    for path in paths:
        for batch_size in (None, 1, 7, inputs + 1):
            for keep in (False, True):
                options = ps.PlanOptions(dtype, path, batch_size, keep)
                result = backend.plan(network, options).run(Y)
                assert result.categories.dtype == np.int64
                assert result.categories.tolist() == categories
                np.testing.assert_allclose(result.scores, scores, rtol=1e-4, atol=1e-5)
                assert [record.alive_inputs for record in result.records] == alive
                assert result.inputs == inputs
                assert result.edges == network.edges
                assert 0 <= result.executed_edges <= inputs * network.edges
                assert result.plan_seconds > 0
                assert result.inference_seconds > 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_plan_takes_features_in_every_form(backend: ps.Backend, dtype: Any) -> None:
    network = small_network(8)
    Y = some_inputs(40)
    plan = backend.plan(network, ps.PlanOptions(dtype))
    first = plan.run(Y)
    assert 0 < first.categories.size < 40
    forms = [
        ps.PackedFeatures.from_dense(Y),
        np.packbits(Y, axis=1),
        Y.astype(np.uint8),
        Y.astype(np.float32),
        np.asfortranarray(Y, dtype=np.float64),
        Y.astype(np.int64)[:, ::-1][:, ::-1],
        sp.csr_array(Y),
        sp.csc_matrix(Y.astype(np.float64)),
        sp.coo_array(Y),
    ]
    for form in forms:
        again = plan.run(form)
        np.testing.assert_array_equal(again.categories, first.categories)
        np.testing.assert_allclose(again.scores, first.scores, rtol=1e-5, atol=1e-6)


def test_plan_drops_dead_inputs_and_says_what_it_did(backend: ps.Backend) -> None:
    network = ps.Network([ps.Layer(np.eye(8), -0.2) for _ in range(6)], y_max=32)
    Y = np.zeros((50, 8))
    Y[::5] = 8  # one in five lives on; the others die in the first layer
    Y[1] = 0.3
    result = backend.plan(network).run(Y)
    expected = oracle.infer(network, Y)
    assert result.categories.tolist() == expected[0] == list(range(0, 50, 5))
    assert [record.alive_inputs for record in result.records] == expected[2]
    assert result.executed_edges < 50 * network.edges
    keep = ps.PlanOptions(keep_dead_inputs=True, path="spmm")
    everything = backend.plan(network, keep).run(Y)
    assert everything.executed_edges == 50 * network.edges
    np.testing.assert_array_equal(everything.categories, result.categories)
    assert backend.plan(network).describe()


def test_positive_bias_brings_dead_inputs_back(backend: ps.Backend) -> None:
    # Everything dies in layer 1 and is revived by layer 2; nothing may be dropped before that.
    network = ps.Network([ps.Layer(np.eye(4), -1.0), ps.Layer(np.eye(4), [0, 0.5, 0, 0])])
    result = backend.plan(network).run(np.zeros((3, 4)))
    assert result.categories.tolist() == [0, 1, 2]
    np.testing.assert_array_equal(result.scores, [[0, 0.5, 0, 0]] * 3)


def test_plan_reports_progress_to_the_end(backend: ps.Backend) -> None:
    network = small_network(9)
    seen: list[tuple[int, int]] = []
    options = ps.PlanOptions(batch_size=16)
    backend.plan(network, options).run(some_inputs(40), lambda *step: seen.append(step))
    assert seen[-1] == (40 * len(network), 40 * len(network))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_plan_refuses_what_it_cannot_do_right(backend: ps.Backend) -> None:
    network = small_network(10, bias=(-0.3, 0.2))
    with pytest.raises(ps.InputError, match=r"path spgemm: layer 1 turns zeros into nonzeros"):
        backend.plan(network, ps.PlanOptions(path="spgemm"))
    plan = backend.plan(network)
    with pytest.raises(ps.InputError, match=r"features have 21 columns but the network takes 20"):
        plan.run(np.zeros((3, 21)))
    bad = np.zeros((3, 20))
    bad[2, 5] = np.nan
    for form in (bad, np.asfortranarray(bad), sp.csr_array(bad)):
        with pytest.raises(ps.InputError, match=r"input 2, neuron 5 .* is NaN or infinite"):
            plan.run(form)


def test_overflow_to_nan_is_an_error_not_an_answer(backend: ps.Backend) -> None:
    grow = ps.Layer(np.full((2, 2), 1e30), 0.0)
    cancel = ps.Layer(np.array([[1.0, -1.0], [-1.0, 1.0]]), 0.0)
    network = ps.Network([grow, grow, cancel])
    with pytest.raises(ps.NumericalError, match="float64"):
        backend.plan(network).run(np.ones((3, 2)))
    result = backend.plan(network, ps.PlanOptions(np.float64)).run(np.ones((3, 2)))
    assert result.categories.size == 0


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_plan_on_random_networks(backend: ps.Backend, data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    widths = data.draw(st.lists(st.integers(1, 24), min_size=2, max_size=6))
    # Multiples of 1/4 and few layers: every sum is exact, so any order must agree to the bit.
    layers = [
        ps.Layer(
            rng.integers(-2, 4, shape) / 4 * (rng.random(shape) < rng.random()),
            rng.integers(-4, data.draw(st.integers(1, 3)), shape[1]) / 4,
        )
        for shape in itertools.pairwise(widths)
    ]
    network = ps.Network(layers, data.draw(st.sampled_from([None, 1.0, 32.0])))
    Y = rng.random((data.draw(st.integers(0, 70)), widths[0])) < rng.random()
    categories, scores, alive = oracle.infer(network, Y)
    options = ps.PlanOptions(batch_size=data.draw(st.sampled_from([None, 1, 13])))
    result = backend.plan(network, options).run(Y)
    assert result.categories.tolist() == categories
    np.testing.assert_array_equal(result.scores, scores)
    assert [record.alive_inputs for record in result.records] == alive


# -- the rest -----------------------------------------------------------------------------------


def test_round_trip_through_the_memory_space(backend: ps.Backend) -> None:
    dense = np.arange(12.0).reshape(3, 4)
    sparse = sp.csr_array(np.eye(3))
    np.testing.assert_array_equal(host(backend, backend.upload(dense)), dense)
    np.testing.assert_array_equal(host(backend, backend.upload(sparse)).toarray(), np.eye(3))


def test_what_the_layer_loop_asks(backend: ps.Backend) -> None:
    Y = np.zeros((5, 3))
    Y[1, 2] = 1
    Y[3, 0] = np.nan
    W = backend.upload(sp.csr_array(np.triu(np.ones((3, 4)))))
    for features, work in ((Y, 5 * W.nnz), (sp.csr_array(Y), 2 + 4)):
        mine = backend.upload(features)
        assert backend.alive_inputs(mine).tolist() == [1, 3]
        assert backend.multiply_adds(W, mine) == work
        taken = host(backend, backend.take_inputs(mine, np.array([1, 3])))
        np.testing.assert_array_equal(as_dense(taken), Y[[1, 3]])


def test_optional_operations_are_there_or_say_who_has_them(backend: ps.Backend) -> None:
    for operation in OPTIONAL_OPERATIONS:
        if operation not in backend.optional_operations:
            with pytest.raises(NotImplementedError, match=f"{backend.name} has no {operation}"):
                getattr(backend, operation)()


def test_backend_says_what_it_is(backend: ps.Backend) -> None:
    assert backend.execution_space in {"serial", "threads", "cuda"}
    assert backend.memory_space in {"host", "device"}
    assert backend.threads >= 1
    assert backend.device
    availability = type(backend).availability()
    assert availability.available
    assert availability.versions
    with pytest.raises(ps.InputError, match="threads is 0"):
        type(backend)(threads=0)
