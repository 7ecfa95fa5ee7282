"""Run by `test_run.py` on several ranks: what Python users of MPI call."""

from __future__ import annotations

import itertools
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from mpi4py import MPI

import portable_spdnn as ps
from portable_spdnn.mpi.ranks import Ranks
from portable_spdnn.mpi.run import dynamic_parts, infer_distributed
from portable_spdnn.plans.planner import make_plan

folder = Path(sys.argv[1])
rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
network = ps.radixnet(64, 9, seed=2, bias=-0.25)
bits = ps.digits_features(64)[:150]
values = sp.csr_array(bits.dense() * np.linspace(0.2, 2, 64, dtype=np.float32))


def check(what: str, features: object, backend: str, options: ps.PlanOptions, **how: str) -> None:
    """Compare scores, not the categories alone, with those of one process."""
    result = infer_distributed(network, features, backend, options=options, **how)
    if rank:
        assert result is None, what
        return
    assert result is not None, what
    alone = make_plan(ps.get_backend(backend, 1), network, replace(options, memory=None)).run(
        features
    )
    assert 0 < alone.categories.size < 150, what
    np.testing.assert_array_equal(result.categories, alone.categories, what)
    if options.memory is None:
        np.testing.assert_array_equal(result.scores, alone.scores, what)
        np.testing.assert_array_equal(result.score_rows(40, 90), alone.scores[40:90], what)
    assert [one.alive_inputs for one in result.records] == [
        one.alive_inputs for one in alone.records
    ], what
    assert [record.rank for record in result.replicas] == list(range(size)), what
    assert sum(record.inputs for record in result.replicas) == 150, what
    assert sum(record.executed_edges for record in result.replicas) == result.executed_edges, what
    assert result.imbalance >= 1, what
    assert 0 < result.parallel_efficiency <= 1, what


for schedule in ("static", "dynamic"):
    for backend in ("scipy", "numba"):
        for path in ("spmm", "spgemm"):
            options = ps.PlanOptions(path=path, batch_size=11)
            for features in (bits, values, values.toarray()):
                check(f"{schedule} {backend} {path}", features, backend, options, schedule=schedule)
    limited = ps.PlanOptions(memory=4 << 30)
    check(f"{schedule} streamed", bits, "numba", limited, schedule=schedule)
    kept = {"schedule": schedule, "checkpoint": str(folder / schedule)}
    for turn in ("first", "again"):
        check(f"{schedule} checkpoint, {turn}", bits, "numba", ps.PlanOptions(), **kept)

os.environ["CUDA_VISIBLE_DEVICES"] = "5,GPU-7"
with Ranks() as ranks:
    for _ in range(2):  # what a launcher, or an earlier call, has bound stays
        ranks.bind_gpu()
        assert os.environ["CUDA_VISIBLE_DEVICES"] == ["5", "GPU-7"][rank % 2]
    arrays = [np.arange(7, dtype=np.int16), np.empty((0, 3)), np.full((2, 3), 1.5)]
    shared = ranks.share_on_node(arrays if ranks.node_rank == 0 else None)
    for got, expected in zip(shared, arrays, strict=True):
        np.testing.assert_array_equal(got, expected)
        assert got.dtype == expected.dtype
        assert not got.flags.writeable
    # One in the message of the pickle, one in messages of its own.
    small, large = np.full(3, rank), sp.csr_array(np.full((2, 1 << 18), rank + 0.5))
    gathered = ranks.gather((small, large))
    assert (gathered is None) == bool(rank)
    for number, (one, other) in enumerate(gathered or ()):
        assert one.tolist() == [number] * 3
        assert (other.shape, other.min(), other.max()) == (large.shape, number + 0.5, number + 0.5)
    assert ranks.threads_each() >= 1
    for inputs in (0, 1, 2, 17, 1000):
        mine = list(dynamic_parts(ranks, inputs))
        everyone = sorted(part for parts in ranks.comm.allgather(mine) for part in parts)
        assert sum(end - first for first, end in everyone) == inputs
        assert all(a[1] == b[0] for a, b in itertools.pairwise(everyone))
if rank == 0:
    print("checked")
