"""Products of arrays that are as most are, begun in a fraction of a microsecond.

What a user gives to a handle is checked in Python, in one microsecond or two; a small product takes
less. Here types and shapes are looked up together, and compiled code looks at the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from portable_spdnn_cpu.jit.compilation import Array
from portable_spdnn_cpu.machine.thread_pool import ThreadPool
from portable_spdnn_cpu.spmm.dense_layout import Layout, empty_result
from portable_spdnn_cpu.spmm.direct.prepared import DirectProduct
from portable_spdnn_cpu.spmm.few_columns.product import FewColumnsProduct, Starting
from portable_spdnn_cpu.spmm.plain_arrays import NOT_PLAIN, layout_function


class Starter(NamedTuple):
    """What multiplies B of one shape.

    Attributes
    ----------
    shape : tuple of int
        Of C.
    empty : callable
        (shape, dtype) -> a new array for C.
    multiply : callable
        (B, C, residual or None) -> whether C was computed. All are of A's type and of the shapes
        that are expected.
    """

    shape: tuple[int, ...]
    empty: Callable[..., Array]
    multiply: Starting


class Starters:
    """What multiplies arrays as they are given, for one A and the kernels that were chosen for it.

    Parameters
    ----------
    shape : tuple of int
        Of A.
    dtype : dtype
    turned : bool
        Whether transposes of B and C are given.
    workers : ThreadPool
    """

    def __init__(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], turned: bool, workers: ThreadPool
    ) -> None:
        # NumPy has one object for each of its types, but may be given others that are equal.
        self._dtype = np.dtype(dtype.type)
        self._shape, self._turned, self._workers = shape, turned, workers
        self._by_shape: dict[tuple[int, ...], Starter] = {}

    def use(self, kernels: Mapping[tuple[int, int], Any]) -> None:
        """Multiply by these kernels alone, by columns and `Layout`."""
        (rows, inner), step = self._shape, -1 if self._turned else 1
        found: dict[tuple[int, ...], Starter] = {}
        for columns in {columns for columns, _ in kernels if rows * inner * columns}:
            of_c = (rows, columns)[::step]
            found[(inner, columns)[::step]] = self._starter(kernels, columns, of_c)
            if columns == 1 and not self._turned:
                found[(inner,)] = self._starter(kernels, columns, (rows,))
        self._by_shape = found

    def multiply(self, B: object, out: object, residual: object) -> Array | None:
        """Return C of what a user gave; None where these are not as most are."""
        dtype = self._dtype
        if type(B) is not np.ndarray or B.dtype is not dtype:
            return None
        found = self._by_shape.get(B.shape)
        if found is None:
            return None
        shape, empty, multiply = found
        if residual is not None and not (
            type(residual) is np.ndarray and residual.dtype is dtype and residual.shape == shape
        ):
            return None
        if out is None:
            C = empty(shape, dtype)
        elif (
            type(out) is np.ndarray
            and out.dtype is dtype
            and out.shape == shape
            and out.flags.writeable
        ):
            C = out
        else:
            return None
        return C if multiply(B, C, residual) else None

    def _starter(
        self, kernels: Mapping[tuple[int, int], Any], columns: int, shape: tuple[int, ...]
    ) -> Starter:
        """Return what multiplies B of so many columns; `shape`: of C."""
        turned, workers = self._turned, self._workers

        def multiply(B: Array, out: Array, residual: Array | None) -> bool:
            look = layout_function(B.dtype, B.ndim)
            kernel = kernels.get((columns, look(B, out, turned)))
            if kernel is None or (
                residual is not None and look(residual, out, turned) == NOT_PLAIN
            ):
                return False
            if B.ndim == 1:
                B, out = B[:, None], out[:, None]
                residual = None if residual is None else residual[:, None]
            elif turned:
                B, out, residual = B.T, out.T, None if residual is None else residual.T
            return kernel.multiply(B, out, residual, workers) is not False

        layout = Layout.FORTRAN if turned and columns > 1 else Layout.UNALIGNED
        likely = kernels.get((columns, layout))
        if isinstance(likely, FewColumnsProduct):
            start = likely.starter(workers, turned, layout, len(shape), with_residual=multiply)
            return Starter(shape, np.empty, start or multiply)
        soon_done = isinstance(likely, DirectProduct)
        return Starter(shape, np.empty if soon_done else empty_result, multiply)
