"""Layers on tiles: activations of any kind, who is active, registers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from tile_settings import set_tile_costs

import portable_spdnn as ps
from portable_spdnn.epilogue import ACTIVATIONS, Epilogue
from portable_spdnn.plans.planner import make_plan
from portable_spdnn_cpu.activations import Activation, activation_code
from portable_spdnn_cpu.jit.target import VECTOR_BYTES, VECTOR_REGISTERS
from portable_spdnn_cpu.layout.packing import pack_layers
from portable_spdnn_cpu.layout.tile_shape import (
    BLOCK_BYTES,
    CLUSTER,
    CLUSTER_BLOCKS,
    blocks_in_registers,
)
from portable_spdnn_cpu.machine.thread_pool import ThreadPool
from portable_spdnn_cpu.spmm.clustered.product import ClusteredProduct

pytestmark = pytest.mark.usefixtures("depth_first_plans")

FUNCTIONS = {
    0: lambda z: z,
    1: lambda z: max(z, 0.0),
    2: lambda z: z / 2 * (1 + math.erf(z / math.sqrt(2))),
    3: lambda z: z / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))),
    4: lambda z: z / (1 + math.exp(-z)),
    5: lambda z: z * min(max(z + 3, 0), 6) / 6,
    6: lambda z: 1 / (1 + math.exp(-z)),
    7: math.tanh,
}


def expected(W: Any, Y: Any, bias: Any, activation: Activation) -> Any:
    """Return activation(Y W + bias) within bounds, in float64."""
    function = np.vectorize(FUNCTIONS[activation.code], otypes=[float])
    sums = Y.astype(float) @ W.toarray().astype(float) + bias
    return np.clip(function(sums), activation.lower, activation.upper)


def run(layers: list[ps.Layer], activations: list[Activation], Y: Any, dtype: Any) -> Any:
    """Run a plan whose layers have these activations; no input leaves."""
    options = ps.PlanOptions(dtype, keep_dead_inputs=True)
    plan = make_plan(ps.get_backend("numba", threads=2), ps.Network(layers), options)
    coded = [
        each._replace(code=activation_code(ACTIVATIONS[each.code], plan.dtype))
        for each in activations
    ]
    plan.layers = pack_layers(layers, coded, plan.dtype, ThreadPool(1))
    return plan.run(Y)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("first", range(8))
def test_a_network_may_mix_activations(
    first: int, binary: bool, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums of bytes, clusters and single outputs, with constant weights and with values."""
    set_tile_costs(monkeypatch, 64, 64 // np.dtype(dtype).itemsize)
    rng = np.random.default_rng(first)
    alike = np.kron(rng.random((10, 6)) < 0.3, np.ones((4, 6))) * 0.5
    others = [sp.random_array((36, 36), density=0.2, rng=rng) for _ in range(2)]
    layers = [
        ps.Layer(matrix, rng.uniform(-0.5, 0.3, 36)) for matrix in (alike, *others, others[0] > 0)
    ]
    bounded = Activation(1, 0.0, 1.5) if first == 1 else Activation(first, -0.2, 1.5)
    activations = [bounded, Activation(0, -1.0, 1.0), Activation(1, 0.0, 1.0), bounded]
    Y = rng.random((150, 40))
    Y = Y < 0.4 if binary else Y - 0.5
    wanted, active = Y, []
    for layer, activation in zip(layers, activations, strict=True):
        wanted = expected(layer.csr(), wanted, layer.bias, activation)
        active.append(int((wanted != 0).any(axis=1).sum()))
    result = run(layers, activations, Y if binary else Y.astype(dtype), dtype)
    np.testing.assert_allclose(result.scores, wanted, rtol=1e-4, atol=2e-6)
    assert [record.alive_inputs for record in result.records] == active


def test_features_that_cancel_and_nan_are_active() -> None:
    layers = [ps.Layer(np.array([[1.0, -1.0], [0.0, 0.0]])), ps.Layer(np.eye(2))]
    Y = np.array([[3.0, 0], [0, 5], [0, 0], [-1, 2]])
    result = run(layers, [Activation(), Activation(7)], Y, np.float64)
    np.testing.assert_allclose(result.scores, np.tanh([[3, -3], [0, 0], [0, 0], [-1, 1]]))
    assert [record.alive_inputs for record in result.records] == [2, 2]
    overflow, cancel = ps.Layer(np.full((2, 2), 1e308)), ps.Layer(np.array([[1.0, 0], [-1, 1]]))
    with pytest.raises(ps.NumericalError):
        run([overflow, cancel], [Activation(), Activation(7)], Y, np.float64)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("inputs", [16, 60, 320])
@pytest.mark.parametrize("code", [0, 1, 4])
def test_a_single_product_takes_any_activation(code: int, inputs: int, order: Any) -> None:
    rng = np.random.default_rng(code)
    W = sp.random_array((50, 70), density=0.2, rng=rng, dtype=np.float32, format="csr")
    Y = np.array(rng.random((inputs, 50), np.float32) - 0.5, order=order)
    bias = rng.random(70, np.float32) - 0.5
    activation = Activation(code, 0.0 if code == 1 else -0.2, 0.3)
    epilogue = Epilogue(bias, ACTIVATIONS[code], *activation[1:])
    epilogue = epilogue.prepared("layer", 70, np.dtype(np.float32))
    layer = ClusteredProduct(ThreadPool(2), sp.csr_array(W.T), epilogue)
    residual = np.array(rng.random((inputs, 70), np.float32) - 0.5, order=order)
    for _ in range(2):
        wanted = expected(W, Y, bias, activation)
        np.testing.assert_allclose(layer(Y), wanted, rtol=1e-4, atol=1e-6)
        wanted = expected(W, Y, bias + residual, activation)
        np.testing.assert_allclose(layer(Y, None, residual), wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("vector_bytes", "registers", "blocks"), [(64, 32, 2), (32, 16, 1), (16, 16, 1)]
)
def test_sums_of_a_cluster_leave_registers_for_what_is_added(
    vector_bytes: int, registers: int, blocks: int
) -> None:
    assert blocks_in_registers(CLUSTER, vector_bytes, registers) == blocks
    used = CLUSTER * CLUSTER_BLOCKS * BLOCK_BYTES // VECTOR_BYTES
    assert VECTOR_BYTES == 16 or used <= VECTOR_REGISTERS // 2
