"""Results: rates, scores on demand, and the records of what shared the inputs."""

from __future__ import annotations

import numpy as np
import pytest

import portable_spdnn as ps
from portable_spdnn.plans.batch import Batch, BatchOutput, resumed_seconds
from portable_spdnn.plans.result import Result, replica_records


def test_result_states_its_rates_and_builds_scores_on_demand() -> None:
    network = ps.Network([ps.Layer(np.eye(3), -0.5)] * 2)
    Y = np.array([[2.0, 0, 0], [0.6, 0, 0], [0, 0, 4]])
    result = ps.infer(network, Y, "scipy", path="spgemm")
    assert result.categories.tolist() == [0, 2]
    np.testing.assert_array_equal(result.scores, [[1, 0, 0], [0, 0, 0], [0, 0, 3]])
    np.testing.assert_array_equal(result.score_rows(1, 3), result.scores[1:])
    assert result.scores is not result.scores
    assert result.edge_rate == pytest.approx(3 * 6 / result.inference_seconds)
    assert result.executed_edge_rate == pytest.approx(
        result.executed_edges / result.inference_seconds
    )
    # Sparse features: 3 stored entries meet one weight each, in layer 1 and, all alive, in 2.
    assert result.executed_edges == 6
    assert [record.seconds is not None for record in result.records] == [True, True]
    assert result.exact_passes == ()


def test_imbalance_and_time_of_devices() -> None:
    def batch(replica: int, seconds: float, resumed: bool = False) -> Batch:
        output = BatchOutput(np.arange(0), None, np.zeros(6, np.int64), 100)
        return Batch(0, 10, np.arange(0), seconds, output, resumed, replica)

    batches = [batch(0, 1.0), batch(0, 2.0, True), batch(1, 0.5, True), batch(1, 0.5)]
    records = replica_records([("0: a", 0.25), ("1: b", 0.5), ("2: c", 0.75)], batches, "host")
    assert [(one.inputs, one.busy_seconds, one.executed_edges) for one in records] == [
        (20, 3.0, 200), (20, 1.0, 200), (0, 0.0, 0),
    ]  # fmt: skip
    assert resumed_seconds(batches) == 2.0  # they ran at the same time
    assert resumed_seconds([]) == 0.0
    result = Result("b", "d", "cuda", 40, 64, 64, 6, 1, np.arange(0), 0.0, 4.0, 1, replicas=records)
    assert result.imbalance == 3.0 * 3 / 4.0
    assert result.parallel_efficiency == (3.0 + 1.0) / 3 / 4.0
