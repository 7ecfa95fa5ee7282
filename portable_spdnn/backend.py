"""The contract between the engine and a backend.

A backend is a class that derives from `Backend` and is registered under an entry point::

    [project.entry-points."portable_spdnn.backends"]
    mine = "my_package.my_module:MyBackend"

It is an *execution space* (where loops run: "serial", "threads", "cuda") plus a *memory space*
(where its arrays live: "host" or "device"). It states

- ``name``, ``execution_space``, ``memory_space``, and a ``priority`` for the choice ``auto``;
- ``availability()``, a classmethod that imports the backend's library lazily, never raises, and
  answers `Availability.yes(device, versions)` or `Availability.no(reason)`;

and it implements three operations on validated arguments:

- ``run_spmm(A, B, epilogue, residual)``: C = A B, A sparse (m x k), B dense (k x n), C dense
  (m x n), finished by the epilogue, whose bias has an entry for each row of C;
- ``make_spgemm_handle(A, B)``: a `SpgemmHandle` for C = A B, both sparse;
- ``run_layer(W, Y, epilogue, residual)``: Y' = Y W, W sparse (neurons_in x neurons_out), Y
  (inputs x neurons_in) dense or sparse, finished by the epilogue, whose bias has an entry for
  each column of Y'; Y' is dense where Y is, sparse and without stored zeros where Y is.

Sparse operands are canonical (`csr_array` with sorted, unique columns); all operands, and so the
result, have one type, float32 or float64. Dense ones, the residual and results may lie in memory
in any order, with any strides. Operands are the user's own: they are not written to, and a result
shares no memory with them. The order of additions is free. NaN and infinity propagate as IEEE 754
says: 0 x NaN is NaN only where the sparse matrix stores the entry, and epilogues pass NaN on.

The epilogue (`portable_spdnn.epilogue`) is bias, residual, activation and bounds, in that order.
Its bias is None or an ndarray in host memory, of the operands' type and with an entry for each
output; the residual is None or dense, of the result's shape. For sparse Y there is none, and zeros
stay zeros. A backend that does not fuse these steps calls ``epilogue.apply`` on the product.

``make_spmm(A, columns, epilogue)`` and ``make_layer(W, inputs, epilogue)`` may be overridden to
prepare weights once for many products; they serve `spmm_handle` and `layer_handle`. `columns` is
how many columns B is going to have, `inputs` how many rows Y, None where that is not known: a hint,
no limit. What they return is called as (operand, out or None, residual or None), in `make_layer`
with sparse features too. It returns the result, in `out` where given: dense, in C order. If it has
a method ``describe``, that is what the handle says of itself. A choice by measurement is made
there, never in a call.

The engine calls a backend from one thread, or one for each device, and holds no lock: users may
call operations, handles and plans from several at once. A backend protects what calls share.

A backend whose arrays live elsewhere than in host memory overrides `upload`, `download` (which
returns what is in host memory as it is) and `synchronize`; `is_sparse`, if it has a sparse type of
its own; `take_inputs`, unless NumPy's row numbers index its features; and `dense_operand` and
`sparse_operand`, to upload what users pass in host memory, unless its operations do. For speed it
overrides `active_inputs`, `nonzeros`, `multiply_adds` and `convert_features`, which by default
download features.

`build_plan` may be overridden to do better than one layer after the other: see
`portable_spdnn.plans.base.NetworkPlan`. Options of a plan that not every backend takes
(`portable_spdnn.plans.options.OPTIONAL_PLAN_OPTIONS`) are an error unless the class attribute
``plan_options`` names them; ``kernels`` lists what the option `kernel` may be. One that names
"devices" implements `device_numbers`, `on_device` and `bound`. Optional operations
(`OPTIONAL_OPERATIONS`) are declared in ``optional_operations``; what a backend implements for them
is said in `portable_spdnn.operations.attention` and `portable_spdnn.operations.convolutions.hooks`.
The three `CONVOLUTIONS` go together.

``python -m portable_spdnn.testing NAME`` tells when a registered backend is right.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from portable_spdnn.arrays import Array
from portable_spdnn.caching import cached_property
from portable_spdnn.epilogue import Epilogue
from portable_spdnn.errors import InputError
from portable_spdnn.host import checked_threads
from portable_spdnn.kernel_model import Limits
from portable_spdnn.network import Network
from portable_spdnn.operations.attention import AttentionOperations
from portable_spdnn.operations.convolutions.interface import CONVOLUTIONS, Convolutions
from portable_spdnn.operations.feature_queries import FeatureQueries
from portable_spdnn.operations.handles import Prepared, SpgemmHandle
from portable_spdnn.operations.interface import Operations
from portable_spdnn.operations.operands import (
    AnyArray,
    DenseOperand,
    Operand,
    SparseOperand,
    canonical,
    host_array,
    into,
)

if TYPE_CHECKING:
    from portable_spdnn.plans.base import NetworkPlan
    from portable_spdnn.plans.options import PlanOptions

OPERATIONS = ("spmm", "spgemm", "layer", "plan")
OPTIONAL_OPERATIONS = ("sddmm", "sparse_softmax", "sparse_attention", *sorted(CONVOLUTIONS))


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

    Examples
    --------
    >>> import portable_spdnn as ps
    >>> ps.get_backend("scipy").availability().available
    True
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


class Backend(Operations, AttentionOperations, Convolutions, FeatureQueries, ABC):
    """An execution space plus a memory space; see the module's text for how to write one.

    `Operations` holds what users call, which checks arguments; `FeatureQueries` what plans ask of
    features, answered for NumPy and SciPy; this class what a backend implements or overrides.

    Parameters
    ----------
    threads : int, optional
        Threads to use. A serial backend has one whatever is asked.

    Raises
    ------
    InputError
        If `threads` is no whole number, less than 1, or far beyond the number of cores.

    Examples
    --------
    >>> import numpy as np, portable_spdnn as ps
    >>> backend = ps.get_backend("scipy")
    >>> backend.name, backend.execution_space, backend.memory_space, backend.threads
    ('scipy', 'serial', 'host', 1)
    >>> backend.download(backend.upload(np.eye(2))).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """

    name: ClassVar[str]
    execution_space: ClassVar[str]
    memory_space: ClassVar[str] = "host"
    # "auto" takes the available backend of the highest: scipy has 0, numba 80, cupy 100.
    priority: ClassVar[int] = 50
    optional_operations: ClassVar[frozenset[str]] = frozenset()
    plan_options: ClassVar[frozenset[str]] = frozenset()
    kernels: ClassVar[tuple[str, ...]] = ("auto",)
    # The names of the backends that have an operation; the registry sets it.
    backends_with: Callable[[str], Sequence[str]] = staticmethod(lambda operation: ())

    def __init__(self, threads: int | None = None) -> None:
        asked = 1 if threads is None else checked_threads(threads)
        self.threads = 1 if self.execution_space == "serial" else asked

    @classmethod
    @abstractmethod
    def availability(cls) -> Availability:
        """Say whether the backend can run here; imports its library lazily, never raises."""

    @property
    def device(self) -> str:
        """What the backend runs on, for people."""
        return self.availability().device

    # -- memory ---------------------------------------------------------------------------

    def upload(self, array: Array | SparseOperand) -> AnyArray:
        """Return `array` (ndarray or scipy.sparse) in the backend's memory space."""
        return sp.csr_array(array) if sp.issparse(array) else np.asarray(array)

    def download(self, array: AnyArray) -> AnyArray:
        """Return `array` as an ndarray or csr_array in host memory."""
        return array

    def synchronize(self) -> None:
        """Return when all work that was started is done. Host backends have nothing to await."""

    # -- operations on what a user gave: optional --------------------------------------------

    def spmm_as_given(
        self, A: object, B: object, epilogue: Epilogue | None, residual: object
    ) -> AnyArray | None:
        """C = A B, finished, of what a user gave; None, the default, where `run_spmm` is to do it.

        For backends that check operands as they multiply, which is faster than to check before.
        None also means that something does not fit: it is then validated, and named. Results are as
        those of `run_spmm`, but that C has one dimension where B has.
        """
        return None

    def layer_as_given(
        self, weights: object, features: object, epilogue: Epilogue, residual: object
    ) -> AnyArray | None:
        """Y' = Y W, finished, of what a user gave but for the epilogue; see `spmm_as_given`.

        A `Layer` is its matrix.
        """
        return None

    def spgemm_as_given(self, A: object, B: object) -> AnyArray | None:
        """C = A B of sparse operands as a user gave them.

        None, the default, where they are to be validated and `make_spgemm_handle` is to do it.
        """
        return None

    # -- operations: implemented by each backend, on validated arguments --------------------

    @abstractmethod
    def run_spmm(
        self, A: SparseOperand, B: DenseOperand, epilogue: Epilogue, residual: DenseOperand | None
    ) -> DenseOperand:
        """C = A B, finished; A canonical csr (m, k), B dense (k, n) in any order, one type."""

    @abstractmethod
    def make_spgemm_handle(self, A: SparseOperand, B: SparseOperand) -> SpgemmHandle:
        """Return a handle for A B; both canonical csr of one float type.

        In one call of `spgemm` they may be the user's own, as those of `run_spmm`; else copies.
        """

    @abstractmethod
    def run_layer(
        self,
        W: SparseOperand,
        Y: DenseOperand | SparseOperand,
        epilogue: Epilogue,
        residual: DenseOperand | None,
    ) -> Operand:
        """Y' = Y W, finished; see the module's text for what the arguments are."""

    def make_spmm(self, A: SparseOperand, columns: int | None, epilogue: Epilogue) -> Prepared:
        """Return the function (B, out, residual) -> C for many B; by default A is not prepared."""
        return lambda B, out, residual: into(out, self.run_spmm(A, B, epilogue, residual))

    def make_layer(self, W: SparseOperand, inputs: int | None, epilogue: Epilogue) -> Prepared:
        """Return the function (Y, out, residual) -> Y'; by default W is not prepared."""
        return lambda Y, out, residual: into(out, self.run_layer(W, Y, epilogue, residual))

    def build_plan(self, network: Network, options: PlanOptions) -> NetworkPlan | None:
        """Return a plan of the backend's own; None, the default, for the neutral layer loop."""
        return None

    # -- several devices: for backends that take the plan option "devices" -------------------

    def device_numbers(self) -> tuple[int, ...]:
        """Return the numbers of the devices that this process may use."""
        raise NotImplementedError(f"backend {self.name} does not tell its devices")

    def on_device(self, number: int) -> Backend:
        """Return a backend like this one, on the device of a number; may be this one."""
        raise NotImplementedError(f"backend {self.name} cannot be opened on a device")

    def bound(self) -> AbstractContextManager[object]:
        """Return a context in which the calling thread may use this backend's device.

        It stands around everything that a plan of several devices does with this backend, in
        whichever thread. By default it does nothing.
        """
        return nullcontext()

    def measure_limits(self) -> Limits:
        """Measure what the machine can do at most; optional. See `portable_spdnn.kernel_model`."""
        raise NotImplementedError(f"backend {self.name} does not measure its limits")

    def measure_flops(self) -> float:
        """Measure how many float32 operations multiply-adds make in a second, now; optional.

        A backend where that takes longer than some 20 milliseconds may return what it measured
        before. Without this method it is what `measure_limits` found, once.
        """
        return self._flops

    @cached_property
    def _flops(self) -> float:
        return self.measure_limits().flops

    # -- validation: overridden where arrays of other libraries are taken ---------------------

    def sparse_operand(
        self, name: str, array: object, dtype: npt.DTypeLike = np.float32
    ) -> SparseOperand:
        """Return a sparse operand in canonical form, or raise InputError that names it `name`.

        Values become `dtype` before duplicates are summed, where that is wider than their own.
        """
        if not self.is_sparse(array):
            raise InputError(
                f"{name} is {type(array).__name__}; a scipy.sparse matrix or array is expected, "
                "such as scipy.sparse.csr_array makes of a dense one"
            )
        return canonical(name, array, dtype)

    def dense_operand(self, name: str, array: AnyArray) -> DenseOperand:
        """Return a dense operand of two dimensions, or raise InputError that names it `name`."""
        if self.memory_space == "host" or isinstance(array, list | tuple):
            array = host_array(name, array)
        if array.ndim != 2:
            raise InputError(f"{name} has {array.ndim} dimension(s); 2 are expected")
        return array  # type: ignore[no-any-return]
