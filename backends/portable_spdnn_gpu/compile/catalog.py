"""The kernels and their configurations, and the resources that each claims to stay within."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from portable_spdnn_gpu.compile.precision import SINGLE, Precision

# Bytes that every block gets without asking, on every architecture.
SHARED_UNASKED = 48 << 10


@dataclass(frozen=True)
class Kernel:
    """One kernel in one configuration, and the resources that it claims to stay within.

    Attributes
    ----------
    name : str
        The name of the function.
    source : str
        The path of the file below `kernel_folder()`, such as ``spmm/csr_spmm.cu``.
    threads : int
        How many threads a block has.
    defines : tuple of (str, str)
        The macros and their values; SCALAR is always one of them.
    registers : int
        The most registers that a thread takes, on any architecture.
    static_shared : int
        The bytes of shared memory that a block declares, exactly so on every architecture,
        without those that the driver reserves.
    dynamic_shared : int
        The bytes of shared memory that a launch asks for.
    """

    name: str
    source: str
    threads: int
    defines: tuple[tuple[str, str], ...]
    registers: int
    static_shared: int = 0
    dynamic_shared: int = 0

    @property
    def shared(self) -> int:
        """The bytes of shared memory that a block takes."""
        return self.static_shared + self.dynamic_shared

    @property
    def options(self) -> tuple[str, ...]:
        """The macros as options of a compiler."""
        return tuple(f"-D{name}={value}" for name, value in self.defines)


CLUSTER = 16  # rows of a cluster
# Columns of B in a panel of csr_spmm and of clustered_spmm: threads x columns of each.
CSR_PANEL = 128 * 4
CLUSTER_PANEL = 128 * 2
SPGEMM_ROWS = 4
FEATURE_THREADS = 256
LIST_THREADS = 1024
UNPACK_BYTES = 64
TRANSPOSE_TILE = 32
# Of persistent_layers: the inputs of a tile, the most first; threads of a block and groups of a
# warp; the bytes of shared memory beside the features.
PERSISTENT_TILES = (16, 8)
PERSISTENT_BLOCKS = ((128, 1), (256, 1), (512, 1), (512, 2))
PERSISTENT_STATE = 32
PERSISTENT_SPREAD = 8  # neurons among which their features change places, for the banks' sake
LIMIT_THREADS = 256
LIMIT_VECTORS = 1024  # vectors of 16 bytes that `read_shared` stages
LAYOUT_KERNELS = ("unpack_bits", "spread_csr", "turn_rows", "collect_rows", "number_inputs")
COMPARE_KERNELS = ("hash_rows", "match_rows", "uniform_rows")


@dataclass(frozen=True)
class StagedConfig:
    """Tile sizes of `staged_spmm`; staged_spmm.cu says what each is for.

    Attributes
    ----------
    rows : int
        The rows of A in a block, one for each thread: a multiple of 32.
    minibatch : int
        The columns of B in a block: whole vectors of 16 bytes, 32 columns at most.
    stage : int
        The rows of B in one of the two buffers.
    """

    rows: int
    minibatch: int
    stage: int

    def __str__(self) -> str:
        return f"{self.rows} rows x {self.minibatch} inputs, stages of {self.stage}"

    def shared_bytes(self, precision: Precision) -> int:
        """Return the dynamic shared memory of a block: two buffers and a row of zeros."""
        return (2 * self.stage + 1) * self.minibatch * int(precision.storage.itemsize)


# What tuning may choose, by the type of storage. The first is taken where nothing has been
# measured, and runs with the shared memory that every architecture gives without asking.
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
REGISTERS = 65536  # that a multiprocessor has
# What a product is compiled for (EPILOGUE and ACTIVATION of common.cuh): nothing after the sums;
# bias and bounds, which linear and ReLU layers need; bias, residual, activation and bounds, which
# is the last number and the activation's code.
NO_EPILOGUE, BOUNDED, ANY_EPILOGUE = range(3)


def staged_configs(precision: Precision) -> tuple[StagedConfig, ...]:
    """Return the configurations of `staged_spmm` for a precision, the usual one first."""
    return STAGED_CONFIGS[precision.storage.name]


def _macros(
    precision: Precision, epilogue: int | None = None, **sizes: int
) -> tuple[tuple[str, str], ...]:
    """Return the macros of a kernel; `epilogue` is what follows the sums of a product."""
    macros: dict[str, int] = {}
    if epilogue is not None:
        macros["EPILOGUE"] = min(epilogue, ANY_EPILOGUE)
    if epilogue is not None and epilogue >= ANY_EPILOGUE:
        macros["ACTIVATION"] = epilogue - ANY_EPILOGUE
    macros |= sizes
    if precision.half:
        macros["HALF_STORAGE"] = 1
    scalar = {4: "float", 8: "double"}[precision.sums.itemsize]
    return ("SCALAR", scalar), *((name, str(value)) for name, value in macros.items())


def csr_spmm(precision: Precision, epilogue: int) -> Kernel:
    """Return the kernel that multiplies one row of A by a column panel of B."""
    registers = 64 if precision.sums.itemsize == 4 else 80
    return Kernel(
        "csr_spmm", "spmm/csr_spmm.cu", 128, _macros(precision, epilogue), registers,
        static_shared=0 if epilogue == NO_EPILOGUE else _list_bytes(128),
    )  # fmt: skip


def clustered_spmm(precision: Precision, epilogue: int, constant: bool = False) -> Kernel:
    """Return the kernel that multiplies sixteen rows of A by a column panel of B.

    `constant`: all values of A are equal.
    """
    size, chunk = precision.sums.itemsize, 64
    macros = _macros(precision, epilogue, **({"CONSTANT": 1} if constant else {}))
    shared = (chunk + CLUSTER) * 8 + (0 if constant else chunk * CLUSTER * size)
    if epilogue != NO_EPILOGUE:
        shared += CLUSTER * size
    registers = 128 if epilogue >= ANY_EPILOGUE else 80 if constant else 96
    registers = 168 if size == 8 else registers
    return Kernel(
        "clustered_spmm", "spmm/clustered_spmm.cu", 128, macros, registers, static_shared=shared
    )


def staged_spmm(precision: Precision, epilogue: int, config: StagedConfig | None = None) -> Kernel:
    """Return the kernel that multiplies rows of A by rows of B staged in shared memory."""
    config = staged_configs(precision)[0] if config is None else config
    # Sums beyond 16 words take more than half of 128 registers: two blocks of 256 rows then.
    words = config.minibatch * precision.sums.itemsize // 4
    registers = 64 if words <= 16 else 128
    blocks = REGISTERS // registers // config.rows
    macros = _macros(
        precision, epilogue, ROWS=config.rows, MINIBATCH=config.minibatch, STAGE=config.stage,
        BLOCKS=blocks,
    )  # fmt: skip
    return Kernel(
        "staged_spmm", "spmm/staged_spmm.cu", config.rows, macros, registers,
        static_shared=4 * config.minibatch, dynamic_shared=config.shared_bytes(precision),
    )  # fmt: skip


def spgemm(phase: str, dtype: npt.DTypeLike, epilogue: int) -> Kernel:
    """Return the kernel of the phase "count" or "fill" of C = A B, where all three are sparse."""
    return Kernel(
        f"spgemm_{phase}", "spgemm/spgemm.cu", 128, _macros(Precision(np.dtype(dtype)), epilogue),
        registers=64, static_shared=4 * (1024 * np.dtype(dtype).itemsize + 1024 // 8),
    )  # fmt: skip


def feature_rows(name: str, dtype: npt.DTypeLike) -> Kernel:
    """Return the kernel that finds, counts or takes inputs of features, by its name."""
    return _feature_kernel(name, "device/feature_rows.cu", Precision(np.dtype(dtype)), 48)


def feature_layout(name: str, precision: Precision) -> Kernel:
    """Return the kernel that brings features into the device's layout or back, by its name."""
    return _feature_kernel(name, "device/feature_layout.cu", precision, 40)


