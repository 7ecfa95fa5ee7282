"""Tile sizes of staged_spmm, measured when a plan is made.

The best tiles depend on the device and on the layer: how many rows share how much. Every
configuration of the kernel that the device has the shared memory for is timed on a sample of the
layer, beside csr_spmm, whose answers it must give before it may be chosen. The choice is kept on
disk, in a file for each device, version of the kernels and class of layers, and is read the next
time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import scipy.sparse as sp

from portable_spdnn import __version__
from portable_spdnn.epilogue import Epilogue
from portable_spdnn.errors import InputError
from portable_spdnn.host import cache_folder
from portable_spdnn_gpu.compile.cache import digest_of, keep, read_kept
from portable_spdnn_gpu.compile.catalog import BOUNDED, StagedConfig, staged_configs, staged_spmm
from portable_spdnn_gpu.compile.nvrtc import KernelCompilationError
from portable_spdnn_gpu.compile.precision import Precision
from portable_spdnn_gpu.device.epilogue import DeviceEpilogue
from portable_spdnn_gpu.device.features import StepOperands, input_state
from portable_spdnn_gpu.device.interface import (
    Array,
    Device,
    DeviceMemoryError,
    LaunchError,
    seconds_of,
)
from portable_spdnn_gpu.spmm.launch import DeviceSpmm
from portable_spdnn_gpu.spmm.packing import pack

FORM = 1  # of the files of kept choices; another one is measured again
SOURCES = ("spmm/csr_spmm.cu", "spmm/staged_spmm.cu")  # the kernels that are measured
# Rows and inputs of the sample for each multiprocessor: all of them get several blocks of every
# configuration, some milliseconds of work.
ROWS, INPUTS = 128, 32
FEATURE_BYTES = 256 << 20  # that the sample's features take at most
CALLS, REPEATS = 4, 3  # launches between two events; the least time of several repeats counts
# Inputs whose answers are compared: the last minibatch is not full, and rows are aligned.
CHECKED, CHECKED_PITCH = 61, 64
PERIOD = 65521  # after which the sample's features repeat: prime, so that rows differ
TOLERANCE = {"float64": 1e-12, "float32": 1e-4, "float16": 4e-3}


@dataclass(frozen=True)
class TunedStaged:
    """What was measured for a class of layers.

    Attributes
    ----------
    config : StagedConfig
        The fastest of the configurations that give the answers of csr_spmm.
    rates : dict of str to float
        The edges per second of "csr" and of each configuration by its text.
    refused : dict of str to str
        The configurations that may not be chosen, and why.
    layers : str
        The class of layers in words.
    origin : str
        "measured" or "from disk"; why the choice could not be kept, where it could not.
    """

    config: StagedConfig
    rates: dict[str, float] = field(hash=False)
    refused: dict[str, str] = field(hash=False)
    layers: str
    origin: str

    @property
    def measured(self) -> dict[str, float]:
        """The edges per second by variant, as `choose_variant` takes them."""
        return {"csr": self.rates["csr"], "staged": self.rates[str(self.config)]}

    def describe(self) -> str:
        """Return what was chosen, with all rates, a line each."""
        tried = [name for name in self.rates if name != "csr"]
        order = sorted(tried, key=self.rates.__getitem__, reverse=True)
        lines = [
            f"staged_spmm for {self.layers} ({self.origin}): {self.config}",
            *(f"  {name}: {self.rates[name] / 1e9:.4g} G edges/s" for name in [*order, "csr"]),
            *(f"  {name}: refused, {why}" for name, why in self.refused.items()),
        ]
        return "\n".join(lines)


def tune_staged(
    device: Device, A: sp.csr_array, precision: Precision, versions: Mapping[str, str]
) -> TunedStaged:
    """Return the configuration of `staged_spmm` for layers like A, from disk where it is kept.

    Parameters
    ----------
    device : Device
    A : csr_array, canonical, shape (neurons out, neurons in)
        The layer's matrix, with values of the type of the precision's sums.
    precision : Precision
    versions : mapping of str to str
        The versions of what compiles and runs kernels; others are measured for themselves.

    Raises
    ------
    InputError
        If A has no entries.
    LaunchError
        If no configuration gives the answers of csr_spmm.
    """
    if not A.nnz:
        raise InputError(
            f"a layer of {A.shape[0]} x {A.shape[1]} has no entries; there is nothing to measure"
        )
    layers = layer_class(A, precision)
    configs = [  # those whose blocks have the shared memory that they need
        config
        for config in staged_configs(precision)
        if staged_spmm(precision, BOUNDED, config).shared <= device.shared_limit
    ]
    key = [
        FORM, device.description, device.multiprocessors, device.shared_limit, __version__,
        dict(versions), layers, [str(config) for config in configs],
    ]  # fmt: skip
    name = f"{digest_of([json.dumps(key, sort_keys=True)], SOURCES)}.choice"
    path = cache_folder() / "staged_spmm" / name
    known = read_kept(path)
    if known:
        best, rates, refused = json.loads(known)
        return TunedStaged(configs[best], rates, refused, layers, "from disk")
    rates, refused = _measure(device, A, precision, configs)
    right = [number for number, config in enumerate(configs) if str(config) in rates]
    if not right:
        raise LaunchError(
            f"no configuration of staged_spmm gives the answers of csr_spmm for {layers}: "
            + "; ".join(f"{config}: {why}" for config, why in refused.items())
        )
    best = max(right, key=lambda number: rates[str(configs[number])])
    why = keep(path, json.dumps([best, rates, refused]).encode())
    origin = f"measured, not kept: {why}" if why else "measured"
    return TunedStaged(configs[best], rates, refused, layers, origin)


def layer_class(A: sp.csr_array, precision: Precision) -> str:
    """Return in words what layers must have in common to share a choice.

    These are, each to the nearest power of two, the sizes, the entries in a row, and how often a
    block of the usual configuration uses a row of B that it has staged.
    """
    block = staged_configs(precision)[0].rows
    rows, columns = A.shape
    first = max(0, min(rows // 2, rows - block))  # a block from the middle
    entries = A.indices[A.indptr[first] : A.indptr[min(first + block, rows)]]
    reuse = entries.size / max(np.unique(entries).size, 1)
    each = _power(A.nnz / max(rows, 1))
    return (
        f"{_power(columns)} to {_power(rows)} neurons, {each} entries each, "
        f"rows of features used {_power(reuse)} times, {precision.storage.name}"
    )


def _power(number: float) -> int:
    return 1 << round(math.log2(max(number, 1)))


class _Sample:
    """A part of a layer with random features, on which products are timed and checked."""

    def __init__(self, device: Device, A: sp.csr_array, precision: Precision) -> None:
        self.device, self.precision = device, precision
        self.A = A[: ROWS * device.multiprocessors]
        most = FEATURE_BYTES // (precision.storage.itemsize * max(A.shape[1], 1))
        inputs = max(CHECKED_PITCH, min(INPUTS * device.multiprocessors, most))
        pitch = -(-inputs // CHECKED_PITCH) * CHECKED_PITCH
        self.timed = self._operands(inputs, pitch)
        self.checked = self._operands(CHECKED, CHECKED_PITCH)
        relu = Epilogue(activation="relu")
        self.epilogue = DeviceEpilogue(device, relu, self.A.shape[0], precision.sums)
        self.multiply_adds = self.A.nnz * inputs

    def _operands(self, inputs: int, pitch: int) -> StepOperands:
        device, storage = self.device, self.precision.storage
        values = np.random.default_rng(PERIOD).random(PERIOD, np.float32).astype(storage)
        before = device.upload(np.resize(values, (self.A.shape[1], pitch)))
        after = device.empty((self.A.shape[0], pitch), storage)
        state = device.upload(input_state(inputs))
        active = device.upload(np.zeros(pitch, np.uint8))
        return StepOperands(before, after, pitch, state, state, active)

    def product(self, variant: str, config: StagedConfig | None = None) -> DeviceSpmm:
        """Return the sample's matrix on the device, in a variant."""
        packed = pack(self.A, variant, self.precision, config)
        return DeviceSpmm(self.device, packed, self.device.upload(packed.memory), self.precision)

    def answer(self, product: DeviceSpmm) -> tuple[Array, Array]:
        """Return the features of the checked inputs after a layer, and their marks."""
        after, marks = self.checked.to, self.checked.active
        self.device.clear(after)
        self.device.clear(marks)
        product.launch(self.checked, self.epilogue)
        found = self.device.download(after)[:, :CHECKED]
        return found.astype(self.precision.sums), self.device.download(marks)[:CHECKED]

    def rate(self, product: DeviceSpmm) -> float:
        """Return the edges per second of a product."""
        product.launch(self.timed, self.epilogue)  # warms caches and clocks up
        launch = partial(product.launch, self.timed, self.epilogue)
        least = min(seconds_of(self.device, launch, CALLS) for _ in range(REPEATS)) / CALLS
        return float(self.multiply_adds / max(least, 1e-9))


def _measure(
    device: Device, A: sp.csr_array, precision: Precision, configs: list[StagedConfig]
) -> tuple[dict[str, float], dict[str, str]]:
    """Return the rates by configuration, and why some configurations have none."""
    sample = _Sample(device, A, precision)
    reference = sample.product("csr")
    expected, marks = sample.answer(reference)
    tolerance = TOLERANCE[precision.storage.name] * (1 + float(np.abs(expected).max(initial=0)))
    rates, refused = {"csr": sample.rate(reference)}, {}
    for config in configs:
        try:
            product = sample.product("staged", config)
            found, marked = sample.answer(product)
            agrees = np.allclose(found, expected, rtol=0, atol=tolerance)
            if not (agrees and np.array_equal(marked, marks)):
                refused[str(config)] = "its answers are not those of csr_spmm"
                continue
            rates[str(config)] = sample.rate(product)
        except (LaunchError, DeviceMemoryError, KernelCompilationError) as error:
            refused[str(config)] = str(error).splitlines()[0]
    return rates, refused
