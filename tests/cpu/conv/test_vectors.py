"""Vectors of the length that the processor has: the other one is emitted, run and looked at."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from llvmlite import binding

FEATURES = binding.get_host_cpu_features()


@pytest.mark.skipif(not FEATURES.get("avx512f"), reason="vectors are those of AVX2 or less anyway")
def test_code_without_avx512(tmp_path: Path) -> None:
    features = ",".join(
        f"{'+' if has and not name.startswith('avx512') else '-'}{name}"
        for name, has in FEATURES.items()
    )
    environment = {
        **os.environ, "NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": features,
        "NUMBA_CACHE_DIR": str(tmp_path),
    }  # fmt: skip
    script = Path(__file__).with_name("vectors_of_avx2.py")
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["ymm"]
