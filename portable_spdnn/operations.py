"""Operations whose sparse operand is prepared once and used many times."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from portable_spdnn.errors import InputError

if TYPE_CHECKING:
    from portable_spdnn.backend import Backend

Array = npt.NDArray[Any]
# From a dense operand, and an array for the result or None, to the result.
Prepared = Callable[[Any, Any], Any]


class SpgemmHandle(ABC):
    """A sparse product C = A B in two phases, reusable while the patterns stay.

    `symbolic` finds the sizes of the rows of C, `numeric` its entries. A second `numeric` call
    with new values on the same patterns reuses what the first found.
    """

    @abstractmethod
    def symbolic(self) -> Array:
        """Return the row offsets of C, int64 of shape (m + 1,). Runs once; later calls are free.

        An entry that the patterns allow counts, whatever its value.
        """

    @abstractmethod
    def numeric(self, A_data: Array | None = None, B_data: Array | None = None) -> Any:
        """Return C, a canonical csr_array (or its like in the backend's memory space).

        Parameters
        ----------
        A_data, B_data : ndarray, optional
            New values for the stored entries of A and B, in their order. Default: as given.

        Raises
        ------
        InputError
            If the number of values differs from the number of stored entries.
        """

    def describe(self) -> str:
        """Return in a line what the handle chose, for people. It may run the symbolic phase.

        Default: the phases are one and the same for all rows, and there is nothing to tell.
        """
        return "all rows alike"


class SpmmHandle:
    """C = A B for one sparse A and any number of dense B; made by `Backend.spmm_handle`."""

    def __init__(self, backend: Backend, shape: tuple[int, int], dtype: Any, run: Prepared) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
        self._backend, self._run = backend, run

    def multiply(self, B: Any, out: Any = None) -> Any:
        """Return C = A B.

        Parameters
        ----------
        B : dense, shape (k, n)
            Of a type that A's holds: float32 or narrower where A is float32.
        out : dense, shape (m, n), optional
            Takes C: of A's type, in C order. Reused, it saves the pages of a new array.

        Returns
        -------
        dense, shape (m, n), of A's type

        Raises
        ------
        InputError
            If B or `out` does not fit A in shape, type or order.
        """
        B = _operand(self._backend.dense_operand("spmm: B", B), "spmm: B", self.dtype)
        check_inner("spmm", self.shape, B.shape)
        check_out("spmm", out, (self.shape[0], B.shape[1]), self.dtype, B)
        result = self._run(B, out)
        return result if out is None else out


class LayerHandle:
    """Y' = min(max(Y W + bias, 0), y_max) for one layer; made by `Backend.layer_handle`."""

    def __init__(
        self,
        backend: Backend,
        shape: tuple[int, int],
        dtype: Any,
        run: Prepared,
        takes_sparse: bool,
    ) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
        self._backend, self._run, self._takes_sparse = backend, run, takes_sparse

    def apply(self, features: Any, out: Any = None) -> Any:
        """Return Y'.

        Parameters
        ----------
        features : dense or sparse, shape (inputs, neurons_in)
            Of a type that the weights' holds: float32 or narrower where they are float32.
        out : dense, shape (inputs, neurons_out), optional
            Takes Y' of dense features: of the weights' type, in C order. Reused, it saves the
            pages of a new array.

        Returns
        -------
        shape (inputs, neurons_out)
            Dense where `features` is dense, sparse (without stored zeros) where it is sparse.

        Raises
        ------
        InputError
            If features or `out` do not fit the weights in shape, type or order, or features are
            sparse where a bias is positive or `out` is given.
        """
        sparse = self._backend.is_sparse(features)
        take = self._backend.sparse_operand if sparse else self._backend.dense_operand
        Y = _operand(take("layer: features", features), "layer: features", self.dtype)
        check_layer_operands(self.shape, Y.shape, sparse, self._takes_sparse)
        if sparse and out is not None:
            raise InputError("layer: out takes the result of dense features; these are sparse")
        check_out("layer", out, (Y.shape[0], self.shape[1]), self.dtype, Y)
        result = self._run(Y, out)
        return result if out is None else out


def check_out(
    name: str, out: Any, shape: tuple[int, ...], dtype: np.dtype[Any], operand: Any
) -> None:
    """Raise InputError where `out` is given and cannot take the result of `operand`."""
    if out is None:
        return
    if not hasattr(out, "flags"):
        raise InputError(
            f"{name}: out is {type(out).__name__}; an ndarray, or an array of the backend's own "
            "type, is expected"
        )
    if out.shape != shape or out.dtype != dtype or not out.flags.c_contiguous:
        order = "C" if out.flags.c_contiguous else "another"
        raise InputError(
            f"{name}: out is {out.dtype} of shape {out.shape} in {order} order; "
            f"{dtype} of shape {shape} in C order is expected"
        )
    if not getattr(out.flags, "writeable", True):
        raise InputError(f"{name}: out is read-only")
    on_host = isinstance(operand, np.ndarray) and isinstance(out, np.ndarray)
    if on_host and np.may_share_memory(out, operand):
        raise InputError(f"{name}: out overlaps the dense operand; give it memory of its own")


def check_inner(name: str, A: tuple[int, int], B: tuple[int, ...]) -> None:
    """Raise InputError where the shapes of A and B do not fit a product A B."""
    if A[1] != B[0]:
        raise InputError(f"{name}: A is {A[0]} x {A[1]} but B has {B[0]} rows; B must have {A[1]}")


def check_layer_operands(
    weights: tuple[int, int], features: tuple[int, ...], sparse: bool, takes_sparse: bool
) -> None:
    """Raise InputError where features of a shape do not fit a layer."""
    if features[1] != weights[0]:
        raise InputError(
            f"layer: weights are {weights[0]} x {weights[1]} but features have "
            f"{features[1]} columns; was --neurons meant to be {features[1]}?"
        )
    if sparse and not takes_sparse:
        raise InputError(
            "layer: a bias is positive (or NaN), which turns zeros into nonzeros; "
            "pass dense features"
        )


def common_dtype(*operands: Any) -> np.dtype[Any]:
    """Return float64 where an operand needs it, else float32.

    Raises
    ------
    InputError
        If an operand is not real.
    """
    for operand in operands:
        if operand.dtype.kind not in "fiub":
            raise InputError(f"operand has type {operand.dtype}; real numbers are expected")
    wide = any(operand.dtype in (np.float64, np.int64, np.uint64) for operand in operands)
    return np.dtype(np.float64 if wide else np.float32)


def cast(array: Any, dtype: np.dtype[Any]) -> Any:
    """Return `array` as `dtype`, itself where it has it."""
    return array if array.dtype == dtype else array.astype(dtype)


def _operand(array: Any, name: str, dtype: np.dtype[Any]) -> Any:
    if array.dtype != dtype and common_dtype(array).itemsize > dtype.itemsize:
        raise InputError(
            f"{name} is {array.dtype} but the weights were prepared as {dtype}; "
            f"prepare them as float64, or convert to {dtype}"
        )
    return cast(array, dtype)
