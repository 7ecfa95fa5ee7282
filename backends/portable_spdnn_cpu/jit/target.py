"""The processor that kernels are compiled for: its vector registers, as LLVM sees them."""

from __future__ import annotations

from llvmlite import binding

_FEATURES = binding.get_host_cpu_features()
VECTOR_REGISTERS = 32 if _FEATURES.get("avx512f") else 16
# Bytes of one: AVX-512, AVX2, or what is common to all (SSE2, NEON).
VECTOR_BYTES = 64 if _FEATURES.get("avx512f") else 32 if _FEATURES.get("avx2") else 16
