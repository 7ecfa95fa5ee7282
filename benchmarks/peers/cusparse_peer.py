"""cuSPARSE through CuPy: whole networks, one SpMM a layer, in the order that it runs faster."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from cusparse_library import SparseOperand, open_cusparse

from portable_spdnn.backend import Backend
from portable_spdnn.errors import InputError
from portable_spdnn.features import Features, PackedFeatures, cast_features
from portable_spdnn.network import Network
from portable_spdnn.plans.base import NetworkPlan
from portable_spdnn.plans.batch import BatchOutput
from portable_spdnn.plans.options import PlanOptions
from portable_spdnn_gpu.device.cuda_device import CudaDevice

Array = npt.NDArray[Any]
# Inputs of the products that choose the order: for most layers a few per cent of 60,000 are active.
SAMPLE_INPUTS = 2048
SAMPLE_RUNS = 3
# Beyond it cuSPARSE before 12.7.20 started too many blocks for column-major products.
MOST_INPUTS = 65535 * 16


class CusparsePlan(NetworkPlan):
    """The layer loop as one writes it with CuPy and cuSPARSE at their best.

    Each layer is one SpMM of the transposed weights, which are uploaded once in CSR, with dense
    features; then one fused pass for bias, ReLU and clamp, one that finds the active inputs,
    and where some became inactive a gather of the others. The host waits for nothing but the number
    of active inputs. Features alternate between two arrays, so that no layer allocates any.

    The order of the features is measured at planning, on the layer with most weights:
    row-major `[neuron][input]` with cuSPARSE's CSR_ALG2, or column-major with CSR_ALG1, which
    is `[input][neuron]` in memory.

    Parameters
    ----------
    backend : Backend
        The backend whose name and device the results carry.
    network : Network
    options : PlanOptions
        `dtype`, `batch_size` and `keep_dead_inputs` count; the plan has no other choices.
    library : CusparseLibrary, or another object with its methods
    row_major : bool, optional
        The order of the features. By default both are measured, and the faster one is taken.
    """

    def __init__(
        self,
        backend: Any,
        network: Network,
        options: PlanOptions,
        library: Any,
        row_major: bool | None = None,
    ) -> None:
        super().__init__(backend, network, options)
        self.library = library
        self.weights = [_by_output(library, layer.csr(options.dtype)) for layer in network]
        biases = (np.array(layer.bias, options.dtype) for layer in network)
        self.biases = [library.device.upload(bias) for bias in biases]
        self.seconds: tuple[float, float] | None = None  # of a product: row-major, column-major
        if row_major is None:
            self.seconds = self._measure()
            row_major = self.seconds[0] <= self.seconds[1]
        self.row_major = row_major
        library.device.synchronize()  # the plan may run on any stream from now on

    def _measure(self) -> tuple[float, float]:
        """Return the seconds of one product in either order."""
        library, dtype = self.library, self.options.dtype
        A = max(self.weights, key=lambda weights: weights.nnz)
        inputs = min(self.batch_size, SAMPLE_INPUTS)
        B, C = (library.zeros(neurons * inputs, dtype) for neurons in A.shape[::-1])
        B.fill(1)
        seconds = []
        for row_major in (True, False):
            sides = zip((B, C), A.shape[::-1], strict=True)
            operands = [
                memory.reshape((neurons, inputs) if row_major else (inputs, neurons))
                for memory, neurons in sides
            ]
            runs = []
            for _ in range(SAMPLE_RUNS + 1):  # the first loads code
                library.device.synchronize()
                start = time.perf_counter()
                library.multiply(A, *operands, row_major)
                library.device.synchronize()
                runs.append(time.perf_counter() - start)
            seconds.append(min(runs[1:]))
        return seconds[0], seconds[1]

    @property
    def batch_size(self) -> int:
        """Inputs that go through the network together."""
        return min(super().batch_size, MOST_INPUTS)

    def describe(self) -> str:
        """Return what the plan chose and why, a line each."""
        order = "row-major, CSR_ALG2" if self.row_major else "column-major, CSR_ALG1"
        why = "asked for"
        if self.seconds is not None:
            row, column = (f"{1e3 * seconds:.3g} ms" for seconds in self.seconds)
            why = f"measured: {row} a product row-major, {column} column-major"
        keep = self.options.keep_dead_inputs
        return (
            f"layer loop on {self.library.name} SpMM\n"
            f"features between layers: dense, neurons x inputs, {order} ({why})\n"
            f"inactive inputs: {'kept (asked for)' if keep else 'dropped after each layer'}\n"
            f"batches of {self.batch_size} inputs"
        )

    def run_batch(self, features: Features, report: Callable[[int], None]) -> BatchOutput:
        """Run the layer loop on one batch; see `NetworkPlan.run_batch`."""
        library, arrays = self.library, self.library.arrays
        dtype: np.dtype[Any] = np.dtype(self.options.dtype)
        inputs, layers = features.shape[0], len(self.network)
        y_max = self.network.y_max
        limit = dtype.type(np.inf if y_max is None else y_max)
        input_axis, neuron_axis = (1, 0) if self.row_major else (0, 1)
        # Set to zero once: what is multiplied by beta = 0 in the first product is a number.
        front, back = (library.zeros(self.network.widest * inputs, dtype) for _ in range(2))
        y = self._view(front, self.network.neurons, inputs)
        self._load(features, y)
        kept = arrays.arange(inputs, dtype=np.int64)
        active_per_layer = np.zeros(layers, np.int64)
        counted = []  # layers after which the host did not wait, and their counts on the device
        seconds = np.zeros(layers)
        executed_edges, active = 0, inputs
        for number, (A, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            if not active:
                break
            start = time.perf_counter()
            executed_edges += active * A.nnz
            z = self._view(back, A.shape[0], active)
            library.multiply(A, y, z, self.row_major)
            library.activate(z, arrays.expand_dims(bias, input_axis), limit)
            is_active = arrays.any(z, axis=neuron_axis)
            if self.may_drop_after(number):
                rows = arrays.flatnonzero(is_active)  # waits for their number
                if rows.size < active:
                    active = int(rows.size)
                    y = self._view(front, A.shape[0], active)
                    arrays.take(z, rows, axis=input_axis, out=y)
                    kept = kept[rows]
                else:
                    y, front, back = z, back, front
                active_per_layer[number] = active
                seconds[number] = time.perf_counter() - start
            else:
                y, front, back = z, back, front
                counted.append((number, arrays.count_nonzero(is_active)))
            report(active * (number + 1) + (inputs - active) * layers)
        y = self._view(y.reshape(-1), self.network.neurons_out, active)
        scores = library.device.download(y)
        for number, count in counted:
            active_per_layer[number] = int(count)
        return BatchOutput(
            library.device.download(kept),
            scores.T if self.row_major else scores,
            active_per_layer,
            executed_edges,
            None if counted else seconds,
        )

    def _view(self, memory: Any, neurons: int, inputs: int) -> Any:
        """Return the first part of an array as features of so many neurons and inputs."""
        shape = (neurons, inputs) if self.row_major else (inputs, neurons)
        return memory[: neurons * inputs].reshape(shape)

    def _load(self, features: Features, y: Any) -> None:
        """Write a batch's features to `y`, which holds zeros; bits and CSR are unpacked there."""
        device, arrays, dtype = self.library.device, self.library.arrays, self.options.dtype
        by_input = y.T if self.row_major else y
        if isinstance(features, PackedFeatures):
            inputs, width = features.bits.shape
            bits = arrays.unpackbits(device.upload(features.bits).reshape(-1))
            by_input[...] = bits.reshape(inputs, 8 * width)[:, : features.neurons]
        elif sp.issparse(features):
            csr = cast_features(features, dtype, True)
            rows = np.repeat(np.arange(csr.shape[0], dtype=np.int32), np.diff(csr.indptr))
            where = (rows, csr.indices.astype(np.int32))
            where = where[::-1] if self.row_major else where
            y[tuple(device.upload(index) for index in where)] = device.upload(csr.data)
        else:
            dense = np.ascontiguousarray(cast_features(features, dtype, False))
            by_input[...] = device.upload(dense)


def cusparse_plan(backend: Backend, network: Network) -> CusparsePlan:
    """Return the plan of a network on the CUDA device of a backend.

    Raises
    ------
    InputError
        If the backend does not run on one.
    BackendUnavailable
        If cuSPARSE is not installed; the message says what to install.
    """
    device = getattr(backend, "cuda", None)
    if not isinstance(device, CudaDevice):
        raise InputError(f"the {backend.device} has no cuSPARSE, which runs on CUDA devices alone")
    return CusparsePlan(backend, network, PlanOptions(), open_cusparse(device))


def _by_output(library: Any, W: Any) -> SparseOperand:
    """Return W transposed, prepared by the library."""
    transposed = sp.csr_array(W.T)
    transposed.sort_indices()
    operand: SparseOperand = library.prepare(transposed)
    return operand
