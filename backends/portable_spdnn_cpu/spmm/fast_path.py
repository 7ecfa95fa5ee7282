"""The fast path of a handle: products of plain arrays, begun in a fraction of a microsecond.

What a user gives to a handle is checked in Python, in one microsecond or two; a small product takes
less. If the last product was one of few columns, its compiled code is asked first whether it takes
these operands as well. Else their shapes are looked up, and compiled code looks at the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from portable_spdnn_cpu.jit import array_objects
from portable_spdnn_cpu.jit.compilation import Array
from portable_spdnn_cpu.machine.thread_pool import ThreadPool
from portable_spdnn_cpu.spmm.dense_layout import empty_result
from portable_spdnn_cpu.spmm.direct.prepared import DirectProduct
from portable_spdnn_cpu.spmm.few_columns.product import FewColumnsProduct, PlainProduct
from portable_spdnn_cpu.spmm.plain_arrays import NOT_PLAIN, layout_function
from portable_spdnn_cpu.spmm.stream.product import StreamProduct


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
        self._by_shape: dict[tuple[int, ...], _Path] = {}  # of B
        self._latest: PlainProduct | None = None
        self._look = layout_function()

    def use(self, kernels: Mapping[tuple[int, int], Any]) -> None:
        """Multiply by these kernels alone, by columns and `Layout`."""
        (rows, inner), step = self._shape, -1 if self._transposed else 1
        by_columns: dict[int, dict[int, Any]] = {}
        for (columns, layout), kernel in kernels.items():
            if array_objects.FIELDS_ARE_KNOWN and rows * inner * columns:
                by_columns.setdefault(columns, {})[layout] = kernel
        found = {}
        for columns, by_layout in by_columns.items():
            shapes = [((inner, columns)[::step], (rows, columns)[::step])]
            if columns == 1 and not self._transposed:
                shapes.append(((inner,), (rows,)))
            for of_b, of_c in shapes:
                before = self._by_shape.get(of_b)
                if before is None or before.kernels != by_layout:
                    before = self._path(by_layout, of_b, of_c)
                found[of_b] = before
        self._by_shape, self._latest = found, None

    def _path(
        self, kernels: Mapping[int, Any], of_b: tuple[int, ...], of_c: tuple[int, ...]
    ) -> _Path:
        """Return what multiplies B of a shape by kernels, by `Layout`."""
        plain = {
            layout: PlainProduct(kernel, of_b, of_c, self._transposed, layout)
            for layout, kernel in kernels.items()
            if isinstance(kernel, FewColumnsProduct)
            and kernel.threads_used(self._workers.threads) == 1
        }
        return _Path(kernels, of_c, plain, np.empty((1,) * len(of_c), self._dtype))

    def multiply(self, B: object, out: object, residual: object) -> Array | None:
        """Return C of what a user gave; None where that is to take the path with checks."""
        latest = self._latest
        if latest is not None:
            C = latest.multiply(B, out, residual)
            if C is not None:
                return C
        if type(B) is np.memmap:  # compiled code knows arrays by their type
            return self.multiply(np.asarray(B), out, residual)
        dtype = self._dtype
        if type(B) is not np.ndarray or B.dtype is not dtype:
            return None
        path = self._by_shape.get(B.shape)
        if path is None:
            return None
        for plain in path.plain.values():
            if plain is not latest:
                C = plain.multiply(B, out, residual)
                if C is not None:
                    self._latest = plain
                    return C
        if out is not None and not (
            type(out) is np.ndarray
            and out.dtype is dtype
            and out.shape == path.shape
            and out.flags.writeable
        ):
            return None
        if residual is not None and not (
            type(residual) is np.ndarray
            and residual.dtype is dtype
            and residual.shape == path.shape
        ):
            return None
        return self._multiply(path, B, out, residual)

    def _multiply(
        self, path: _Path, B: Array, out: Array | None, residual: Array | None
    ) -> Array | None:
        """Return C of arrays of the shapes and the type that a path has."""
        transposed, itemsize, look = self._transposed, self._dtype.itemsize, self._look
        layout = look(B, path.stand_in if out is None else out, itemsize, transposed)
        kernel = path.kernels.get(layout)
        if kernel is None:
            return None
        if out is None:
            turned = transposed or len(path.shape) == 1  # no kernel reads such a B in place
            offset = 0 if turned else result_offset(kernel, B)
            out = new_result(kernel, path.shape, self._dtype, offset=offset)
        C, added = out, residual
        if added is not None and look(added, C, itemsize, transposed) == NOT_PLAIN:
            return None
        if len(path.shape) == 1:
            B, C, added = B[:, None], C[:, None], None if added is None else added[:, None]
        elif transposed:
            B, C, added = B.T, C.T, None if added is None else added.T
        self._run(kernel, B, C, added)
        return out


@dataclass
class _Path:
    """What multiplies plain B of a shape.

    Attributes
    ----------
    kernels : dict of int to Kernel
        By the `Layout` of B.
    shape : tuple of int
        Of C, as it is given.
    plain : dict of int to PlainProduct
        By the `Layout` of B, for kernels of few columns that one thread runs.
    stand_in : ndarray
        Of one item, looked at in place of a C that is yet to be made.
    """

    kernels: Mapping[int, Any]
    shape: tuple[int, ...]
    plain: Mapping[int, PlainProduct]
    stand_in: Array


def new_result(
    kernel: object,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    fortran: bool = False,
    offset: int = 0,
) -> Array:
    """Return an array for C, in C or Fortran order.

    It starts so many bytes behind the start of a cache line, but for kernels of short products: to
    find such a place takes time.
    """
    if isinstance(kernel, DirectProduct | FewColumnsProduct):
        return np.empty(shape, dtype, "F" if fortran else "C")
    return empty_result(shape, dtype, fortran, offset)


def result_offset(kernel: object, B: Array) -> int:
    """Return how many bytes behind the start of a cache line a C in C order is best to begin."""
    return kernel.result_offset(B) if isinstance(kernel, StreamProduct) else 0
