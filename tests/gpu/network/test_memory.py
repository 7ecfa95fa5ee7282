"""What fits a device's memory: batches, weights, and scores that wait there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from cuda_emulation.device_at_hand import needs_device
from cuda_emulation.emulated_backend import EmulatedCupyBackend

import portable_spdnn as ps
from portable_spdnn.plans.planner import make_plan
from portable_spdnn.testing import oracle
from portable_spdnn_gpu.compile.precision import Precision
from portable_spdnn_gpu.device.features import bytes_for_input, capacity_within, pitch_of
from portable_spdnn_gpu.network import memory
from portable_spdnn_gpu.network.memory import MemoryShares

H100 = 78 << 30
# In clusters: columns, bounds, starts and rows, numbers of 32 bits.
LAYER = 4096 * (32 + 17 + 1 + 16) * 4
VALUES = 65536 * 32 * 4


@pytest.mark.parametrize("layers", [120, 1920])
@pytest.mark.parametrize("layer", [LAYER, LAYER + VALUES], ids=["one value", "any values"])
def test_the_widest_networks_of_the_challenge_are_one_batch_on_an_h100(
    layers: int, layer: int
) -> None:
    wide = ps.Network([ps.Layer(sp.csr_array((65536, 65536)))] * layers)
    shares = MemoryShares.of(wide, Precision(), 60000, H100, None)
    assert layers * layer <= shares.weights
    free = shares.weights_and_features - layers * layer
    assert capacity_within(free, 60000, bytes_for_input(65536, Precision())) == 60000
    scores = 2700 * 65536 * 4  # as many inputs survive
    biases = layers * 65536 * 4
    assert scores <= shares.rows
    features = 2 * pitch_of(60000) * 65536 * 4
    # What is left for graphs, kernels and measurements.
    assert H100 - features - layers * layer - biases - shares.rows > 2 << 30


def test_shares_keep_to_a_limit() -> None:
    wide = ps.Network([ps.Layer(sp.csr_array((1000, 1000)))] * 2)
    free, limit = 10_000_000, 3_200_000
    both = MemoryShares.of(wide, Precision(), 100, free, limit)
    assert both.weights_and_features == limit - 200_000 - 2 * 4000
    assert both.weights == both.weights_and_features - 100 * (8000 + 16)
    assert both.rows == 100_000
    assert MemoryShares.of(wide, Precision(), 100, limit, free) == both
    many = MemoryShares.of(wide, Precision(), 10_000, free, limit)
    assert many.weights == many.weights_and_features // 2


@needs_device
@pytest.mark.parametrize("options", [{}, {"storage": "float16"}, {"dtype": np.float64}], ids=str)
def test_scores_that_may_not_wait_on_the_device_are_fetched(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend: Any = EmulatedCupyBackend()
    rng = np.random.default_rng(0)
    # All inputs survive, and scores are as wide as the widest layer.
    layers = [ps.Layer(rng.uniform(0.1, 0.2, (40, 40)), bias) for bias in (-0.1, 0.0)]
    network, Y = ps.Network(layers), rng.uniform(0.5, 1, (70, 40))
    expected = oracle.infer(network, Y)[1]
    for reserve, waits in ((1 / 16, True), (0, False)):
        monkeypatch.setattr(memory, "RESERVE", reserve)
        result = make_plan(backend, network, ps.PlanOptions(batch_size=70, **options)).run(Y)
        rows = result._batches[0].output.rows
        assert isinstance(rows, np.ndarray) != waits
        np.testing.assert_allclose(result.scores, expected, rtol=1e-2 if options else 1e-5)
    # Through the buffer that the last step read: float32 does not fit in one piece of float16.
    pieces = 2 if "storage" in options else 1
    assert backend.cuda.launches[-pieces:] == ["collect_rows"] * pieces
    assert backend.cuda.launches[-pieces - 1] != "collect_rows"


def test_layers_take_their_part_of_the_weights_memory() -> None:
    network = ps.Network([ps.Layer(sp.csr_array(np.ones((10, 10))))])
    shares = MemoryShares.of(network, Precision(), 0, 1_000_000, None)
    assert shares.for_layers(network, 0) == shares.weights
    assert shares.for_layers(network, 10) == shares.weights  # and a quarter more
    assert shares.for_layers(network, 900) == shares.weights // 8
