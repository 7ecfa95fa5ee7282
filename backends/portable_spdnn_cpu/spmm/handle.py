"""Products of pruned weights and dense matrices: which kernel runs them, decided once and kept."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import numpy as np

from portable_spdnn.epilogue import Epilogue
from portable_spdnn.operations.operands import SparseOperand
from portable_spdnn_cpu.jit.compilation import Array
from portable_spdnn_cpu.jit.jobs import address_of
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.machine.peaks import fma_rate
from portable_spdnn_cpu.machine.thread_pool import ThreadPool
from portable_spdnn_cpu.spmm import tuning
from portable_spdnn_cpu.spmm.clustered.product import ClusteredProduct
from portable_spdnn_cpu.spmm.dense import DenseProduct
from portable_spdnn_cpu.spmm.few_columns.product import MAX_COLUMNS, FewColumnsProduct
from portable_spdnn_cpu.spmm.stream.product import (
    StreamProduct,
    StreamVariant,
    has_aligned_rows,
)
from portable_spdnn_cpu.spmm.tuning import ProductSize

# Entries that a load of B must serve for rows in clusters to be worth a trial.
LEAST_SHARED = 1.5
MAX_TRIAL_BYTES = 1 << 28  # of made-up operands and results; larger products are not tried


class Layout(Enum):
    """How B lies in memory: what a choice depends on besides its columns."""

    ALIGNED = "rows that start on cache lines"
    ROWS = "rows that do not"
    TURNED = "columns that lie together"


class Kernel(Protocol):
    """A product that is packed for one kernel.

    `multiply` computes `out`; it returns False where this kernel cannot, and has not begun.
    """

    def multiply(
        self, B: Array, out: Array, residual: Array | None, pool: ThreadPool
    ) -> bool | None:
        """Compute `out`, of shape (m, n), from B of shape (k, n)."""

    def describe(self) -> str:
        """Return what runs, for people."""


@dataclass
class Choice:
    """The kernel that was chosen for a number of columns and an order of B.

    Attributes
    ----------
    kernel : Kernel
    predicted : float
        Seconds, by the model.
    measured : float or None
        Seconds in the trial, where there was one.
    """

    kernel: Kernel
    predicted: float
    measured: float | None = None


class WeightsProduct:
    """C = A B for one pruned A and many dense B, finished by an epilogue.

    A kernel is chosen for each number of columns and each order of B, and kept: by a trial when it
    is made for `columns`, by a model at the first call with any other.

    Parameters
    ----------
    workers : ThreadPool
    A : csr_array, shape (m, k)
    epilogue : Epilogue
        Its bias is None, or an array of A's type.
    columns : int, optional
        How many columns B is going to have.
    """

    def __init__(
        self,
        workers: ThreadPool,
        A: SparseOperand,
        epilogue: Epilogue,
        columns: int | None = None,
    ) -> None:
        self.workers, self.A, self.epilogue = workers, A, epilogue
        self._choices: dict[tuple[int, Layout], Choice] = {}
        self._packed: dict[StreamVariant, StreamProduct] = {}
        self._few: dict[int, FewColumnsProduct] = {}
        clustered = ClusteredProduct(workers, A, epilogue)
        self._clustered = clustered if clustered.shared >= LEAST_SHARED else None
        operands = (columns or 0) * sum(A.shape) * A.dtype.itemsize
        if columns and operands <= MAX_TRIAL_BYTES:
            for layout in Layout:
                if layout != Layout.ALIGNED or columns * A.dtype.itemsize % BLOCK_BYTES == 0:
                    self._choices[columns, layout] = self._try_kernels(columns, layout)

    def multiply(self, B: Array, out: Array | None = None, residual: Array | None = None) -> Array:
        """Return C.

        Parameters
        ----------
        B : ndarray, shape (k, n)
        out : ndarray, shape (m, n), C or Fortran order, optional
        residual : ndarray, shape (m, n), optional
            Added before the activation.

        Returns
        -------
        ndarray, shape (m, n)
            Where it is not `out`, in Fortran order if B is.
        """
        columns = B.shape[1]
        layout = layout_of(B)
        if out is None:
            turned = layout == Layout.TURNED
            out = empty_result(self.A.shape[0], columns, self.A.dtype, turned)
        choice = self._choices.get((columns, layout))
        if choice is None:
            choice = self._choices[columns, layout] = self._predict(columns, layout)
        if choice.kernel.multiply(B, out, residual, self.workers) is False:
            fallback = self._stream(tuning.stream_variants(self._size(columns, layout))[0])
            fallback.multiply(B, out, residual, self.workers)
        return out

    def describe(self, layer: bool = False) -> str:
        """Return what was chosen so far, and why: a sentence for each number of columns.

        Parameters
        ----------
        layer : bool
            Whether to speak of a layer's inputs, which are the columns of B.
        """
        return "\n".join(
            self._describe(columns, layout, choice, layer)
            for (columns, layout), choice in self._choices.items()
        )

    def _describe(self, columns: int, layout: Layout, choice: Choice, layer: bool) -> str:
        """Return a sentence about one choice."""
        what = "Features of {} input{}" if layer else "B of {} column{}"
        order = "Fortran" if (layout == Layout.TURNED) != layer else "C"
        lines = ", on cache lines" if layout == Layout.ALIGNED else ""
        threads = self.workers.threads
        on = f", on {threads} thread{'s' if threads > 1 else ''}"
        if isinstance(choice.kernel, FewColumnsProduct):
            on = ""  # that it tells by itself
        flops = 2 * self.A.nnz * columns
        text = (
            f"{what.format(columns, 's' if columns != 1 else '')} in {order} order{lines}: "
            f"{choice.kernel.describe()}{on}; "
            f"predicted {1e6 * choice.predicted:.1f} microseconds"
        )
        if choice.measured is not None:
            share = flops / choice.measured / fma_rate(self.workers)
            text += (
                f", measured {1e6 * choice.measured:.1f}, {100 * share:.0f} % of the peak of "
                "multiply-adds"
            )
        if isinstance(choice.kernel, DenseProduct):
            zeros = 1 - self.A.nnz / max(1, self.A.shape[0] * self.A.shape[1])
            text += f": with {100 * zeros:.0f} % zeros, to skip them costs more than it saves"
        return text + "."

    def _size(self, columns: int, layout: Layout) -> ProductSize:
        return size_of(self.A, columns, layout, self.workers)

    def _stream(self, variant: StreamVariant) -> StreamProduct:
        """Return A packed for a variant of the stream, once."""
        if variant not in self._packed:
            self._packed[variant] = StreamProduct(self.A, self.epilogue, variant)
        return self._packed[variant]

    def _few_columns(self, columns: int) -> FewColumnsProduct:
        """Return A packed for a few columns, once."""
        if columns not in self._few:
            self._few[columns] = FewColumnsProduct(self.A, columns, self.epilogue)
        return self._few[columns]

    @functools.cached_property
    def _dense(self) -> DenseProduct:
        return DenseProduct(self.A, self.epilogue)

    def _predict(self, columns: int, layout: Layout) -> Choice:
        """Choose by the model."""
        size = self._size(columns, layout)
        best = tuning.stream_variants(size)[0]
        seconds, dense = tuning.stream_seconds(size, best), tuning.dense_seconds(size)
        if 1 <= columns <= MAX_COLUMNS:
            few = self._few_columns(columns)
            return Choice(few, few.seconds) if few.seconds < dense else Choice(self._dense, dense)
        if self._clustered is not None and seconds / self._clustered.gain < dense:
            return Choice(self._clustered, seconds / self._clustered.gain)
        if dense < seconds:
            return Choice(self._dense, dense)
        return Choice(self._stream(best), seconds)

    def _try_kernels(self, columns: int, layout: Layout) -> Choice:
        """Choose by a trial on made-up operands; what is not chosen is forgotten."""
        size = self._size(columns, layout)
        B = empty_result(size.inner, columns, self.A.dtype, size.turned)
        if layout == Layout.ROWS:
            raw = np.empty(B.size + 1, B.dtype)
            first = 1 if address_of(raw) % BLOCK_BYTES == 0 else 0
            B = raw[first : first + B.size].reshape(B.shape)
        B[...] = 1
        out = empty_result(size.rows, columns, self.A.dtype, size.turned)
        candidates: list[tuple[Kernel, float]] = [
            (StreamProduct(self.A, self.epilogue, variant), tuning.stream_seconds(size, variant))
            for variant in tuning.stream_variants(size)[: tuning.TRIED]
        ]
        if columns <= MAX_COLUMNS:
            few = self._few_columns(columns)
            candidates.insert(0, (few, few.seconds))
        best, dense = candidates[0][1], tuning.dense_seconds(size)
        if self._clustered is not None:
            self._clustered.prepare(columns)
            candidates.append((self._clustered, best / self._clustered.gain))
        if dense < tuning.DENSE_MARGIN * best:
            candidates.append((self._dense, dense))
        choices: list[Choice] = []
        for kernel, predicted in candidates:
            least = min((choice.measured or 0.0 for choice in choices), default=float("inf"))
            run = functools.partial(kernel.multiply, B, out, None, self.workers)
            choices.append(Choice(kernel, predicted, tuning.measured(run, least)))
        return min(choices, key=lambda choice: choice.measured or 0.0)


def layout_of(B: Array) -> Layout:
    """Return how a dense operand lies in memory."""
    if B.flags.f_contiguous and not B.flags.c_contiguous:
        return Layout.TURNED
    return Layout.ALIGNED if has_aligned_rows(B) else Layout.ROWS


def size_of(A: SparseOperand, columns: int, layout: Layout, workers: ThreadPool) -> ProductSize:
    """Return what a choice depends on."""
    rows, inner = A.shape
    return ProductSize(
        rows, inner, columns, int(A.nnz), A.dtype.itemsize, layout == Layout.TURNED,
        layout == Layout.ALIGNED, workers.threads,
    )  # fmt: skip


def empty_result(rows: int, columns: int, dtype: np.dtype[Any], turned: bool) -> Array:
    """Return an array for C, in Fortran order where it is turned, aligned on cache lines.

    Vectors then are written to one line each, and threads that share columns share no line. Memory
    is NumPy's: that of a result which is no longer used is taken again, and its pages are there.
    """
    raw = np.empty(rows * columns + BLOCK_BYTES // dtype.itemsize, dtype)
    first = -address_of(raw) % BLOCK_BYTES // dtype.itemsize
    flat = raw[first : first + rows * columns]
    return flat.reshape(columns, rows).T if turned else flat.reshape(rows, columns)


def multiply_once(
    workers: ThreadPool,
    A: SparseOperand,
    epilogue: Epilogue,
    B: Any,
    residual: Any,
) -> Array:
    """Return C = A B, finished, for a product that is not repeated: little is prepared.

    SciPy, which prepares nothing, has done one or two columns by then.
    """
    if B.shape[1] <= 2:
        return np.asarray(epilogue.apply(A @ B, residual, per_row=True))
    columns, layout = B.shape[1], layout_of(B)
    out = empty_result(A.shape[0], columns, A.dtype, layout == Layout.TURNED)
    size = size_of(A, columns, layout, workers)
    whole = tuning.whole_variant(size)
    variant = whole or tuning.stream_variants(size)[0]
    StreamProduct(A, epilogue, variant, pack=whole is None).multiply(B, out, residual, workers)
    return out