def compared_rows(name: str, dtype: npt.DTypeLike) -> Kernel:
    """Return the kernel that hashes rows, matches them or finds uniform ones, by its name."""
    return _feature_kernel(name, "device/compared_rows.cu", Precision(np.dtype(dtype)), 48)


def _feature_kernel(name: str, source: str, precision: Precision, registers: int) -> Kernel:
    transposes = name in ("transpose", "turn_rows", "collect_rows")
    tile = TRANSPOSE_TILE * (TRANSPOSE_TILE + 1) * precision.sums.itemsize if transposes else 0
    return Kernel(name, source, FEATURE_THREADS, _macros(precision), registers, static_shared=tile)


def limit_kernel(name: str) -> Kernel:
    """Return the kernel that measures one limit of the device, by its name in limits.cu."""
    shared = 16 * LIMIT_VECTORS if name == "read_shared" else 0
    macros = _macros(Precision())
    return Kernel(name, "device/limits.cu", LIMIT_THREADS, macros, 64, static_shared=shared)


def list_active() -> Kernel:
    """Return the kernel that lists the inputs before the first layer."""
    macros = _macros(Precision())
    return Kernel(
        "list_active", "device/input_lists.cu", LIST_THREADS, macros, 64, _list_bytes(LIST_THREADS)
    )


def _list_bytes(threads: int) -> int:
    """Return the shared memory that a block takes to list inputs."""
    return 4 * (threads // 32 + 1)


def persistent_rows(widest: int) -> int:
    """Return the rows that the features of so many neurons take in shared memory."""
    return -(-widest // PERSISTENT_SPREAD) * PERSISTENT_SPREAD


def persistent_layers(
    precision: Precision, widest: int, shared: int, constant: bool = False
) -> Kernel | None:
    """Return the persistent kernel that runs a fused segment of layers on tiles of inputs.

    Parameters
    ----------
    precision : Precision
    widest : int
        The most neurons before or after a layer.
    shared : int
        The bytes of shared memory that a block of the device may ask for.
    constant : bool
        Whether all weights of each layer are equal.

    Returns
    -------
    Kernel or None
        None where a tile fits no block: its features in shared memory, or its sums in
        registers, which in double precision never fit.
    """
    if precision.sums.itemsize != SINGLE.itemsize:
        return None
    # Half precision is widened in shared memory where there is room for it.
    wide = [{"WIDE": 1}, {}] if precision.half else [{}]
    others = {"CONSTANT": 1} if constant else {}
    for tile, features in itertools.product(PERSISTENT_TILES, wide):
        groups = -(-widest // (CLUSTER * 64 // tile))  # of the rows that a warp takes at a time
        kept = precision.sums if features else precision.storage
        dynamic = (persistent_rows(widest) + 1) * tile * kept.itemsize + PERSISTENT_STATE
        for threads, of_warp in PERSISTENT_BLOCKS:
            if groups <= threads // 32 * of_warp and dynamic <= shared:
                sizes = {"TILE": tile, "THREADS": threads, "GROUPS": of_warp}
                return Kernel(
                    "persistent_layers", "persistent/persistent_layers.cu", threads,
                    _macros(precision, **sizes, **features, **others),
                    registers=128, dynamic_shared=dynamic,
                )  # fmt: skip
    return None
