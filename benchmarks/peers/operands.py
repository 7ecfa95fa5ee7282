"""What every peer is given, how its answer is checked, and how it is timed.

A case is one of

- ``spmm NxC``: C = A B, A a layer of the challenge by output (N x N, 32 entries a row), B random
  and dense with C columns; once as it is, and once with bias, ReLU and clamp;
- ``random 4096x512``: the same with 1 % random entries, row lengths Pareto-distributed;
- ``spgemm 1`` and ``spgemm 2``: the sparse features before layer 1 and 2 times its weights;
- ``spgemm wide``: two layers of 65,536 neurons, W1 W2: short rows, each entry of 16 products;
- ``spgemm random``: 65,536 x 65,536, 16 random entries to a row: hardly an entry of two;
- ``inference NxL``: the whole network on the images.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp

import portable_spdnn as ps

SHARED = Path(__file__).resolve().parents[3] / "shared"
WEIGHTS = SHARED / "graphchallenge"
IMAGES = SHARED / "mnist" / "train-images-idx3-ubyte.gz"

COLUMNS = (64, 512, 4096)
SPMM_CASES = tuple(f"spmm {neurons}x{columns}" for neurons in (1024, 16384) for columns in COLUMNS)
RANDOM_CASE = "random 4096x512"
SPGEMM_CASES = ("spgemm 1", "spgemm 2", "spgemm wide", "spgemm random")
WIDE, EACH = 65_536, 16
INFERENCE_CASES = ("inference 1024x120", "inference 4096x120")
CASES = (*SPMM_CASES, RANDOM_CASE, *SPGEMM_CASES, *INFERENCE_CASES)
INPUTS = 60_000
LAYER = 15  # past the first block, whose rows are in order: 110 of 120 layers are like it
BIAS, Y_MAX = -0.3, 32.0
SAMPLED_ROWS = 48

# How long one operation is repeated: some seconds, though some times; a run of many seconds once.
SECONDS, LEAST_ROUNDS, MOST_ROUNDS, ONCE_FROM = 2.0, 5, 200, 8.0

Operation = Callable[[], Any]


class Peer(Protocol):
    """One library, in its best idiom. Absent methods mean that it has no such operation."""

    name: str
    version: str
    threads: int

    def spmm(self, A: Any, B: Any) -> Operation:
        """Return the operation C = A B."""

    def layer(self, A: Any, B: Any, bias: Any, y_max: float) -> Operation:
        """Return the operation C = min(max(A B + bias, 0), y_max), bias for each row."""

    def spgemm(self, A: Any, B: Any) -> Operation:
        """Return the operation C = A B, both sparse."""

    def inference(self, network: ps.Network, features: Any) -> Operation:
        """Return the operation that gives the categories."""

    def host(self, result: Any) -> Any:
        """Return a result as ndarray or scipy.sparse."""


@dataclass(frozen=True)
class Timing:
    """Seconds of the operations of a case.

    Attributes
    ----------
    least, median : float
    rounds : int
    """

    least: float
    median: float
    rounds: int


def timed(operation: Operation, first: float) -> Timing:
    """Time an operation whose first call took `first` seconds."""
    if first > ONCE_FROM:
        return Timing(first, first, 1)
    times: list[float] = []
    while len(times) < LEAST_ROUNDS or (sum(times) < SECONDS and len(times) < MOST_ROUNDS):
        start = time.perf_counter()
        operation()
        times.append(time.perf_counter() - start)
    return Timing(min(times), float(np.median(times)), len(times))


def checked(peer: Peer, operation: Operation, check: Callable[[Any], None]) -> Timing:
    """Call, check, and time."""
    start = time.perf_counter()
    result = operation()
    first = time.perf_counter() - start
    check(peer.host(result))
    del result
    return timed(operation, first)


def network(neurons: int, layers: int) -> ps.Network:
    """Return the official network where its files are there, else a generated one."""
    if neurons == 1024 and WEIGHTS.is_dir():
        return ps.load_network(WEIGHTS, neurons, layers)
    return ps.radixnet(neurons, layers, seed=0)


def random_layer() -> Any:
    """Return 4,096 x 4,096, 1 % dense: row lengths Pareto-distributed, values random."""
    rng = np.random.default_rng(0)
    neurons = 4096
    lengths = rng.pareto(2.0, neurons) + 0.3
    lengths = np.clip(lengths / lengths.mean() * 0.01 * neurons, 1, neurons).astype(int)
    columns = np.concatenate([rng.choice(neurons, k, replace=False) for k in lengths])
    values = rng.standard_normal(columns.size).astype(np.float32)
    A = sp.csr_array(
        (values, columns, np.concatenate(([0], np.cumsum(lengths)))), shape=(neurons, neurons)
    )
    A.sort_indices()
    return A


def run_case(case: str, peer: Peer) -> dict[str, Timing]:
    """Run one case; returns a timing for each operation in it, none where the peer has none."""
    kind, _, size = case.partition(" ")
    if kind in ("spmm", "random"):
        return _products(size, kind, peer) if hasattr(peer, "spmm") else {}
    if kind == "spgemm":
        return _sparse_product(size, peer) if hasattr(peer, "spgemm") else {}
    return _inference(*map(int, size.split("x")), peer) if hasattr(peer, "inference") else {}


def executed_edges(case: str) -> int:
    """Return the multiply-adds of a product; of an inference the challenge's inputs x edges."""
    kind, _, size = case.partition(" ")
    if kind == "spgemm":
        A, B = _sparse_operands(size)
        return int(np.diff(B.indptr)[A.indices].sum())
    left, right = map(int, size.split("x"))
    if kind == "inference":
        return INPUTS * 32 * left * right
    return right * int((random_layer() if kind == "random" else _layer_of(left)).nnz)


