"""Products whose sparse operand is prepared once and used many times."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import numpy.typing as npt

from portable_spdnn.arrays import Array
from portable_spdnn.operations.layers import check_layer_operands
from portable_spdnn.operations.operands import (
    AnyArray,
    DenseLike,
    DenseOperand,
    Operand,
    SparseOperand,
    as_columns,
    cast_to_prepared,
    check_inner,
    check_out,
    check_residual,
)

if TYPE_CHECKING:
    from portable_spdnn.operations.interface import Operations

# From an operand, an array for the result or None, and a residual or None, to the result.
Prepared = Callable[[AnyArray, AnyArray, AnyArray], AnyArray]


@dataclass(frozen=True)
class DescribedCall:
    """What `Backend.make_spmm` and `Backend.make_layer` may return: a call, and what it chose.

    Attributes
    ----------
    run : callable
        (dense operand, array for the result or None, residual or None) -> the result.
    describe : callable
        Returns what was chosen when it was made, and why, for people.
    run_as_given : callable, optional
        Takes what `run` takes as a user gave it, which nobody has checked, and returns the result,
        or None where `run` is to do it, after the checks. For products so short that checks in
        Python would take as long.
    """

    run: Prepared
    describe: Callable[[], str]
    run_as_given: Prepared | None = None

    def __call__(self, operand: AnyArray, out: AnyArray, residual: AnyArray) -> AnyArray:
        """Return the result."""
        return self.run(operand, out, residual)


class SpgemmHandle(ABC):
    """A sparse product C = A B in two phases, reusable while the patterns stay.

    `symbolic` finds the sizes of the rows of C, `numeric` its entries. A second `numeric` call
    with new values on the same patterns reuses what the first found.

    Examples
    --------
    >>> import numpy as np, scipy.sparse as sp, portable_spdnn as ps
    >>> A = sp.csr_array(np.array([[0.0, 2.0], [1.0, 0.0]]))
    >>> handle = ps.get_backend("scipy").spgemm_handle(A, A)
    >>> handle.symbolic().tolist()
    [0, 1, 2]
    >>> handle.numeric(A_data=[3.0, 1.0]).toarray().tolist()
    [[3.0, 0.0], [0.0, 2.0]]
    """

    @abstractmethod
    def symbolic(self) -> Array:
        """Return the row offsets of C, int64 of shape (m + 1,). Runs once; later calls are free.

        An entry that the patterns allow counts, whatever its value.
        """

    @abstractmethod
    def numeric(self, A_data: Array | None = None, B_data: Array | None = None) -> SparseOperand:
        """Return C, a canonical csr_array (or its like in the backend's memory space).

        Its type is that of the operands: float64 if one is, else float32.

        Parameters
        ----------
        A_data, B_data : ndarray, optional
            New values for the stored entries of A and B, in their order; they are converted to the
            type of the operand that they are of. Default: as given.

        Raises
        ------
        InputError
            If the number of values differs from the number of stored entries, or they are no real
            numbers.
        """

    def __reduce__(self) -> NoReturn:
        raise TypeError("a handle holds what only its process has; pickle the operands instead")

    def describe(self) -> str:
        """Return in a line what the handle chose, for people. It may run the symbolic phase.

        Default: the phases are one and the same for all rows, and there is nothing to tell.
        """
        return "all rows are computed in the same way"


class _PreparedHandle:
    """What handles of prepared products share."""

    def __init__(
        self,
        backend: Operations,
        shape: tuple[int, int],
        dtype: npt.DTypeLike,
        run: Prepared,
        zeros_stay: bool = True,
    ) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
        self._backend, self._zeros_stay = backend, zeros_stay
        self._prepared = run
        self._run = run.run if isinstance(run, DescribedCall) else run
        as_given = run.run_as_given if isinstance(run, DescribedCall) else None
        self._run_as_given: Prepared = as_given or (lambda operand, out, residual: None)
        self._on_host = backend.memory_space == "host"

    def __repr__(self) -> str:
        rows, columns = self.shape
        return f"<{type(self).__name__} of {rows} x {columns} {self.dtype} weights>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a handle holds what only its process has; pickle the weights instead")

    def describe(self) -> str:
        """Return what was chosen when the handle was made, and why, for people."""
        describe = getattr(self._prepared, "describe", None)
        return "nothing was prepared" if describe is None else str(describe())

    def _fits_as_it_is(self, operand: object, axis: int, length: int) -> bool:
        """Whether a dense operand is an array of NumPy that needs no conversion, and fits.

        Most are, and to ask once takes a quarter of the time of the checks that tell what is wrong.
        """
        return (
            self._on_host
            and type(operand) is np.ndarray
            and axis < operand.ndim <= 2
            and operand.dtype == self.dtype
            and operand.shape[axis] == length
        )


class SpmmHandle(_PreparedHandle):
    """C = A B for one sparse A and any number of dense B; made by `Backend.spmm_handle`.

    Attributes
    ----------
    shape : tuple of int
        Of A: (m, k).
    dtype : numpy dtype
        Of A, and of every C.

    Examples
    --------
    >>> import numpy as np, scipy.sparse as sp, portable_spdnn as ps
    >>> handle = ps.get_backend("scipy").spmm_handle(sp.csr_array(2 * np.eye(2)))
    >>> out = np.empty((2, 3))
    >>> handle.multiply(np.ones((2, 3)), out, residual=np.ones((2, 3))).tolist()
    [[3.0, 3.0, 3.0], [3.0, 3.0, 3.0]]
    """

    def multiply(
        self, B: DenseLike, out: DenseOperand | None = None, residual: DenseLike | None = None
    ) -> DenseOperand:
        """Return C = A B, finished by the handle's epilogue.

        Parameters
        ----------
        B : dense, shape (k, n) or (k,)
            Of a type that A's holds: float32 or narrower where A is float32.
        out : dense, of C's shape, optional
            Takes C: of A's type, in C order. Reused, it saves the pages of a new array.
        residual : dense, of C's shape, optional
            Added before the activation; of a type that A's holds.

        Returns
        -------
        dense, shape (m, n), or (m,) where B is a vector, of A's type

        Raises
        ------
        InputError
            If B, `out` or `residual` does not fit A in shape, type or order.
        """
        if (C := self._run_as_given(B, out, residual)) is not None:
            return C  # type: ignore[no-any-return]
        is_vector, dense, added, taking = as_columns("spmm", B, residual, out)
        if not self._fits_as_it_is(dense, 0, self.shape[1]):
            dense = self._backend.dense_operand("spmm: B", dense)
            dense = cast_to_prepared(dense, "spmm: B", self.dtype)
            check_inner("spmm", self.shape, dense.shape)
        shape = self.shape[0], dense.shape[1]
        if added is not None:
            added = self._backend.dense_operand("spmm: residual", added)
            added = check_residual("spmm", added, shape, self.dtype, is_vector)
        if taking is not None:
            check_out("spmm", taking, shape, self.dtype, dense, added, is_vector=is_vector)
        C = self._run(dense, taking, added)
        if out is not None:
            return out
        return C.reshape(-1) if is_vector else C  # type: ignore[no-any-return]


class LayerHandle(_PreparedHandle):
    """A prepared layer, for any number of features; made by `Backend.layer_handle`.

    Attributes
    ----------
    shape : tuple of int
        (neurons_in, neurons_out)
    dtype : numpy dtype
        Of the weights, and of every result.

    Examples
    --------
    >>> import numpy as np, portable_spdnn as ps
    >>> layer = ps.Layer(np.eye(2), bias=[-1.0, 1.0], activation="none")
    >>> ps.get_backend("scipy").layer_handle(layer).apply(np.ones((1, 2), np.float32)).tolist()
    [[0.0, 2.0]]
    """

    def apply(
        self,
        features: DenseLike | SparseOperand,
        out: DenseOperand | None = None,
        residual: DenseLike | None = None,
    ) -> Operand:
        """Return Y' = Y W, finished by the layer's epilogue.

        Parameters
        ----------
        features : dense or sparse, shape (inputs, neurons_in)
            Of a type that the weights' holds: float32 or narrower where they are float32.
        out : dense, shape (inputs, neurons_out), optional
            Takes Y' of dense features: of the weights' type, in C order. Reused, it saves the
            pages of a new array.
        residual : dense, shape (inputs, neurons_out), optional
            Added before the activation; it goes with dense features.

        Returns
        -------
        shape (inputs, neurons_out)
            Dense where `features` is dense, sparse (without stored zeros) where it is sparse.

        Raises
        ------
        InputError
            If an argument does not fit the weights in shape, type or order, or features are
            sparse where the epilogue turns zeros into nonzeros, or `out` or `residual` is given.
        """
        if (Y := self._run_as_given(features, out, residual)) is not None:
            return Y  # type: ignore[no-any-return]
        Y = features
        backend = self._backend
        if not self._fits_as_it_is(Y, 1, self.shape[0]):
            sparse = backend.is_sparse(Y)
            if sparse:
                Y = backend.sparse_operand("layer: features", Y, self.dtype)
            else:
                Y = backend.dense_operand("layer: features", Y)
            Y = cast_to_prepared(Y, "layer: features", self.dtype)
            dense_only = {"out": out, "residual": residual}
            check_layer_operands(self.shape, Y.shape, sparse, self._zeros_stay, **dense_only)
        shape = Y.shape[0], self.shape[1]
        added: AnyArray = None
        if residual is not None:
            added = backend.dense_operand("layer: residual", residual)
            added = check_residual("layer", added, shape, self.dtype)
        if out is not None:
            check_out("layer", out, shape, self.dtype, Y, added)
        result: Operand = self._run(Y, out, added)
        return result if out is None else out
