"""The operations of a backend: what users call, validated."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy.typing as npt
import scipy.sparse as sp

from portable_spdnn.arguments import checked_count
from portable_spdnn.epilogue import Epilogue
from portable_spdnn.layer import Layer
from portable_spdnn.operations.handles import (
    LayerHandle,
    Prepared,
    SpgemmHandle,
    SpmmHandle,
)
from portable_spdnn.operations.layers import check_layer_operands, layer_epilogue
from portable_spdnn.operations.operands import (
    AnyArray,
    DenseLike,
    DenseOperand,
    DType,
    Operand,
    SparseOperand,
    as_columns,
    cast,
    check_inner,
    check_residual,
    checked_epilogue,
    common_dtype,
)


class Operations:
    """What users call on a backend: arguments are checked here and brought to one form."""

    # See `portable_spdnn.backend`.
    memory_space: ClassVar[str]
    is_sparse: Callable[[object], bool]
    sparse_operand: Callable[..., SparseOperand]
    dense_operand: Callable[[str, object], DenseOperand]
    spmm_as_given: Callable[[object, object, Epilogue | None, object], AnyArray | None]
    spgemm_as_given: Callable[[object, object], AnyArray | None]
    layer_as_given: Callable[[object, object, Epilogue, object], AnyArray | None]
    run_spmm: Callable[[SparseOperand, DenseOperand, Epilogue, DenseOperand | None], DenseOperand]
    make_spmm: Callable[[SparseOperand, int | None, Epilogue], Prepared]
    make_spgemm_handle: Callable[[SparseOperand, SparseOperand], SpgemmHandle]
    # Features are dense or sparse: of either operand type.
    run_layer: Callable[[SparseOperand, AnyArray, Epilogue, DenseOperand | None], Operand]
    make_layer: Callable[[SparseOperand, int | None, Epilogue], Prepared]

    def spmm(
        self,
        A: SparseOperand,
        B: DenseLike,
        epilogue: Epilogue | None = None,
        residual: DenseLike | None = None,
    ) -> DenseOperand:
        """C = A B with A sparse and B dense, finished by an epilogue.

        Parameters
        ----------
        A : sparse, shape (m, k)
        B : dense, shape (k, n) or (k,)
        epilogue : Epilogue, optional
            Its bias is one number, or one for each row of C.
        residual : dense, of C's shape, optional
            Added before the activation.

        Returns
        -------
        dense, shape (m, n), or (m,) where B is a vector
            float64 where an operand is, or has integers of 64 bits, else float32.

        Raises
        ------
        InputError
            If the shapes do not fit, A is not sparse, or an operand is not real.

        Examples
        --------
        >>> import numpy as np, scipy.sparse as sp, portable_spdnn as ps
        >>> A = sp.csr_array(np.array([[2.0, 0.0], [0.0, -1.0]]))
        >>> relu = ps.Epilogue(bias=0.5, activation="relu")
        >>> ps.get_backend("scipy").spmm(A, np.ones((2, 3)), relu).tolist()
        [[2.5, 2.5, 2.5], [0.0, 0.0, 0.0]]
        """
        if (C := self.spmm_as_given(A, B, epilogue, residual)) is not None:
            return C  # type: ignore[no-any-return]
        is_vector, B, residual, _ = as_columns("spmm", B, residual)
        given, A = A, self.sparse_operand("spmm: A", A)
        B = self.dense_operand("spmm: B", B)
        check_inner("spmm", A.shape, B.shape)
        residual = None if residual is None else self.dense_operand("spmm: residual", residual)
        dtype = common_dtype("spmm", A=A, B=B, residual=residual)
        shape = A.shape[0], B.shape[1]
        residual = check_residual("spmm", residual, shape, dtype, is_vector)
        finish = checked_epilogue("spmm", epilogue).prepared("spmm", A.shape[0], dtype)
        A = self._widened(A, dtype, "spmm: A", given)
        C = self.run_spmm(A, cast(B, dtype), finish, residual)
        return C.reshape(-1) if is_vector else C  # type: ignore[attr-defined]

    def spmm_handle(
        self, A: SparseOperand, columns: int | None = None, epilogue: Epilogue | None = None
    ) -> SpmmHandle:
        """Prepare A, sparse of shape (m, k), once, to be multiplied by many B.

        Parameters
        ----------
        A : sparse, shape (m, k)
        columns : int, optional
            How many columns B is going to have, where that is known: the backend may then try
            its variants now and keep the fastest. It limits nothing.
        epilogue : Epilogue, optional
            Applied to every product.

        Raises
        ------
        InputError
            If A is not sparse or not real, `columns` is less than 1, or the bias does not fit.

        Examples
        --------
        >>> import numpy as np, scipy.sparse as sp, portable_spdnn as ps
        >>> handle = ps.get_backend("scipy").spmm_handle(sp.csr_array(np.eye(2)), columns=3)
        >>> handle.multiply(np.ones((2, 3))).tolist()
        [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
        """
        A = self.sparse_operand("spmm: A", A)
        if columns is not None:
            columns = checked_count("spmm: columns", columns)
        dtype = common_dtype("spmm", A=A)
        finish = checked_epilogue("spmm", epilogue).prepared("spmm", A.shape[0], dtype)
        run = self.make_spmm(_own(A, dtype), columns, finish)
        return SpmmHandle(self, (A.shape[0], A.shape[1]), dtype, run)

    def spgemm(self, A: SparseOperand, B: SparseOperand) -> SparseOperand:
        """C = A B with A and B sparse.

        Parameters
        ----------
        A : sparse, shape (m, k)
        B : sparse, shape (k, n)

        Returns
        -------
        sparse, shape (m, n), canonical
            float64 where an operand is, or has integers of 64 bits, else float32. Whether an entry
            that cancels to zero is stored is up to the backend.

        Raises
        ------
        InputError
            If the shapes do not fit, or an operand is not sparse or not real.

        Examples
        --------
        >>> import numpy as np, scipy.sparse as sp, portable_spdnn as ps
        >>> A = sp.csr_array(np.array([[0.0, 2.0], [1.0, 0.0]]))
        >>> ps.get_backend("scipy").spgemm(A, A).toarray().tolist()
        [[2.0, 0.0], [0.0, 2.0]]
        """
        if (C := self.spgemm_as_given(A, B)) is not None:
            return C  # type: ignore[no-any-return]
        return self.make_spgemm_handle(*self._spgemm_operands(A, B)).numeric()

    def spgemm_handle(self, A: SparseOperand, B: SparseOperand) -> SpgemmHandle:
        """Return a handle for C = A B, reusable with new values while the patterns stay.

        Takes A and B as `spgemm` does, and raises what it raises.

        Examples
        --------
        >>> import numpy as np, scipy.sparse as sp, portable_spdnn as ps
        >>> A = sp.csr_array(np.array([[0.0, 2.0], [1.0, 0.0]]))
        >>> handle = ps.get_backend("scipy").spgemm_handle(A, A)
        >>> handle.numeric(B_data=[5.0, 3.0]).toarray().tolist()
        [[6.0, 0.0], [0.0, 5.0]]
        """
        A, B = self._spgemm_operands(A, B)
        return self.make_spgemm_handle(_own(A, A.dtype), _own(B, B.dtype))

    def layer(
        self,
        weights: Layer | SparseOperand,
        features: DenseLike | SparseOperand,
        bias: npt.ArrayLike | None = None,
        y_max: float | None = None,
        *,
        epilogue: Epilogue | None = None,
        residual: DenseLike | None = None,
    ) -> Operand:
        """Y' = Y W finished by an epilogue, in one pass where the backend can.

        By default it is a layer of the Graph Challenge, ``min(max(Y W + bias, 0), y_max)``.

        Parameters
        ----------
        weights : Layer, or sparse of shape (neurons_in, neurons_out)
            A `Layer` brings its own bias, activation and bounds.
        features : dense or sparse, shape (inputs, neurons_in)
        bias : float or array_like of shape (neurons_out,), optional
            Default: the layer's own, or 0.
        y_max : float, optional
            Upper bound of a ReLU layer, None for none; as in a network, other layers have bounds
            of their own alone.
        epilogue : Epilogue, optional
            In place of all of these: it goes without `bias` and `y_max`.
        residual : dense, shape (inputs, neurons_out), optional
            Added before the activation; it goes with dense features.

        Returns
        -------
        shape (inputs, neurons_out)
            Dense where `features` is dense, sparse (without stored zeros) where it is sparse.

        Raises
        ------
        InputError
            If the shapes do not fit, if an operand is not real, if `y_max` is not positive, or
            if `features` is sparse and the epilogue turns zeros into nonzeros.

        Examples
        --------
        >>> import numpy as np, portable_spdnn as ps
        >>> one = ps.Layer([[1.0, -1.0]], bias=-0.5)
        >>> ps.get_backend("scipy").layer(one, np.array([[2.0], [0.0]])).tolist()
        [[1.5, 0.0], [0.0, 0.0]]
        """
        finish = layer_epilogue(weights, bias, y_max, epilogue)
        matrix = weights.kept_csr() if isinstance(weights, Layer) else weights
        if (result := self.layer_as_given(matrix, features, finish, residual)) is not None:
            return result  # type: ignore[no-any-return]
        W = self.sparse_operand("layer: weights", matrix)
        sparse = self.is_sparse(features)
        take = self.sparse_operand if sparse else self.dense_operand
        Y: AnyArray = take("layer: features", features)
        check_layer_operands(W.shape, Y.shape, sparse, finish.zeros_stay, residual=residual)
        residual = None if residual is None else self.dense_operand("layer: residual", residual)
        dtype = common_dtype("layer", weights=W, features=Y, residual=residual)
        shape = Y.shape[0], W.shape[1]
        residual = check_residual("layer", residual, shape, dtype)
        finish = finish.prepared("layer", W.shape[1], dtype)
        W = self._widened(W, dtype, "layer: weights", matrix)
        if sparse:
            Y = self._widened(Y, dtype, "layer: features", features)
        return self.run_layer(W, cast(Y, dtype), finish, residual)

    def layer_handle(
        self,
        weights: Layer | SparseOperand,
        bias: npt.ArrayLike | None = None,
        y_max: float | None = None,
        *,
        epilogue: Epilogue | None = None,
        inputs: int | None = None,
    ) -> LayerHandle:
        """Prepare a layer once, to be applied to features many times.

        Takes weights, bias, y_max and epilogue as `layer` does, and raises what it raises. `inputs`
        is how many rows features will have, where that is known: the backend may then try its
        variants now. It limits nothing.

        Examples
        --------
        >>> import numpy as np, scipy.sparse as sp, portable_spdnn as ps
        >>> handle = ps.get_backend("scipy").layer_handle(sp.csr_array(np.eye(2)), bias=-1, y_max=4)
        >>> handle.apply(np.array([[0.5, 9.0]])).tolist()
        [[0.0, 4.0]]
        """
        finish = layer_epilogue(weights, bias, y_max, epilogue)
        matrix = weights.csr() if isinstance(weights, Layer) else weights
        W = self.sparse_operand("layer: weights", matrix)
        if inputs is not None:
            inputs = checked_count("layer: inputs", inputs)
        dtype = common_dtype("layer", weights=W)
        finish = finish.prepared("layer", W.shape[1], dtype)
        shape = W.shape[0], W.shape[1]
        run = self.make_layer(_own(W, dtype), inputs, finish)
        return LayerHandle(self, shape, dtype, run, finish.zeros_stay)

    def _spgemm_operands(
        self, A: SparseOperand, B: SparseOperand
    ) -> tuple[SparseOperand, SparseOperand]:
        """Return A and B canonical and of one type; themselves where they are so."""
        left, right = self.sparse_operand("spgemm: A", A), self.sparse_operand("spgemm: B", B)
        check_inner("spgemm", left.shape, right.shape)
        dtype = common_dtype("spgemm", A=left, B=right)
        left = self._widened(left, dtype, "spgemm: A", A)
        return left, self._widened(right, dtype, "spgemm: B", B)

    def _widened(
        self, operand: SparseOperand, dtype: DType, name: str, given: object
    ) -> SparseOperand:
        """Return a sparse operand as `dtype`: anew from what was given where that is wider.

        In float32 sums of duplicates, and large integers, have been rounded.
        """
        if operand.dtype == dtype:
            return operand
        return self.sparse_operand(name, given, dtype)


def _own(matrix: SparseOperand, dtype: DType) -> SparseOperand:
    """Return a sparse operand as `dtype`, a copy if it is SciPy's: its owner may change it."""
    return matrix.astype(dtype) if sp.issparse(matrix) else cast(matrix, dtype)
