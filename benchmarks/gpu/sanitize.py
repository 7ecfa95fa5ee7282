"""Kernel tests under compute-sanitizer.

Usage: `python benchmarks/gpu/sanitize.py [--seconds S]`.

Runs memcheck (accesses outside arrays), racecheck (shared memory without a barrier between) and
synccheck (barriers that some threads miss) over the tests of lists of inputs, of products, of
compared rows, of fused segments, and of whole plans with their graphs on the device. CuPy's memory
pool is off, so that every array is an allocation whose ends the tool knows.

Exit code 0: nothing was found; 1: something was, or a test failed; 2: there is no tool or no
device.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path

TOOL = "compute-sanitizer"
CHECKS = ("memcheck", "racecheck", "synccheck")
FOLDER = Path(__file__).resolve().parents[2]
TESTS = (
    "tests/gpu/device/test_input_lists.py",
    "tests/gpu/spmm/test_launch.py",
    "tests/gpu/device/test_compared_rows.py",
    "tests/gpu/persistent/test_launch.py",
    "tests/gpu/network/test_plan.py",
)


def run_tests(selection: list[str]) -> int:
    """Run the tests in this process without CuPy's memory pool; returns pytest's exit code."""
    import cupy
    import pytest

    cupy.cuda.set_allocator(None)
    return int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *selection]))


def main(arguments: list[str] | None = None) -> int:
    """Run the checks one after the other; see the module for exit codes."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--checks", nargs="+", default=CHECKS, choices=CHECKS)
    parser.add_argument("-k", metavar="EXPRESSION", help="only tests whose names match")
    parser.add_argument(
        "--seconds", type=float, default=540, help="for all checks; default: %(default)s"
    )
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    chosen = ["-k", options.k] if options.k else []
    if options.inside:
        return run_tests([*chosen, *TESTS])
    tool = shutil.which(TOOL)
    if tool is None:
        print(
            f"sanitize: {TOOL} is not on the PATH; it comes with the CUDA toolkit", file=sys.stderr
        )
        return 2
    from portable_spdnn_gpu.device.availability import cuda_availability

    available = cuda_availability()
    if not available.available:
        print(f"sanitize: {available.reason}", file=sys.stderr)
        return 2
    failed, end = [], time.monotonic() + options.seconds
    for check in options.checks:
        print(f"{check} over {', '.join(TESTS)}", flush=True)
        inside = [sys.executable, str(Path(__file__).resolve()), "--inside", *chosen]
        command = [tool, "--tool", check, "--error-exitcode", "1", *inside]
        left = max(end - time.monotonic(), 1)
        try:
            if subprocess.run(command, cwd=FOLDER, check=False, timeout=left).returncode:
                failed.append(check)
        except subprocess.TimeoutExpired:
            failed.append(f"{check} (not done after {options.seconds:g} s in all)")
            break
    print(f"failed: {', '.join(failed)}" if failed else f"nothing found by {len(options.checks)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
