"""Whole inference on 60,000 images, and the fused layer: `python benchmarks/challenge_1024x120.py`.

The 60,000 MNIST images through 1,024 neurons x 120 layers with the official weights: the numba
plan against the serial reference's layer loop over all of them, in one run; the same with all
exact passes, and on 1,920 generated layers; and the fused layer on random features that are all
active against scipy's csr @ dense on the same product. Needs `../shared/graphchallenge` and
`../shared/mnist` beside the checkout.
"""

from __future__ import annotations

import argparse
import datetime
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import portable_spdnn as ps
from portable_spdnn.passes import EXACT_PASSES
from portable_spdnn.plans.planner import make_plan

FOLDER = Path(__file__).resolve().parent
SHARED = FOLDER.parents[1] / "shared"
WEIGHTS = SHARED / "graphchallenge"
IMAGES = SHARED / "mnist" / "train-images-idx3-ubyte.gz"
NEURONS, LAYERS = 1024, 120
DEEP_LAYERS = 1920
DENSE_INPUTS = 4096
REPEAT = 5


def load() -> tuple[ps.Network, Any]:
    """Return the official network and the 60,000 images."""
    return ps.load_network(WEIGHTS, NEURONS, LAYERS), ps.load_inputs(IMAGES, NEURONS)


def inference_of_numba() -> dict[str, Any]:
    """Run the numba plan in a process that does nothing else, so that its memory is known."""
    network, features = load()
    return {
        **runs_of_numba(network, features, ()),
        # The system counts kilobytes on Linux, bytes on macOS.
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        * (1 if sys.platform == "darwin" else 1024),
    }


def runs_of_numba(network: ps.Network, features: Any, passes: tuple[str, ...]) -> dict[str, Any]:
    """Run the numba plan some times."""
    plan = make_plan(ps.get_backend("numba"), network, ps.PlanOptions(exact_passes=passes))
    runs = [plan.run(features) for _ in range(REPEAT)]
    times = [run.inference_seconds for run in runs]
    return {
        "exact_passes": list(runs[0].exact_passes),
        "plan_seconds": plan.plan_seconds,
        "first_seconds": times[0],
        "median_seconds": statistics.median(times),
        "categories": runs[0].categories.tolist(),
        "executed_edges": runs[0].executed_edges,
        "challenge_edges": runs[0].inputs * runs[0].edges,
        "plan": plan.describe().splitlines(),
    }


def fastest(operation: Callable[[], Any]) -> float:
    """Return the least seconds of some calls, after one that warms up."""
    operation()
    times = []
    for _ in range(4 * REPEAT):
        start = time.perf_counter()
        operation()
        times.append(time.perf_counter() - start)
    return min(times)


def fused_layer(network: ps.Network) -> dict[str, float]:
    """Time the fused layer on inputs that are all active, and scipy's csr @ dense beside it."""
    layer = network.layers[7]
    W, by_output = layer.csr(), layer.csr().T.tocsr()
    Y = np.random.default_rng(0).random((DENSE_INPUTS, NEURONS), dtype=np.float32) * 32
    B = np.ascontiguousarray(Y.T)
    backend = ps.get_backend("numba")
    ours = backend.layer(W, Y, layer.bias, network.y_max)
    expected = np.clip((by_output @ B).T + layer.bias.astype(np.float32), 0, network.y_max)
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-4)
    edges = W.nnz * DENSE_INPUTS
    scipy_seconds = fastest(lambda: by_output @ B)
    numba_seconds = fastest(lambda: backend.layer(W, Y, layer.bias, network.y_max))
    handle, out = backend.layer_handle(W, layer.bias, network.y_max), np.empty_like(Y)
    np.testing.assert_allclose(handle.apply(Y, out), expected, rtol=1e-4, atol=1e-4)
    prepared_seconds = fastest(lambda: handle.apply(Y, out))
    return {
        "prepared_edge_rate": edges / prepared_seconds,
        "edge_rate": edges / numba_seconds,
        "scipy_csr_dense_edge_rate": edges / scipy_seconds,
        "speed_up": scipy_seconds / numba_seconds,
    }


