"""The fast path of a handle: products of plain arrays, begun in a fraction of a microsecond.

What a user gives to a handle is checked in Python, in one microsecond or two; a small product takes
less. Here types and shapes are looked up together, and compiled code looks at the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from portable_spdnn_cpu.jit.compilation import Array
from portable_spdnn_cpu.machine.thread_pool import ThreadPool
from portable_spdnn_cpu.spmm.dense_layout import Layout, empty_result
from portable_spdnn_cpu.spmm.direct.prepared import DirectProduct
from portable_spdnn_cpu.spmm.few_columns.product import FastPath, FewColumnsProduct
from portable_spdnn_cpu.spmm.plain_arrays import NOT_PLAIN, layout_function


class FastPaths:
    """What multiplies plain arrays, for one A and the kernels that were chosen for it.

    Parameters
    ----------
    shape : tuple of int
        Of A.
    dtype : dtype
    transposed : bool
        Whether transposes of B and C are given.
    workers : ThreadPool
    run : callable
        Computes C, given a kernel, B, C, and a residual or None.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        transposed: bool,
        workers: ThreadPool,
        run: Callable[[Any, Array, Array, Array | None], None],
    ) -> None:
        # NumPy has one object for each of its types, but may be given others that are equal.
        self._dtype = np.dtype(dtype.type)
        self._shape, self._transposed = shape, transposed
        self._workers, self._run = workers, run
        # By the shape of B: that of C, what multiplies, and by which kernels.
        self._by_shape: dict[tuple[int, ...], tuple[tuple[int, ...], FastPath, dict[int, Any]]] = {}

    def use(self, kernels: Mapping[tuple[int, int], Any]) -> None:
        """Multiply by these kernels alone, by columns and `Layout`."""
        (rows, inner), step = self._shape, -1 if self._transposed else 1
        by_columns: dict[int, dict[int, Any]] = {}
        for (columns, layout), kernel in kernels.items():
            if rows * inner * columns:
                by_columns.setdefault(columns, {})[layout] = kernel
        found = {}
        for columns, by_layout in by_columns.items():
            shapes = [((inner, columns)[::step], (rows, columns)[::step])]
            if columns == 1 and not self._transposed:
                shapes.append(((inner,), (rows,)))
            for of_b, of_c in shapes:
                before = self._by_shape.get(of_b)
                if before is None or before[2] != by_layout:
                    before = of_c, self._fast_path(by_layout, columns, of_c), by_layout
                found[of_b] = before
        self._by_shape = found

    def multiply(self, B: object, out: object, residual: object) -> Array | None:
        """Return C of what a user gave; None where that is to take the path with checks."""
        dtype = self._dtype
        if type(B) is not np.ndarray or B.dtype is not dtype:
            return None
        found = self._by_shape.get(B.shape)
        if found is None:
            return None
        shape, multiply, _ = found
        if out is not None and not (
            type(out) is np.ndarray
            and out.dtype is dtype
            and out.shape == shape
            and out.flags.writeable
        ):
            return None
        if residual is not None and not (
            type(residual) is np.ndarray and residual.dtype is dtype and residual.shape == shape
        ):
            return None
        return multiply(B, out, residual)

    def _fast_path(
        self, kernels: Mapping[int, Any], columns: int, shape: tuple[int, ...]
    ) -> FastPath:
        """Return what multiplies B of so many columns by kernels, by `Layout`; `shape`: of C."""
        transposed, dtype, run = self._transposed, self._dtype, self._run
        look, one = layout_function(dtype, len(shape)), np.empty((1,) * len(shape), dtype)

        def multiply(B: Array, out: Array | None, residual: Array | None) -> Array | None:
            kernel = kernels.get(look(B, one if out is None else out, transposed))
            if kernel is None:
                return None
            if out is None:
                out = new_result(kernel, shape, dtype)
            C, added = out, residual
            if added is not None and look(added, C, transposed) == NOT_PLAIN:
                return None
            if len(shape) == 1:
                B, C, added = B[:, None], C[:, None], None if added is None else added[:, None]
            elif transposed:
                B, C, added = B.T, C.T, None if added is None else added.T
            run(kernel, B, C, added)
            return out

        layout = Layout.FORTRAN if transposed and columns > 1 else Layout.UNALIGNED
        likely = kernels.get(layout)
        if isinstance(likely, FewColumnsProduct):
            return likely.fast_path(self._workers, transposed, layout, shape, otherwise=multiply)
        return multiply


def new_result(
    kernel: object, shape: tuple[int, ...], dtype: np.dtype[Any], fortran: bool = False
) -> Array:
    """Return an array for C, in C or Fortran order.

    It starts on a cache line, but for kernels of short products: to find such a place takes time.
    """
    if isinstance(kernel, DirectProduct | FewColumnsProduct):
        return np.empty(shape, dtype, "F" if fortran else "C")
    return empty_result(shape, dtype, fortran)
