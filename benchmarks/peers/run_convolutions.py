"""Convolutions beside PyTorch (oneDNN), by turns in one process: `run_convolutions.py --threads 1`.

PyTorch's are dense: its convolutions gain nothing from zeros. They are timed on images in both
layouts that it has, channels first (as here) and channels last (which oneDNN does not reorder).
Kernels of 3 x 3 are those of ResNet-50, depthwise ones those of MobileNetV1, one image each.
Results are checked before anything is timed. The rate is of multiply-adds with weights that are not
0, two operations each, as a share of what the processor's multiply-adds reach in the same run.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from conv_shapes import (  # noqa: E402
    MOBILENET_V1,
    RESNET_50,
    RESNET_50_POINTWISE,
    RESNET_50_STRIDED,
    ConvShape,
)

from portable_spdnn_cpu.machine.cpu_info import aligned_empty, processor_name  # noqa: E402
from portable_spdnn_cpu.numba_backend import NumbaBackend  # noqa: E402

ZEROS = (0.9, 0.95)
ROUNDS = 12


def least_seconds(operations: list[Callable[[], Any]]) -> list[float]:
    """Return the least seconds of each of some operations, by turns; each first warms caches."""
    least = [np.inf] * len(operations)
    for _ in range(ROUNDS):
        for number, operation in enumerate(operations):
            operation()
            start = time.perf_counter()
            operation()
            least[number] = min(least[number], time.perf_counter() - start)
    return least


def compare(shape: ConvShape, zeros: tuple[float, ...], backend: NumbaBackend) -> dict[str, Any]:
    """Return the times of a shape in microseconds, dense by PyTorch and with zeros here."""
    image, dense = shape.operands(0)
    x = aligned_empty(image.shape, image.dtype)
    x[...] = image
    convolve = functools.partial(torch.nn.functional.conv2d, **shape.arguments)
    first = torch.from_numpy(x), torch.from_numpy(dense)
    last = [each.contiguous(memory_format=torch.channels_last) for each in first]
    operations = [lambda: convolve(*first), lambda: convolve(*last)]
    work = []
    for share in zeros:
        weights = shape.operands(share)[1]
        handle = backend.conv2d_handle(weights, x.shape, **shape.arguments)
        expected = convolve(first[0], torch.from_numpy(weights)).numpy()
        out = aligned_empty(expected.shape, expected.dtype)
        scale = float(np.abs(expected).max())
        np.testing.assert_allclose(handle.apply(x, out), expected, rtol=1e-4, atol=1e-5 * scale)
        operations.append(functools.partial(handle.apply, x, out))
        work.append(2 * shape.multiply_adds(weights))
    seconds = least_seconds(operations)
    return {
        "shape": str(shape),
        "torch_channels_first_us": round(1e6 * seconds[0], 1),
        "torch_channels_last_us": round(1e6 * seconds[1], 1),
        "here": [
            {"zeros": share, "us": round(1e6 * mine, 1), "gflops": round(flops / mine / 1e9, 1)}
            for share, mine, flops in zip(zeros, seconds[2:], work, strict=True)
        ],
    }


def main() -> int:
    """Measure and print; with --out, store JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="default: all cores")
    parser.add_argument("--out", type=Path, help="JSON file")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    backend = NumbaBackend(options.threads)
    peak = backend.measure_limits().flops / 1e9
    print(f"{processor_name()}, {options.threads} thread(s), {peak:.0f} GFLOP/s at most; "
          f"torch {torch.__version__}", flush=True)  # fmt: skip
    results = []
    pruned = (*RESNET_50, *RESNET_50_STRIDED, *RESNET_50_POINTWISE)
    with torch.inference_mode():
        for shape in (*pruned, *MOBILENET_V1):
            found = compare(shape, (0.0,) if shape.depthwise else ZEROS, backend)
            results.append(found)
            first, last = found["torch_channels_first_us"], found["torch_channels_last_us"]
            print(f"{found['shape']}: torch {first:.0f} us, channels last {last:.0f} us")
            for one in found["here"]:
                print(
                    f"    {one['zeros']:.0%} zeros: {one['us']:.0f} us, {first / one['us']:.2f} "
                    f"and {last / one['us']:.2f} times as fast, {one['gflops']:.0f} GFLOP/s, "
                    f"{one['gflops'] / peak:.0%} of the peak",
                    flush=True,
                )
    if options.out is not None:
        facts = {"cpu": processor_name(), "threads": options.threads, "peak_gflops": round(peak)}
        record = {**facts, "torch": torch.__version__, "results": results}
        options.out.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
