"""Scripts in a process whose kernels are compiled as for a processor without AVX-512."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from llvmlite import binding

FEATURES = binding.get_host_cpu_features()
needs_avx512 = pytest.mark.skipif(
    not FEATURES.get("avx512f"), reason="vectors are those of AVX2 or less anyway"
)


def output_without_avx512(script: Path, cache: Path, *arguments: object) -> list[str]:
    """Run a script, which must succeed, and return the words that it printed.

    `cache` is an empty folder for its machine code.
    """
    features = ",".join(
        f"{'+' if has and not name.startswith('avx512') else '-'}{name}"
        for name, has in FEATURES.items()
    )
    environment = {
        **os.environ, "NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": features,
        "NUMBA_CACHE_DIR": str(cache),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(script), *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()
