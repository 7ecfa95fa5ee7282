"""The architectures that tests compile for, as far as the NVRTC at hand does."""

from __future__ import annotations

import pytest
from kernel_catalog import ARCHITECTURES

from portable_spdnn_gpu.compile.nvrtc import KernelCompilationError, compiler_version


def _compiles_for_old_ones() -> bool:
    try:
        return int(compiler_version().split(".")[0]) < 13
    except KernelCompilationError:
        return False


OLDEST_OF_CUDA_13 = 75
COMPILES_FOR_OLD_ONES = _compiles_for_old_ones()


def is_compiled_for(architecture: int) -> bool:
    """Whether the NVRTC at hand compiles for an architecture."""
    return architecture >= OLDEST_OF_CUDA_13 or COMPILES_FOR_OLD_ONES


def needs_compiler_of(architecture: int) -> pytest.MarkDecorator:
    """Return the mark of a test that compiles for an architecture."""
    return pytest.mark.skipif(
        not is_compiled_for(architecture),
        reason=f"NVRTC 13 does not compile for sm_{architecture}; that of CUDA 12 does",
    )


EACH_ARCHITECTURE = pytest.mark.parametrize(
    "architecture",
    [
        pytest.param(architecture, marks=needs_compiler_of(architecture))
        for architecture in ARCHITECTURES
    ],
)
