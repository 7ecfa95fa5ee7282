"""Compiled passes over the rows of a matrix, against plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from portable_spdnn_gpu.compile.catalog import CLUSTER
from portable_spdnn_gpu.spmm.clusters import cluster_rows, own_entries, savings
from portable_spdnn_gpu.spmm.packing import packing_threads
from portable_spdnn_gpu.spmm.rows import hash_rows, have_equal_columns, interleave_rows


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_passes_over_rows(index: type, dtype: type) -> None:
    rng = np.random.default_rng(3)
    pattern = rng.random((4, 90)) < 0.2
    dense = pattern[rng.integers(0, 4, 6 * CLUSTER)] * rng.random((6 * CLUSTER, 90))
    dense[7] = 0
    A = sp.csr_array(dense.astype(dtype))
    A.indptr, A.indices = A.indptr.astype(index), A.indices.astype(index)

    hashes = rng.integers(0, 1 << 63, 90, dtype=np.uint64)
    rows = rng.permutation(len(dense))[:40]
    least, whole = np.empty((2, rows.size), np.uint64)
    hash_rows(A.indptr, A.indices, rows, hashes, least, whole)
    for number, row in enumerate(rows):
        found = [int(hashes[column]) for column in np.flatnonzero(dense[row])]
        assert int(least[number]) == min(found, default=2**64 - 1)
        assert int(whole[number]) == sum(found) % 2**64

    order = np.lexsort(dense.astype(bool).T)
    groups = np.concatenate([order, rng.permutation(order)]).reshape(-1, CLUSTER)
    equal = np.empty(len(groups), bool)
    have_equal_columns(A.indptr, A.indices, groups, equal)
    expected = [
        (dense[group].astype(bool) == dense[group[:1]].astype(bool)).all() for group in groups
    ]
    assert equal.tolist() == expected
    assert 0 < equal.sum() < len(groups)

    chosen = groups[equal]
    values = np.empty(np.diff(A.indptr)[chosen].sum(), dtype)
    interleave_rows(A.indptr, A.data, chosen, values)
    wanted = [dense[group][:, np.flatnonzero(dense[group[0]])].T.ravel() for group in chosen]
    np.testing.assert_array_equal(values, np.concatenate(wanted).astype(dtype))


@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_savings_are_those_of_common_columns(index: type) -> None:
    rng = np.random.default_rng(8)
    kinds = rng.random((6, 50)) < 0.4
    dense = kinds[np.repeat(np.arange(6), CLUSTER)] | (rng.random((6 * CLUSTER, 50)) < 0.05)
    dense[-1, :] = False
    dense[-1, 49] = True
    A = sp.csr_array(dense.astype(np.float32))
    A.indptr, A.indices = A.indptr.astype(index), A.indices.astype(index)
    rows = np.arange(6 * CLUSTER)
    groups = np.concatenate([rows, rng.permutation(rows)]).reshape(-1, CLUSTER)
    expected = []
    for group in groups:
        common = set(range(50)).intersection(*(np.flatnonzero(dense[row]) for row in group))
        expected.append((CLUSTER - 1) * len(common) / dense[group].sum())
    found = savings(A, groups)
    assert found.tolist() == expected
    assert (found[:5] > 0.5).all()
    assert 0 in expected
    assert savings(A, groups[:0]).tolist() == []


def test_own_entries_are_those_outside_common_columns() -> None:
    rng = np.random.default_rng(5)
    shared = np.repeat(rng.random((3, 60)) < 0.3, CLUSTER, axis=0)
    dense = shared | (rng.random(shared.shape) < 0.02)
    dense = np.concatenate([dense, rng.random((7, 60)) < 0.1, np.zeros((2, 60), bool)])
    A = sp.csr_array(dense[rng.permutation(len(dense))].astype(np.float32))
    found = cluster_rows(A)
    assert 0 < found.count <= 3
    common = {}
    for number in range(found.count):
        first = found.bounds[(CLUSTER + 1) * number]
        columns = found.indices[first : first + found.common_counts[number]].tolist()
        assert columns == sorted(columns)
        rows = found.rows[CLUSTER * number : CLUSTER * (number + 1)].tolist()
        common |= dict.fromkeys(rows, frozenset(columns))
    expected = [
        (row, rank, entry)
        for row in range(A.shape[0])
        for rank, entry in enumerate(
            entry
            for entry in range(A.indptr[row], A.indptr[row + 1])
            if A.indices[entry] not in common.get(row, ())
        )
    ]
    assert len({row for row, _, _ in expected} & common.keys()) > 5
    assert list(zip(*(each.tolist() for each in own_entries(A, found)), strict=True)) == expected


def test_threads_by_the_size_of_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("portable_spdnn_gpu.spmm.packing.usable_cores", lambda: 16)
    sizes = (0, 32 << 10, 128 << 10, 512 << 10, 2 << 20)  # entries
    assert [packing_threads(entries) for entries in sizes] == [1, 1, 2, 8, 16]
