"""The contract between the engine and a backend.

How to write a backend
----------------------
A backend is a class that derives from `Backend` and is registered under the entry-point
group ``portable_spdnn.backends``::

    [project.entry-points."portable_spdnn.backends"]
    mine = "my_package.my_module:MyBackend"

It is an *execution space* (where loops run: "serial", "threads", "cuda") plus a *memory space*
(where its arrays live: "host" or "device"). It states

- ``name``, ``execution_space``, ``memory_space``;
- ``availability()``, a classmethod that imports the backend's library lazily and answers
  `Availability.yes(device, versions)` or `Availability.no(reason)`. It must not raise: a
  library that is missing is a reason, not an error;

and it implements three operations on validated arguments:

- ``run_spmm(A, B)``: C = A B, A sparse (m x k), B dense (k x n), C dense (m x n);
- ``make_spgemm_handle(A, B)``: a `SpgemmHandle` for C = A B, both sparse;
- ``run_layer(W, Y, bias, y_max)``: Y' = min(max(Y W + bias, 0), y_max), W sparse
  (neurons_in x neurons_out), Y (inputs x neurons_in) dense or sparse; Y' is dense where Y is,
  sparse where Y is (the base class has checked that no bias is positive there).

``make_spmm(A)`` and ``make_layer(W, bias, y_max)`` may be overridden to prepare weights once for
many products; they serve `spmm_handle` and `layer_handle`.

The public methods `spmm`, `spgemm`, `layer`, their handles and `plan` check shapes, types and
values, bring arguments to canonical form (`csr_array` with sorted, unique columns; float32 or
float64, one type for all operands) and call those. NaN and infinity in operands propagate as
IEEE 754 says: 0 x NaN is NaN only where the sparse matrix stores the entry, and ReLU and clamp
pass NaN on.

A backend whose arrays live elsewhere than in host memory also overrides `upload`, `download`
and `synchronize`, and for its own array types `alive_inputs`, `take_inputs` and
`multiply_adds`. The engine moves data only through these; it never asks where an array is.

`build_plan` may be overridden to do better than one layer after the other: see `NetworkPlan`.
Options of a plan that not every backend takes (`OPTIONAL_PLAN_OPTIONS`) are an error unless the
class attribute ``plan_options`` names them; ``kernels`` lists what the option `kernel` may be.
One that names "devices" implements `device_numbers`, `on_device` and `bound`; sharing inputs out
over the devices is done for it (`portable_spdnn.plans.multi_device`).
Optional operations (`OPTIONAL_OPERATIONS`) are declared in ``optional_operations`` and
implemented under their own name.

``tests/test_backend_contract.py`` runs on every registered backend and tells when one is right.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from portable_spdnn.array_exchange import host_array
from portable_spdnn.errors import InputError, SpdnnError
from portable_spdnn.network import Layer, Network
from portable_spdnn.operations import (
    LayerHandle,
    Prepared,
    SpgemmHandle,
    SpmmHandle,
    cast,
    check_inner,
    check_layer_operands,
    common_dtype,
)
from portable_spdnn.plans.base import NetworkPlan, PlanOptions

if TYPE_CHECKING:
    from portable_spdnn.report.roofline import Limits

__all__ = [
    "OPERATIONS",
    "OPTIONAL_OPERATIONS",
    "Availability",
    "Backend",
    "BackendUnavailable",
    "LayerHandle",
    "SpgemmHandle",
    "SpmmHandle",
]

Array = npt.NDArray[Any]
OPERATIONS = ("spmm", "spgemm", "layer", "plan")
OPTIONAL_OPERATIONS = ("sddmm", "sparse_softmax", "conv2d", "depthwise_conv2d")
# Fields of PlanOptions that a backend takes only where its `plan_options` name them.
OPTIONAL_PLAN_OPTIONS = ("kernel", "storage", "device_memory", "devices", "profile")
_DEFAULTS = PlanOptions()


class BackendUnavailable(SpdnnError, RuntimeError):
    """A backend was named that cannot run here; the message gives the reason."""


@dataclass(frozen=True)
class Availability:
    """Whether a backend can run here.

    Attributes
    ----------
    available : bool
    reason : str
        Why not; empty where available.
    device : str
        What it would run on, for people: "AMD EPYC, 2 threads".
    versions : dict of str to str
        Libraries it uses.
    """

    available: bool
    reason: str = ""
    device: str = ""
    versions: dict[str, str] = field(default_factory=dict)

    @classmethod
    def yes(cls, device: str, versions: dict[str, str]) -> Availability:
        """Available, on `device`."""
        return cls(True, "", device, versions)

    @classmethod
    def no(cls, reason: str, versions: dict[str, str] | None = None) -> Availability:
        """Not available, because of `reason`."""
        return cls(False, reason, "", versions or {})


class Backend(ABC):
    """An execution space plus a memory space; see the module's text for how to write one.

    Parameters
    ----------
    threads : int, optional
        Threads to use. A serial backend has one whatever is asked.

    Raises
    ------
    InputError
        If `threads` is less than 1.
    """

    name: ClassVar[str]
    execution_space: ClassVar[str]
    memory_space: ClassVar[str] = "host"
    optional_operations: ClassVar[frozenset[str]] = frozenset()
    plan_options: ClassVar[frozenset[str]] = frozenset()
    kernels: ClassVar[tuple[str, ...]] = ("auto",)

    def __init__(self, threads: int | None = None) -> None:
        if threads is not None and threads < 1:
            raise InputError(f"threads is {threads}; it must be at least 1")
        self.threads = 1 if threads is None or self.execution_space == "serial" else threads

    @classmethod
    @abstractmethod
    def availability(cls) -> Availability:
        """Say whether the backend can run here; imports its library lazily, never raises."""

    @property
    def device(self) -> str:
        """What the backend runs on, for people."""
        return self.availability().device

    # -- memory ---------------------------------------------------------------------------

    def upload(self, array: Any) -> Any:
        """Return `array` (ndarray or scipy.sparse) in the backend's memory space."""
        return sp.csr_array(array) if sp.issparse(array) else np.asarray(array)

    def download(self, array: Any) -> Any:
        """Return `array` as an ndarray or csr_array in host memory."""
        return array

    def synchronize(self) -> None:
        """Return when all work that was started is done. Host backends have nothing to await."""
        return None

    # -- operations: public, validated ----------------------------------------------------

    def spmm(self, A: Any, B: Any) -> Any:
        """C = A B with A sparse and B dense.

        Parameters
        ----------
        A : sparse, shape (m, k)
        B : dense, shape (k, n)

        Returns
        -------
        dense, shape (m, n)
            float64 if an operand is, else float32.

        Raises
        ------
        InputError
            If the shapes do not fit, A is not sparse, or an operand is not real.
        """
        A, B = self.sparse_operand("spmm: A", A), self.dense_operand("spmm: B", B)
        check_inner("spmm", A.shape, B.shape)
        dtype = common_dtype(A, B)
        return self.run_spmm(cast(A, dtype), cast(B, dtype))

    def spmm_handle(self, A: Any) -> SpmmHandle:
        """Prepare A, sparse of shape (m, k), once, to be multiplied by many B.

        Raises
        ------
        InputError
            If A is not sparse or not real.
        """
        A = self.sparse_operand("spmm: A", A)
        dtype = common_dtype(A)
        return SpmmHandle(self, A.shape, dtype, self.make_spmm(cast(A, dtype)))

    def spgemm(self, A: Any, B: Any) -> Any:
        """C = A B with A (m, k) and B (k, n) sparse; returns a canonical sparse C.

        Whether an entry that cancels to zero is stored is up to the backend. Raises as
        `spgemm_handle`.
        """
        return self.spgemm_handle(A, B).numeric()

    def spgemm_handle(self, A: Any, B: Any) -> SpgemmHandle:
        """Return a reusable handle for C = A B.

        Parameters
        ----------
        A : sparse, shape (m, k)
        B : sparse, shape (k, n)

        Raises
        ------
        InputError
            If the shapes do not fit, or an operand is not sparse or not real.
        """
        A, B = self.sparse_operand("spgemm: A", A), self.sparse_operand("spgemm: B", B)
        check_inner("spgemm", A.shape, B.shape)
        dtype = common_dtype(A, B)
        return self.make_spgemm_handle(cast(A, dtype), cast(B, dtype))

    def layer(
        self,
        weights: Any,
        features: Any,
        bias: npt.ArrayLike | None = None,
        y_max: float | None = None,
    ) -> Any:
        """Y' = min(max(Y W + bias, 0), y_max), in one pass where the backend can.

        Parameters
        ----------
        weights : Layer, or sparse of shape (neurons_in, neurons_out)
        features : dense or sparse, shape (inputs, neurons_in)
        bias : float or array_like of shape (neurons_out,), optional
            Default: the layer's own, or 0.
        y_max : float, optional
            Upper bound; None for none.

        Returns
        -------
        shape (inputs, neurons_out)
            Dense where `features` is dense, sparse (without stored zeros) where it is sparse.

        Raises
        ------
        InputError
            If the shapes do not fit, if an operand is not real, if `y_max` is not positive, or
            if `features` is sparse and a bias is positive.
        """
        W, b = self._layer_operands(weights, bias, y_max)
        sparse = self.is_sparse(features)
        take = self.sparse_operand if sparse else self.dense_operand
        Y = take("layer: features", features)
        check_layer_operands(W.shape, Y.shape, sparse, bool((b <= 0).all()))
        dtype = common_dtype(W, Y)
        return self.run_layer(cast(W, dtype), cast(Y, dtype), b.astype(dtype), y_max)

    def layer_handle(
        self,
        weights: Any,
        bias: npt.ArrayLike | None = None,
        y_max: float | None = None,
    ) -> LayerHandle:
        """Prepare a layer once, to be applied to features many times.

        Takes weights, bias and y_max as `layer` does, and raises what it raises.
        """
        W, b = self._layer_operands(weights, bias, y_max)
        dtype = common_dtype(W)
        run = self.make_layer(cast(W, dtype), b.astype(dtype), y_max)
        return LayerHandle(self, W.shape, dtype, run, bool((b <= 0).all()))

    def _layer_operands(
        self, weights: Any, bias: npt.ArrayLike | None, y_max: float | None
    ) -> tuple[Any, Array]:
        """Return the weights, and a bias for each output in float64."""
        if isinstance(weights, Layer):
            bias = weights.bias if bias is None else bias
            weights = weights.csr()
        W = self.sparse_operand("layer: weights", weights)
        b = np.asarray(0.0 if bias is None else bias, dtype=np.float64)
        if b.shape not in ((), (W.shape[1],)):
            raise InputError(f"layer: bias has shape {b.shape}; one number or ({W.shape[1]},) fits")
        if y_max is not None and not y_max > 0:
            raise InputError(f"layer: y_max is {y_max}; it must be positive, or None for no bound")
        return W, np.broadcast_to(b, (W.shape[1],))

    def plan(self, network: Network, options: PlanOptions | None = None) -> NetworkPlan:
        """Prepare a network: choose formats, pack and upload weights, compile; once.

        Parameters
        ----------
        network : Network
        options : PlanOptions, optional

        Returns
        -------
        NetworkPlan
            With `plan_seconds` set.

        Raises
        ------
        InputError
            If the options do not fit the network.
        """
        start = time.perf_counter()
        options = options or PlanOptions()
        self.check_plan_options(options)
        if options.devices:
            from portable_spdnn.plans.multi_device import ReplicatedPlan

            plan: NetworkPlan = ReplicatedPlan(self, network, options)
        elif options.exact_passes:
            from portable_spdnn.plans.rewritten import ExactPlan

            plan = ExactPlan(self, network, options)
        elif options.memory is not None:
            from portable_spdnn.plans.streamed import StreamedPlan

            plan = StreamedPlan(self, network, options, options.memory)
        else:
            plan = self.build_plan(network, options)
        plan.plan_seconds = time.perf_counter() - start
        return plan

    def check_plan_options(self, options: PlanOptions) -> None:
        """Raise InputError for an option that only other backends take."""
        for option in OPTIONAL_PLAN_OPTIONS:
            value = getattr(options, option)
            if value != getattr(_DEFAULTS, option) and option not in self.plan_options:
                raise InputError(f"backend {self.name} takes no option {option} ({value!r})")
        if options.kernel not in self.kernels:
            raise InputError(
                f"kernel {options.kernel!r} is none of backend {self.name}: choose one of "
                f"{', '.join(self.kernels)}"
            )

    # -- operations: implemented by each backend, on validated arguments --------------------

    @abstractmethod
    def run_spmm(self, A: Any, B: Any) -> Any:
        """C = A B; A canonical csr (m, k), B dense (k, n) in any order, one float type."""

    @abstractmethod
    def make_spgemm_handle(self, A: Any, B: Any) -> SpgemmHandle:
        """Return a handle for A B; both canonical csr of one float type."""

    @abstractmethod
    def run_layer(self, W: Any, Y: Any, bias: Array, y_max: float | None) -> Any:
        """Y' = min(max(Y W + bias, 0), y_max); bias in host memory, shape (neurons_out,)."""

    def make_spmm(self, A: Any) -> Prepared:
        """Return the function (B, out) -> A B, in `out` if given; by default A is not prepared."""
        return lambda B, out: _into(out, self.run_spmm(A, B))

    def make_layer(self, W: Any, bias: Array, y_max: float | None) -> Prepared:
        """Return the function (Y, out) -> Y' of one layer; by default W is not prepared."""
        return lambda Y, out: _into(out, self.run_layer(W, Y, bias, y_max))

    def build_plan(self, network: Network, options: PlanOptions) -> NetworkPlan:
        """Return a plan; by default the one that loops over `layer`."""
        from portable_spdnn.engine import LayerLoopPlan

        return LayerLoopPlan(self, network, options)

    # -- several devices: for backends that take the plan option "devices" -------------------

    def device_numbers(self) -> tuple[int, ...]:
        """Return the numbers of the devices that this process may use."""
        raise NotImplementedError(f"backend {self.name} does not tell its devices")

    def on_device(self, number: int) -> Backend:
        """Return a backend like this one, on the device of a number; may be this one."""
        raise NotImplementedError(f"backend {self.name} cannot be opened on a device")

    def bound(self) -> AbstractContextManager[Any]:
        """Return a context in which the calling thread may use this backend's device.

        It stands around everything that a plan of several devices does with this backend, in
        whichever thread. By default it does nothing.
        """
        return nullcontext()

    def measure_limits(self) -> Limits:
        """Measure what the machine can do at most; optional. See `report.roofline`."""
        raise NotImplementedError(f"backend {self.name} does not measure its limits")

    # -- optional operations ----------------------------------------------------------------

    def sddmm(self, *operands: Any, **options: Any) -> Any:
        """Sampled dense-dense product; optional."""
        self._missing("sddmm")

    def sparse_softmax(self, *operands: Any, **options: Any) -> Any:
        """Softmax over the stored entries of each row; optional."""
        self._missing("sparse_softmax")

    def conv2d(self, *operands: Any, **options: Any) -> Any:
        """Convolution with sparse weights; optional."""
        self._missing("conv2d")

    def depthwise_conv2d(self, *operands: Any, **options: Any) -> Any:
        """Depthwise convolution; optional."""
        self._missing("depthwise_conv2d")

    def _missing(self, operation: str) -> NoReturn:
        from portable_spdnn.registry import backends_with

        others = ", ".join(backends_with(operation)) or "none yet"
        raise NotImplementedError(
            f"backend {self.name} has no {operation}; backends that have it: {others}"
        )

    # -- what the layer loop asks about features ---------------------------------------------

    def is_sparse(self, array: Any) -> bool:
        """Whether `array` is one of the sparse types that this backend takes."""
        return bool(sp.issparse(array))

    def alive_inputs(self, features: Any) -> Array:
        """Return the rows with a nonzero feature (NaN is one): int64, rising, host memory."""
        host = self.download(features)
        if sp.issparse(host):
            return np.flatnonzero(np.diff(host.indptr)).astype(np.int64)
        return np.flatnonzero((host != 0).any(axis=1)).astype(np.int64)

    def take_inputs(self, features: Any, rows: Array) -> Any:
        """Return the given rows of features, in the backend's memory space."""
        return features[rows]

    def nonzeros(self, features: Any) -> int:
        """Return how many features are nonzero, or stored where they are sparse."""
        if self.is_sparse(features):
            return int(features.nnz)
        return int(np.count_nonzero(self.download(features)))

    def convert_features(self, features: Any, sparse: bool) -> Any:
        """Return features as sparse or as dense ones, in the backend's memory space."""
        host = self.download(features)
        return self.upload(sp.csr_array(host) if sparse else host.toarray())

    def multiply_adds(self, weights: Any, features: Any) -> int:
        """Return the multiply-adds of Y W: for sparse Y those of its stored entries alone."""
        if not self.is_sparse(features):
            return int(features.shape[0]) * int(weights.nnz)
        row_nnz = np.diff(weights.indptr)
        if row_nnz.size and (row_nnz == row_nnz[0]).all():
            return int(features.nnz) * int(row_nnz[0])
        return int(row_nnz[features.indices].sum(dtype=np.int64))

    # -- validation ---------------------------------------------------------------------------

    def sparse_operand(self, name: str, array: Any) -> Any:
        """Return a sparse operand in canonical form, or raise InputError; `name` is for that."""
        if not self.is_sparse(array):
            raise InputError(
                f"{name} is {type(array).__name__}; a scipy.sparse matrix or array is expected"
            )
        if array.ndim != 2:
            raise InputError(f"{name} has {array.ndim} dimension(s); 2 are expected")
        if not sp.issparse(array):
            return array  # a device type; the backend that takes it keeps it canonical
        # An object that is in form already is kept: it remembers that it has been checked.
        csr = array if isinstance(array, sp.csr_array) else sp.csr_array(array)
        if not csr.has_canonical_format:
            csr = csr.copy()
            csr.sum_duplicates()
        return csr

    def dense_operand(self, name: str, array: Any) -> Any:
        """Return a dense operand of two dimensions, or raise InputError; `name` is for that."""
        if self.memory_space == "host" or isinstance(array, list | tuple):
            array = host_array(name, array)
        if array.ndim != 2:
            raise InputError(f"{name} has {array.ndim} dimension(s); 2 are expected")
        return array


def _into(out: Any, result: Any) -> Any:
    if out is None:
        return result
    out[...] = result
    return out
