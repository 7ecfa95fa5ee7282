"""spmm: sparse weights times dense features, C = A B.

Layer 1 of the challenge networks of 1,024 and 16,384 neurons, 32 entries a row, times 64, 512
and 4,096 columns; and an irregular matrix whose row lengths follow a Pareto distribution, where
work that is shared out by rows is uneven. *Prepared* is a handle, made beforehand, with the
result's memory reused; at 16,384 neurons that depends on which pages the system gave to the
operands, and is left to the comparison with peers.

*Few columns*: a pruned layer of 512 x 512, of random pattern, prepared for as many columns of B as
it is multiplied with; *sliced*, these are columns of a wider array.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from portable_spdnn_cpu.spmm.clustered.tuning import WIDTHS

from .agreement import assert_agree, assert_product
from .kernel_models import loads_per_edge, product_model

PARETO = "pareto-4096x512"
PRUNED = 512  # neurons of the layer that few columns are multiplied with
WIDE = 64  # columns of the array that B is a slice of


def pareto_rows(rows: int, columns: int, mean: float, rng: np.random.Generator) -> Any:
    """Return a random csr_array whose row lengths are Pareto distributed, shape 1.5.

    Few rows are much longer than the mean, as in matrices of social networks; the longest is
    cut at half of the columns. A row has fewer entries than drawn where columns coincide.
    """
    shape = 1.5
    lengths = (mean * (shape - 1) * rng.pareto(shape, rows)).astype(np.int64)
    lengths = np.minimum(lengths, columns // 2)
    row = np.repeat(np.arange(rows), lengths)
    column = rng.integers(0, columns, row.size)
    values = rng.random(row.size, dtype=np.float32) - np.float32(0.5)
    matrix = sp.csr_array((values, (row, column)), shape=(rows, columns))
    matrix.sum_duplicates()
    return matrix


@pytest.mark.cases(
    "1024x64",
    "1024x512",
    "1024x4096",
    "16384x64",
    "16384x512",
    "16384x4096",
    PARETO,
    "1024x64-prepared",
    "1024x512-prepared",
    "1024x4096-prepared",
    PARETO + "-prepared",
    one_thread=("1024x512", PARETO, "1024x512-prepared"),
)
def test_spmm(case, backend, reference, prepared, challenge_network, measure):
    size = case.removeprefix("pareto-").removesuffix("-prepared")
    neurons, columns = (int(extent) for extent in size.split("x"))
    network, weights = None, "random, Pareto row lengths"
    if PARETO not in case:
        network, weights = challenge_network(neurons, 1)

    def build():
        rng = np.random.default_rng(0)
        if network is None:
            A = pareto_rows(neurons, neurons, 32, rng)
        else:
            A = network.layers[0].csr()
        B = rng.random((neurons, columns), dtype=np.float32)
        expected = reference.spmm(A, B)
        assert_product(expected, A, B)
        return A, B, expected

    A, B, expected = prepared(build)
    operation, loads = lambda: backend.spmm(A, B), 1.0
    if case.endswith("-prepared"):
        handle, out = backend.spmm_handle(A), np.empty((neurons, columns), np.float32)
        operation, loads = lambda: handle.multiply(B, out), loads_per_edge(A)
        for _ in range(20):  # until the fastest way is settled
            operation()
    measure(
        operation,
        lambda result: assert_agree(result, expected),
        edges=A.nnz * columns,
        model=product_model(A.shape, A.nnz, columns, B.dtype, min(columns, WIDTHS[0]), loads),
        weights=weights,
        inputs="random",
    )


@pytest.mark.cases(
    *(f"{zeros}zeros-{columns}columns" for zeros in (80, 90, 95) for columns in (1, 2, 8, 15)),
    *(f"90zeros-{columns}columns-sliced" for columns in (1, 8)),
)
def test_few_columns(case, backend, reference, prepared, measure):
    zeros, columns = (int(part) for part in re.findall(r"\d+", case))

    def build():
        rng = np.random.default_rng(0)
        kept = rng.random((PRUNED, PRUNED)) >= zeros / 100
        A = sp.csr_array(np.where(kept, rng.standard_normal(kept.shape), 0).astype(np.float32))
        width = WIDE if case.endswith("-sliced") else columns
        B = rng.standard_normal((PRUNED, width)).astype(np.float32)[:, :columns]
        expected = reference.spmm(A, B)
        assert_product(expected, A, B)
        return A, B, expected

    A, B, expected = prepared(build)
    handle, out = backend.spmm_handle(A, columns=columns), np.empty((PRUNED, columns), np.float32)
    measure(
        lambda: handle.multiply(B, out),
        lambda result: assert_agree(result, expected),
        edges=A.nnz * columns,
        weights=f"random, {zeros} % zeros",
        inputs="random",
    )
