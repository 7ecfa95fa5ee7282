"""Every kernel on whole networks, beside a reference: the first thing to run on a new device.

`check_kernels.py [--cases 1024x24,4096x24,...] [--inputs N]` runs generated networks by every
design of kernels (auto, clustered, resident, staged, csr), and once with all exact passes, in
float32 and in float16 storage, on the same random inputs, and compares categories and scores with
those of the numba backend. A line for each; what does not fit the device, or fails, is named with
its error, and the rest goes on. The weights of a layer are equal, which other kernels take than
weights that differ: a case that ends with v has weights of two values.

Exit code 0: all answers agree; 1: one does not, or something failed; 2: there is no GPU, or a case
is no network.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from cases import parse_cases
from device_facts import opened

import portable_spdnn as ps
from portable_spdnn.backend import Backend
from portable_spdnn.plans.planner import make_plan

CASES = "1024x24,1024x24v,4096x24,16384x12,65536x8"
KERNELS = ("auto", "clustered", "resident", "staged", "csr")
# Relative to the largest score: sums of float32 in another order, and of rounded numbers.
TOLERANCES = {"same": 1e-4, "float16": 2e-2}


def main(arguments: list[str] | None = None, backend: Backend | None = None) -> int:
    """Compare all; see the module for exit codes. `backend` takes the place of cupy."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument(
        "--cases", default=CASES, help="NEURONSxLAYERS[v],...; default: %(default)s"
    )
    parser.add_argument("--inputs", type=int, default=2000, help="default: %(default)s")
    options = parser.parse_args(arguments)
    cases = options.cases.split(",")
    try:
        parse_cases(",".join(case.removesuffix("v") for case in cases))
        device = backend or opened("cupy")
    except (ps.BackendUnavailable, ps.InputError) as error:
        print(f"check_kernels: {error}", file=sys.stderr)
        return 2
    print(device.device, flush=True)
    wrong = 0
    for case in cases:
        network = network_of(case)
        rng = np.random.default_rng(0)  # of any density: some inputs die, and some stay
        features = rng.random((options.inputs, network.neurons)) < rng.random((options.inputs, 1))
        expected = make_plan(opened("numba"), network).run(features)
        for storage, tolerance in TOLERANCES.items():
            for kernel, passes in [*((kernel, "none") for kernel in KERNELS), ("auto", "all")]:
                plan_options = ps.PlanOptions(
                    kernel=kernel, storage=storage, exact_passes=passes,
                    expected_inputs=len(features),
                )  # fmt: skip
                found = compared(device, network, features, expected, plan_options, tolerance)
                wrong += not found.startswith("agrees")
                named = f"{kernel}, exact passes" if passes == "all" else kernel
                print(f"{case}, {named}, storage {storage}: {found}", flush=True)
    print("all agree" if not wrong else f"{wrong} do not agree")
    return 1 if wrong else 0


def network_of(case: str) -> ps.Network:
    """Return the network of a case; see the module."""
    ((neurons, layers),) = parse_cases(case.removesuffix("v"))
    network = ps.radixnet(neurons, layers)
    if not case.endswith("v"):
        return network
    varied = []
    for layer in network:
        W = layer.csr()
        W.data *= np.where(np.arange(W.nnz) % 2, 0.75, 1.25)  # on average as they were
        varied.append(ps.Layer(W, layer.bias))
    return ps.Network(varied, network.y_max)


def compared(
    device: Backend,
    network: ps.Network,
    features: Any,
    expected: ps.Result,
    options: ps.PlanOptions,
    tolerance: float,
) -> str:
    """Run a network once, and return how its answer differs from the expected."""
    start = time.perf_counter()
    try:
        plan = make_plan(device, network, options)
        planned = time.perf_counter() - start
        result = plan.run(features)
    except ps.InputError as error:
        does_not_fit = options.kernel == "resident" and "do not fit" in str(error)
        return f"{'agrees: none, ' if does_not_fit else 'refused: '}{error}"
    except Exception as error:  # noqa: BLE001 - named, and the other kernels go on
        return f"FAILED: {type(error).__name__}: {error}"
    scale = max(float(np.abs(expected.scores).max(initial=0)), 1e-30)
    difference = float(np.abs(result.scores - expected.scores).max(initial=0)) / scale
    differing = int(np.setxor1d(result.categories, expected.categories).size)
    text = (
        f"largest difference {difference:.1e} of the largest score, {differing} of "
        f"{expected.categories.size} categories differ; planned in {planned:.2f} s, ran in "
        f"{1e3 * result.inference_seconds:.2f} ms"
    )
    agrees = difference <= tolerance and (not differing or options.storage == "float16")
    return ("agrees: " if agrees else "WRONG: ") + text


if __name__ == "__main__":
    sys.exit(main())
