"""Every kernel and its claims."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from portable_spdnn_gpu.compile.precision import PRECISIONS, SINGLE, Precision

# Compiled for all of these wherever the wheels are, with no device: Volta, which CUDA 12 alone
# still compiles for, Turing, Ampere, Hopper, Blackwell.
ARCHITECTURES = (70, 75, 80, 90, 100)
OLDEST_OF_CUDA_13 = 75
# Bytes of shared memory that a block may ask for. CUDA C++ Programming Guide, "Technical
# Specifications per Compute Capability".
SHARED_LIMITS = {70: 96 << 10, 75: 64 << 10, 80: 163 << 10, 90: 227 << 10, 100: 227 << 10}
# What it gets without asking, everywhere.
SHARED_UNASKED = 48 << 10


@dataclass(frozen=True)
class Kernel:
    """One kernel in one configuration, and the resources that it claims to stay within.

    Attributes
    ----------
    name : str
        The function's.
    source : str
        The file's, below `kernel_folder()`: ``spmm/csr_spmm.cu``.
    threads : int
        Of a block.
    defines : tuple of (str, str)
        Macros; they always set SCALAR.
    registers : int
        At most, for each thread, on every architecture.
    static_shared, dynamic_shared : int
        Bytes for each block: the first exactly, on every architecture, without what the
        driver reserves; the second as the launch asks for.
    """

    name: str
    source: str
    threads: int
    defines: tuple[tuple[str, str], ...]
    registers: int
    static_shared: int = 0
    dynamic_shared: int = 0

    @property
    def options(self) -> tuple[str, ...]:
        """The macros as options of a compiler."""
        return tuple(f"-D{name}={value}" for name, value in self.defines)


CLUSTER = 16
# Columns that a block of csr_spmm and of clustered_spmm takes.
CSR_STRIP = 128 * 4
CLUSTER_STRIP = 128 * 2
SPGEMM_ROWS = 4
FEATURE_THREADS = 256
LIST_THREADS = 1024
UNPACK_BYTES = 64
TRANSPOSE_TILE = 32
# Inputs of a block of resident_layers, the most first; its threads and the groups of a warp.
RESIDENT_TILES = (16, 8)
RESIDENT_BLOCKS = ((128, 1), (256, 1), (512, 1), (512, 2))
# Widths among which every configuration is somewhere the one chosen, rising.
RESIDENT_WIDTHS = range(64, 4097, 64)
RESIDENT_NOTES = 32  # bytes of shared memory beside the features
# Of the kernels in limits.cu: vectors of 16 bytes that `read_shared` stages.
LIMIT_THREADS = 256
LIMIT_VECTORS = 1024
LIMITS = ("fma_chains", "read_shared", "fill_words", "read_global", "copy_global")


@dataclass(frozen=True)
class StagedConfig:
    """Tile sizes of `staged_spmm`; staged_spmm.cu says what each is for.

    Attributes
    ----------
    rows : int
        Of A in a block, one for each thread: a multiple of 32.
    minibatch : int
        Columns of B in a block: whole pieces of 16 bytes, 32 at most.
    stage : int
        Rows of B in one of the two buffers.
    """

    rows: int
    minibatch: int
    stage: int

    def __str__(self) -> str:
        return f"{self.rows} rows x {self.minibatch} inputs, stages of {self.stage}"

    def shared_bytes(self, precision: Precision) -> int:
        """Return the dynamic shared memory of a block: two buffers and a row of zeros."""
        return (2 * self.stage + 1) * self.minibatch * int(precision.storage.itemsize)


# What the autotuner may choose; the first is taken where nothing has been measured, and runs
# with the shared memory that every architecture gives without asking. The names are of storage.
STAGED_CONFIGS = {
    "float32": (
        StagedConfig(256, 16, 256),
        StagedConfig(128, 16, 128),
        StagedConfig(512, 16, 256),
        StagedConfig(256, 8, 512),
        StagedConfig(256, 12, 320),
        StagedConfig(256, 32, 128),
        StagedConfig(512, 16, 512),  # 64 KiB and a row of zeros: from sm_80 on
        StagedConfig(512, 32, 256),
    ),
    "float64": (StagedConfig(256, 8, 256), StagedConfig(512, 8, 256), StagedConfig(256, 16, 128)),
    "float16": (StagedConfig(256, 16, 512), StagedConfig(512, 16, 512), StagedConfig(256, 32, 256)),
}
REGISTERS = 65536  # of a multiprocessor


def staged_configs(precision: Precision) -> tuple[StagedConfig, ...]:
    """Return the configurations of `staged_spmm` for a precision, the usual one first."""
    return STAGED_CONFIGS[precision.storage.name]


def _macros(dtype: Any, half: bool = False, **more: int) -> tuple[tuple[str, str], ...]:
    scalar = {4: "float", 8: "double"}[np.dtype(dtype).itemsize]
    macros = {"SCALAR": scalar, **{name: str(value) for name, value in more.items()}}
    if half:
        macros["HALF_STORAGE"] = "1"
    return tuple(macros.items())


def csr_spmm(precision: Precision, activation: bool) -> Kernel:
    """One row of A against a strip of B."""
    macros = _macros(precision.sums, precision.half, ACTIVATION=int(activation))
    registers = 64 if precision.sums.itemsize == 4 else 80
    return Kernel("csr_spmm", "spmm/csr_spmm.cu", 128, macros, registers)


def clustered_spmm(precision: Precision, activation: bool) -> Kernel:
    """Sixteen rows of A that share columns, against a strip of B."""
    size = precision.sums.itemsize
    return Kernel(
        "clustered_spmm", "spmm/clustered_spmm.cu", 128,
        _macros(precision.sums, precision.half, ACTIVATION=int(activation)),
        registers=96 if size == 4 else 168, static_shared=64 * (16 * size + 4),
    )  # fmt: skip


def staged_spmm(
    precision: Precision, activation: bool, config: StagedConfig | None = None
) -> Kernel:
    """Rows of A against a minibatch of columns of B that are staged in shared memory."""
    config = staged_configs(precision)[0] if config is None else config
    # Sums beyond 16 words take more than half of 128 registers: two blocks of 256 rows then.
    words = config.minibatch * precision.sums.itemsize // 4
    registers = 64 if words <= 16 else 128
    blocks = REGISTERS // registers // config.rows
    macros = _macros(
        precision.sums, precision.half, ACTIVATION=int(activation), ROWS=config.rows,
        MINIBATCH=config.minibatch, STAGE=config.stage, BLOCKS=blocks,
    )  # fmt: skip
    return Kernel(
        "staged_spmm", "spmm/staged_spmm.cu", config.rows, macros, registers,
        static_shared=4 * config.minibatch, dynamic_shared=config.shared_bytes(precision),
    )  # fmt: skip


def spgemm(phase: str, dtype: Any, activation: bool) -> Kernel:
    """The phase "count" or "fill" of C = A B, all sparse."""
    return Kernel(
        f"spgemm_{phase}", "spgemm/spgemm.cu", 128, _macros(dtype, ACTIVATION=int(activation)),
        registers=64, static_shared=4 * (1024 * np.dtype(dtype).itemsize + 1024 // 8),
    )  # fmt: skip


def feature_rows(name: str, dtype: Any) -> Kernel:
    """One of the kernels about the inputs of features."""
    tile = TRANSPOSE_TILE * (TRANSPOSE_TILE + 1) * np.dtype(dtype).itemsize
    shared = tile if name == "transpose" else 0
    return Kernel(
        name, "device/feature_rows.cu", FEATURE_THREADS, _macros(dtype), 48, static_shared=shared
    )


def limit_kernel(name: str) -> Kernel:
    """One of the kernels that measure the device, by its name in LIMITS."""
    shared = 16 * LIMIT_VECTORS if name == "read_shared" else 0
    macros = _macros(np.float32)
    return Kernel(
        name, "device/limits.cu", LIMIT_THREADS, macros, registers=64, static_shared=shared
    )


def feature_layout(name: str, precision: Precision) -> Kernel:
    """One of the kernels that bring features to the device's form and back."""
    turns = name in ("turn_rows", "collect_rows")
    tile = TRANSPOSE_TILE * (TRANSPOSE_TILE + 1) * precision.sums.itemsize if turns else 0
    return Kernel(
        name, "device/feature_layout.cu", FEATURE_THREADS,
        _macros(precision.sums, precision.half), 40, static_shared=tile,
    )  # fmt: skip


