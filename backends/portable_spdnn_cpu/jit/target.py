"""The processor that kernels are compiled for: its vector registers, as LLVM sees them."""

from __future__ import annotations

from llvmlite import binding
from numba.core import config


def _features() -> dict[str, bool]:
    """Return what Numba compiles for: NUMBA_CPU_FEATURES where that is set, else the host's."""
    given: str | None = vars(config)["CPU_FEATURES"]
    if given is None:
        return dict(binding.get_host_cpu_features())
    named = given.split(",")
    return {feature[1:]: feature[0] == "+" for feature in named if feature}


_FEATURES = _features()
VECTOR_REGISTERS = 32 if _FEATURES.get("avx512f") else 16
# Bytes of one: AVX-512, AVX2, or what is common to all (SSE2, NEON).
VECTOR_BYTES = 64 if _FEATURES.get("avx512f") else 32 if _FEATURES.get("avx2") else 16
