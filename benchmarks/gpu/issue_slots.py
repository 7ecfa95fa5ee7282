"""Rooflines of the kernels from their machine code: `issue_slots.py [--nvdisasm PATH]`.

No GPU is needed: kernels are compiled for sm_90, and nvdisasm (of the CUDA toolkit, or of the
package nvidia-cuda-nvdisasm) shows their instructions. The hot loop of a kernel is the innermost
loop with the most multiply-adds. A multiprocessor issues four warp instructions in a cycle, and
each of its four parts does one multiply-add of 32 lanes: the share of multiply-adds among the
instructions of the hot loop is the part of the arithmetic peak that can be reached at most. It is
printed as edges per second beside what the bytes of each level of memory allow, by the cost models
of the backend, for a layer of the challenge. Limits are those of the data sheet of an H100; nothing
is measured.
"""

from __future__ import annotations

import argparse
import itertools
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from portable_spdnn.graphchallenge.radixnet import radixnet_layer
from portable_spdnn_gpu.compile.catalog import BOUNDED, Kernel
from portable_spdnn_gpu.compile.nvrtc import compile_source
from portable_spdnn_gpu.compile.precision import Precision
from portable_spdnn_gpu.device.properties import DATA_SHEETS
from portable_spdnn_gpu.network.costs import step_cost
from portable_spdnn_gpu.persistent.packing import SegmentLayer, pack_segment
from portable_spdnn_gpu.spmm.output_rows import OutputRows, by_output
from portable_spdnn_gpu.spmm.packing import VARIANTS, pack

ARCHITECTURE = 90
SHARED_LIMIT = 227 << 10  # bytes that a block may ask for
NEURONS, NARROW = 16384, (1024, 4096)  # of layers by themselves, and in fused segments
INPUTS = 1800  # active ones, as in most layers of the challenge
LABEL = re.compile(r"(\.L_x_\d+):")
INSTRUCTION = re.compile(r"\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?(.*?);")
JUMP = re.compile(r"BRA.*`\((\.L_x_\d+)\)")
HEADER = (
    "kernel", "registers", "hot loop", "multiply-adds", "issue slots", "L1", "L2", "memory",
)  # fmt: skip


def main() -> int:
    """Print a row for each kernel."""
    nvdisasm = nvdisasm_of_arguments(__doc__)
    print(f"| {' | '.join(HEADER)} |")
    print("|---" * len(HEADER) + "|")
    for half in (False, True):
        precision = Precision(half=half)
        for name, kernel, packed in kernels(precision):
            code, log = compile_source(kernel, ARCHITECTURE)
            loop = hot_loop(disassembled(nvdisasm, code))
            sheet = DATA_SHEETS[ARCHITECTURE]
            share = multiply_adds(loop) / len(loop)
            model = step_cost(packed, INPUTS, precision, sheet.l2_bytes)
            rates = [share * sheet.limits.flops / 2]
            for level in ("l1", "l2", "memory"):
                needed = model.bytes_per_edge.get(level, 0)
                rates.append(getattr(sheet.limits, level) / needed if needed else float("inf"))
            registers = re.search(r"Used (\d+) registers", log)
            cells = [
                f"{name}, {precision.storage}",
                registers[1] if registers else "?",
                f"{len(loop)} instructions",
                f"{100 * share:.0f} %",
                *(f"{rate / 1e12:.1f}" if rate < float("inf") else "-" for rate in rates),
            ]
            print(f"| {' | '.join(cells)} |")
    return 0


def kernels(precision: Precision) -> Iterator[tuple[str, Kernel, Any]]:
    """Yield a name, a kernel and what it runs: layers of the challenge, once of other weights."""
    A = by_output(radixnet_layer(NEURONS, 3).csr(precision.sums))
    for variant in VARIANTS:
        packed = pack(A, variant, precision)
        same = " (equal weights)" if variant == "clustered" else ""
        yield f"{variant}{same}", packed.launches[0].kernel(precision, BOUNDED), packed
    A.data[::2] *= 2
    packed = pack(A, "clustered", precision)
    yield "clustered", packed.launches[0].kernel(precision, BOUNDED), packed
    for neurons, constant in itertools.product(NARROW, (True, False)):
        layers = [by_output(radixnet_layer(neurons, n).csr(precision.sums)) for n in range(3)]
        bias = np.zeros(neurons, precision.sums)
        segment = [SegmentLayer(OutputRows.of(layer, constant), bias, True) for layer in layers]
        fused = pack_segment(segment, precision, SHARED_LIMIT)
        same = " (equal weights)" if constant else ""
        yield f"resident{same}, {neurons:,} neurons", fused.kernel, fused


def nvdisasm_of_arguments(description: str) -> str:
    """Return the nvdisasm that a command line names, or that of PATH; ends where there is none."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--nvdisasm", default=shutil.which("nvdisasm"), help="default: of PATH")
    found: str | None = parser.parse_args().nvdisasm
    if found is None:
        print("nvdisasm is not on the PATH; install nvidia-cuda-nvdisasm, and name its place")
        sys.exit(2)
    return found


def disassembled(nvdisasm: str, code: bytes) -> str:
    """Return the instructions of machine code as text."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(code)
        done = subprocess.run([nvdisasm, "-c", path], capture_output=True, text=True, check=True)
    return done.stdout


def hot_loop(text: str) -> list[str]:
    """Return the instructions of the innermost loop with the most multiply-adds."""
    instructions: list[str] = []
    labels: dict[str, int] = {}
    loops: list[tuple[int, int]] = []
    for line in text.splitlines():
        if label := LABEL.match(line):
            labels[label[1]] = len(instructions)
        elif found := INSTRUCTION.match(line):
            instructions.append(found[1])
            jump = JUMP.search(found[1])
            if jump and jump[1] in labels:  # backwards
                loops.append((labels[jump[1]], len(instructions)))
    innermost = [
        instructions[first:end]
        for first, end in loops
        if not any((a, b) != (first, end) and first <= a and b <= end for a, b in loops)
    ]
    if not innermost:
        raise ValueError("the machine code has no loop")
    return max(innermost, key=lambda loop: (multiply_adds(loop), -len(loop)))


def multiply_adds(loop: list[str]) -> int:
    """Return how many instructions are multiply-adds of float32."""
    return sum(one.startswith("FFMA") for one in loop)


if __name__ == "__main__":
    sys.exit(main())
