"""Every kernel in every configuration that the cupy backend launches, and where it runs."""

from __future__ import annotations

import itertools

import numpy as np

from portable_spdnn.epilogue import ACTIVATIONS
from portable_spdnn_gpu.compile.catalog import (
    ANY_EPILOGUE,
    BOUNDED,
    COMPARE_KERNELS,
    LAYOUT_KERNELS,
    NO_EPILOGUE,
    Kernel,
    clustered_spmm,
    compared_rows,
    csr_spmm,
    feature_layout,
    feature_rows,
    limit_kernel,
    list_active,
    persistent_layers,
    spgemm,
    staged_configs,
    staged_spmm,
)
from portable_spdnn_gpu.compile.precision import Precision

PRECISIONS = (Precision(), Precision(np.dtype(np.float64)), Precision(half=True))
# Compiled for with no device: Volta, which CUDA 12 alone still compiles for, Turing, Ampere,
# Hopper, Blackwell.
ARCHITECTURES = (70, 75, 80, 90, 100)
# Bytes of shared memory that a block may ask for. CUDA C++ Programming Guide, "Technical
# Specifications per Compute Capability".
SHARED_LIMITS = {70: 96 << 10, 75: 64 << 10, 80: 163 << 10, 90: 227 << 10, 100: 227 << 10}
# Widths among which every configuration of persistent_layers is chosen somewhere, rising.
PERSISTENT_WIDTHS = range(64, 4097, 64)
GELU = ANY_EPILOGUE + ACTIVATIONS.index("gelu")  # the activation that takes the most registers
ROW_KERNELS = ("mark_active", "count_nonzeros", "take_dense", "take_sparse", "transpose")
LIMITS = ("fma_chains", "read_shared", "fill_words", "read_global")


def catalog(architecture: int | None = None) -> list[Kernel]:
    """Return every kernel in every configuration that the backend launches.

    Parameters
    ----------
    architecture : int, optional
        An architecture, whose device chooses no other kernels. By default all are included.
    """
    limits = sorted({SHARED_LIMITS[a] for a in ARCHITECTURES if architecture in (None, a)})
    persistent = {  # the widest of each configuration
        kernel.defines: kernel
        for setting in itertools.product(PRECISIONS, PERSISTENT_WIDTHS, limits, (False, True))
        if (kernel := persistent_layers(*setting)) is not None
    }
    kernels = [list_active(), *(limit_kernel(name) for name in LIMITS), *persistent.values()]
    for precision in PRECISIONS:
        for epilogue in (NO_EPILOGUE, BOUNDED, GELU):
            for product in (csr_spmm, clustered_spmm, staged_spmm):
                kernels.append(product(precision, epilogue))
            kernels.append(clustered_spmm(precision, epilogue, constant=True))
        # Linear and ReLU layers are tuned, other products are not.
        kernels += [staged_spmm(precision, BOUNDED, c) for c in staged_configs(precision)[1:]]
        kernels += [feature_layout(name, precision) for name in LAYOUT_KERNELS]
    for dtype in (np.float32, np.float64):
        for epilogue in (NO_EPILOGUE, BOUNDED, GELU):
            kernels += [spgemm("count", dtype, epilogue), spgemm("fill", dtype, epilogue)]
        kernels += [feature_rows(name, dtype) for name in ROW_KERNELS]
        kernels += [compared_rows(name, dtype) for name in COMPARE_KERNELS]
    return kernels
