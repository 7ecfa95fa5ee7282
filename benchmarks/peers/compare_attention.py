"""Sparse attention beside dense flash attention of PyTorch: `compare_attention.py --threads 1`.

The mask is that of Sputnik's Transformer (Gale et al., SC 2020): a band of 256 keys and 5 % of the
other entries at random; 8 heads of 64 columns in float32, the same arrays for both. PyTorch's
scaled_dot_product_attention computes every entry; without a mask it is fastest. Both run by turns
in one process, and the shortest time of each counts. Rates count useful work alone: 4 d operations
for each entry (of all entries, for PyTorch). At equal efficiency the ratio would be the limit,
1 / density. With `--queries 1` the last query alone is computed, as where a text is generated.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import portable_spdnn as ps

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from machine_facts import machine_facts

HEADS, D, BAND, OFF_BAND = 8, 64, 256, 0.95
CHECKED_QUERIES = 16
REST_SECONDS, CALLS = 0.3, 3
COLUMNS = (
    ("length", "{length}"), ("queries", "{queries}"), ("density", "{density:.4f}"),
    ("limit", "{limit:.2f}"), ("torch ms", "{torch_ms:.3f}"), ("numba ms", "{numba_ms:.3f}"),
    ("times", "{ratio:.2f}"), ("torch % of peak", "{torch_percent:.0f}"),
    ("numba % of peak", "{numba_percent:.0f}"), ("one call ms", "{call_ms:.2f}"),
    ("handle ms", "{handle_ms:.1f}"),
)  # fmt: skip


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def rested(work: Callable[[], Any]) -> float:
    """Time the best of some calls, once the threads of what ran before are asleep."""
    time.sleep(REST_SECONDS)  # threads of PyTorch look for more work for a while
    return min(seconds(work) for _ in range(CALLS))


def check(out: Any, mask: Any, Q: Any, K: Any, V: Any) -> None:
    """Raise AssertionError where some queries of a head are not those of float64."""
    for query in np.linspace(0, len(Q) - 1, CHECKED_QUERIES).astype(int):
        keys = mask.indices[mask.indptr[query] : mask.indptr[query + 1]]
        scores = K[keys].astype(np.float64) @ Q[query] / np.sqrt(D)
        weights = np.exp(scores - scores.max())
        expected = weights / weights.sum() @ V[keys]
        assert np.abs(out[query] - expected).max() < 1e-5, f"query {query} is wrong"


def compare(
    backend: ps.Backend, length: int, queries: int | None, rounds: int, peak: float
) -> dict[str, Any]:
    """Time one length, of all or the last queries; `peak`: operations per second of all threads."""
    mask = ps.masks.union(ps.masks.band(length, BAND), ps.masks.random(length, OFF_BAND, seed=1))
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(1, HEADS, length, D, generator=generator) for _ in range(3)]
    if queries is not None:
        mask = mask[-queries:]
        tensors[0] = tensors[0][:, :, -queries:].contiguous()
    area = mask.shape[0] * length
    Q, K, V = (tensor[0].numpy() for tensor in tensors)
    handles = [seconds(lambda: backend.attention_handle(mask, d=D)) for _ in range(2)]
    handle, out = backend.attention_handle(mask, d=D), np.empty_like(Q)
    ours: Callable[[], Any] = lambda: handle.attend(Q, K, V, out)  # noqa: E731
    dense: Callable[[], Any] = lambda: torch.nn.functional.scaled_dot_product_attention(*tensors)  # noqa: E731
    ours()
    check(out[-1], mask, Q[-1], K[-1], V[-1])
    dense()
    times = [(rested(dense), rested(ours)) for _ in range(rounds)]
    torch_seconds, numba_seconds = (min(column) for column in zip(*times, strict=True))
    entries, every = HEADS * mask.nnz, HEADS * area
    return {
        "length": length,
        "queries": mask.shape[0],
        "density": mask.nnz / area,
        "limit": area / mask.nnz,
        "torch_ms": 1e3 * torch_seconds,
        "numba_ms": 1e3 * numba_seconds,
        "ratio": torch_seconds / numba_seconds,
        "torch_percent": 100 * 4 * D * every / torch_seconds / peak,
        "numba_percent": 100 * 4 * D * entries / numba_seconds / peak,
        "call_ms": 1e3 * seconds(lambda: backend.sparse_attention(Q, K, V, mask)),
        "handle_ms": 1e3 * min(handles),
        "prepared": handle.describe(),
    }


def main() -> int:
    """Compare at all lengths, and print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096, 12288])
    parser.add_argument("--queries", type=int, help="the last of them; default: all")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    backend = ps.get_backend("numba", threads=options.threads)
    peak = backend.measure_limits().flops
    rows = []
    for length in options.lengths:
        rows.append(compare(backend, length, options.queries, options.rounds, peak))
    facts = machine_facts()
    if options.json:
        print(json.dumps({"machine": facts, "peak_flops": peak, "rows": rows}, indent=1))
        return 0
    print(f"{backend.device}; torch {torch.__version__}; peak {peak / 1e9:.0f} GFLOP/s")
    print("  ".join(title for title, _ in COLUMNS))
    for row in rows:
        cells = (form.format(**row).rjust(len(title)) for title, form in COLUMNS)
        print("  ".join(cells))
    return 0


if __name__ == "__main__":
    sys.exit(main())
