"""Scripts in a process whose kernels are compiled for another processor than this one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from llvmlite import binding

FEATURES = binding.get_host_cpu_features()
needs_avx512 = pytest.mark.skipif(
    not FEATURES.get("avx512f"), reason="this processor has no AVX-512"
)
needs_avx2 = pytest.mark.skipif(not FEATURES.get("avx2"), reason="this processor has no AVX2")
needs_sse2 = pytest.mark.skipif(not FEATURES.get("sse2"), reason="this is no x86 processor")


def output_with_vectors(
    size: int, script: Path, cache: Path, *arguments: object, wide: str = "skylake-avx512"
) -> list[str]:
    """Run a script, which must succeed, and return the words that it printed.

    Vectors have 64 bytes, as with AVX-512, 32, as with AVX2, or 16, as with SSE2. `cache` is an
    empty folder for machine code, and `wide` LLVM's name of the processor with those of 64 bytes:
    of one with fast gathers, unless another is given.
    """
    name, features = "x86-64", "+sse,+sse2"
    if size > 16:
        name = {64: wide, 32: "haswell"}[size]
        features = ",".join(
            f"{'+' if has and (size == 64 or not feature.startswith('avx512')) else '-'}{feature}"
            for feature, has in FEATURES.items()
        )
    environment = {
        **os.environ, "NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features,
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