def _layer_of(neurons: int) -> Any:
    return sp.csr_array(network(neurons, LAYER + 1).layers[LAYER].csr().T)


def _products(size: str, kind: str, peer: Peer) -> dict[str, Timing]:
    neurons, columns = map(int, size.split("x"))
    A = random_layer() if kind == "random" else _layer_of(neurons)
    rng = np.random.default_rng(0)
    B = rng.random((neurons, columns), np.float32)
    rows = rng.choice(neurons, SAMPLED_ROWS, replace=False)
    exact = A[rows].astype(np.float64) @ B.astype(np.float64)
    bias = np.full(neurons, BIAS, np.float32)
    scale = float(np.abs(exact).max())

    def agrees(expected: Any) -> Callable[[Any], None]:
        return lambda C: np.testing.assert_allclose(C[rows], expected, rtol=1e-4, atol=1e-5 * scale)

    return {
        "product": checked(peer, peer.spmm(A, B), agrees(exact)),
        "layer": checked(
            peer, peer.layer(A, B, bias, Y_MAX), agrees(np.clip(exact + BIAS, 0, Y_MAX))
        ),
    }


def _sparse_operands(case: str) -> tuple[Any, Any]:
    """Return the features before layer 1 or 2 and its weights, or two wide matrices."""
    if case == "wide":
        first, second = network(WIDE, 2).layers
        return first.csr(), second.csr()
    if case == "random":
        return _random_rows(0), _random_rows(1)
    layer, layers = int(case), network(1024, 2).layers
    Y = ps.load_inputs(IMAGES, 1024, INPUTS).csr(np.float32)
    if layer == 2:
        Y = ps.get_backend("scipy").layer(layers[0], Y, y_max=Y_MAX)
        Y.sort_indices()
    return Y, layers[layer - 1].csr()


def _random_rows(seed: int) -> Any:
    rng = np.random.default_rng(seed)
    places = np.arange(WIDE).repeat(EACH), rng.integers(0, WIDE, WIDE * EACH)
    return sp.csr_array((rng.random(WIDE * EACH, np.float32), places), shape=(WIDE, WIDE))


def _sparse_product(case: str, peer: Peer) -> dict[str, Timing]:
    A, B = _sparse_operands(case)
    rows = np.random.default_rng(0).choice(A.shape[0], 2000, replace=False)
    expected = A[rows] @ B
    scale = float(abs(expected).max())

    def check(C: Any) -> None:
        assert C.shape == (A.shape[0], B.shape[1])
        assert abs(sp.csr_array(C)[rows] - expected).max() <= 1e-5 * scale

    return {"product": checked(peer, peer.spgemm(A, B), check)}


def _inference(neurons: int, layers: int, peer: Peer) -> dict[str, Timing]:
    net = network(neurons, layers)
    features = ps.load_inputs(IMAGES, neurons, INPUTS)
    # The first 500 are checked against the reference; run_peers holds the numbers of survivors
    # against each other.
    few = ps.infer(net, features[:500], "scipy").categories

    def check(categories: Any) -> None:
        np.testing.assert_array_equal(categories[categories < 500], few)
        survivors.append(int(categories.size))

    survivors: list[int] = []
    timing = checked(peer, peer.inference(net, features), check)
    return {f"categories {survivors[0]}": timing}