def list_alive() -> Kernel:
    """The inputs that go on to the next layer."""
    return Kernel(
        "list_alive",
        "device/input_lists.cu",
        LIST_THREADS,
        _macros(np.float32),
        64,
        static_shared=128,
    )


def resident_layers(precision: Precision, widest: int, shared: int) -> Kernel | None:
    """All layers of a narrow network on a tile of inputs.

    Parameters
    ----------
    precision : Precision
    widest : int
        Neurons of the widest layer, the inputs' included.
    shared : int
        Bytes of shared memory that a block of the device may ask for.

    Returns
    -------
    Kernel, or None
        None where the features of a tile fit no block, in shared memory or as sums in
        registers; in double precision they never do.
    """
    if precision.sums.itemsize != SINGLE.itemsize:
        return None
    for tile in RESIDENT_TILES:
        groups = -(-widest // (CLUSTER * 64 // tile))  # of the rows of a warp
        dynamic = (widest + 1) * tile * precision.storage.itemsize + RESIDENT_NOTES
        for threads, of_warp in RESIDENT_BLOCKS:
            if groups <= threads // 32 * of_warp and dynamic <= shared:
                macros = {"TILE": tile, "THREADS": threads, "GROUPS": of_warp}
                return Kernel(
                    "resident_layers", "persistent/persistent_layers.cu", threads,
                    _macros(precision.sums, precision.half, **macros),
                    registers=128, dynamic_shared=dynamic,
                )  # fmt: skip
    return None


def catalog(architecture: int | None = None) -> list[Kernel]:
    """Return every kernel in every configuration that the backend launches.

    Parameters
    ----------
    architecture : int, optional
        Leave out what is not chosen there.
    """
    resident = {}  # the widest of each configuration
    for shared in sorted({SHARED_LIMITS[a] for a in ARCHITECTURES if architecture in (None, a)}):
        for precision in PRECISIONS:
            for widest in RESIDENT_WIDTHS:
                kernel = resident_layers(precision, widest, shared)
                if kernel is not None:
                    resident[kernel.defines] = kernel
    kernels = [list_alive(), *(limit_kernel(name) for name in LIMITS), *resident.values()]
    for precision in PRECISIONS:
        for activation in (False, True):
            kernels += [
                csr_spmm(precision, activation),
                clustered_spmm(precision, activation),
                staged_spmm(precision, activation),
            ]
        # Layers alone are tuned.
        kernels += [staged_spmm(precision, True, c) for c in staged_configs(precision)[1:]]
        for name in ("unpack_bits", "spread_csr", "turn_rows", "collect_rows", "number_inputs"):
            kernels.append(feature_layout(name, precision))
    for dtype in (np.float32, np.float64):
        for activation in (False, True):
            kernels += [spgemm("count", dtype, activation), spgemm("fill", dtype, activation)]
        for name in ("mark_alive", "count_nonzeros", "take_dense", "take_sparse", "transpose"):
            kernels.append(feature_rows(name, dtype))
    return kernels


def kernel_folder() -> Path:
    """Return the folder below which the kernels' sources lie: the package's own."""
    return Path(str(resources.files("portable_spdnn_gpu")))


def headers(folder: Path) -> list[Path]:
    """Return the headers that sources below `folder` include, by name."""
    return sorted((folder / "compile").glob("*.cuh"))