def with_passes(network: ps.Network, features: Any, expected: Any) -> dict[str, Any]:
    """Time all exact passes on the official network, and on a generated one of 1,920 layers."""
    record = {}
    for layers, one in ((LAYERS, network), (DEEP_LAYERS, ps.radixnet(NEURONS, DEEP_LAYERS))):
        runs = runs_of_numba(one, features, EXACT_PASSES)
        survivors = runs.pop("categories")
        if one is network:
            np.testing.assert_array_equal(survivors, expected)
        runs["edge_rate"] = runs["challenge_edges"] / runs["median_seconds"]
        record[f"{NEURONS}x{layers}"] = runs
    return record


def main() -> int:
    """Measure, print and store; exit code 0, or 2 where the data is absent."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="JSON file; default: a dated one in results/")
    parser.add_argument("--numba-only", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not (WEIGHTS.is_dir() and IMAGES.is_file()):
        print(f"skipped: needs {WEIGHTS} and {IMAGES}", file=sys.stderr)
        return 2
    if options.numba_only:
        print(json.dumps(inference_of_numba()))
        return 0
    sys.path.insert(0, str(FOLDER))
    from machine_facts import cpu_slug, machine_facts
    from run_benchmarks import RESULTS, store

    # In a process of its own, so that its memory is known.
    child = subprocess.run(
        [sys.executable, __file__, "--numba-only"], capture_output=True, text=True, check=True
    )
    numba = json.loads(child.stdout)
    network, features = load()
    reference = ps.infer(network, features, "scipy")
    np.testing.assert_array_equal(numba.pop("categories"), reference.categories)
    facts = machine_facts()
    record = {
        "datetime": datetime.datetime.now(datetime.UTC).isoformat(),
        "machine_info": facts,
        "inference": {
            **numba,
            "survivors": int(reference.categories.size),
            "reference_seconds": reference.inference_seconds,
            "speed_up_first": reference.inference_seconds / numba["first_seconds"],
            "speed_up_median": reference.inference_seconds / numba["median_seconds"],
            "edge_rate": numba["challenge_edges"] / numba["median_seconds"],
            "executed_edge_rate": numba["executed_edges"] / numba["median_seconds"],
        },
        "exact_passes": with_passes(network, features, reference.categories),
        "fused_layer": fused_layer(network),
    }
    day = record["datetime"][:10]
    target = options.out or RESULTS / f"{day}-{cpu_slug(facts)}-challenge-1024x120.json"
    store(record, target)
    run, layer = record["inference"], record["fused_layer"]
    print(f"60,000 inputs x {NEURONS} neurons x {LAYERS} layers, {run['survivors']} survive")
    print(f"  scipy loop     {run['reference_seconds']:8.2f} s")
    print(f"  numba, first   {run['first_seconds']:8.2f} s   {run['speed_up_first']:.1f} x")
    print(f"  numba, median  {run['median_seconds']:8.2f} s   {run['speed_up_median']:.1f} x")
    print(
        f"  challenge {run['edge_rate'] / 1e9:.0f}, executed "
        f"{run['executed_edge_rate'] / 1e9:.1f} G edges/s, no exact passes; "
        f"peak memory {run['peak_memory_bytes'] / 1e9:.2f} GB"
    )
    for name, runs in record["exact_passes"].items():
        print(
            f"  {name} with all exact passes: {runs['median_seconds']:.3f} s, challenge "
            f"{runs['edge_rate'] / 1e12:.1f} T edges/s, planning {runs['plan_seconds']:.1f} s"
        )
    print(
        f"fused layer, {DENSE_INPUTS} random inputs: {layer['edge_rate'] / 1e9:.1f} G edges/s, "
        f"{layer['speed_up']:.2f} x scipy csr @ dense; prepared "
        f"{layer['prepared_edge_rate'] / 1e9:.1f} G edges/s"
    )
    print(f"stored in {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
