"""Products of pruned weights and dense matrices: which kernel runs them, decided once and kept."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol
from weakref import WeakValueDictionary

import numpy as np
import scipy.sparse as sp

from portable_spdnn.caching import cached_property
from portable_spdnn.epilogue import Epilogue
from portable_spdnn.host import format_bytes
from portable_spdnn.operations.operands import SparseOperand
from portable_spdnn_cpu.jit.compilation import Array
from portable_spdnn_cpu.jit.target import is_zen
from portable_spdnn_cpu.layout.clusters import cluster_outputs
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.machine.peaks import fma_rate
from portable_spdnn_cpu.machine.thread_pool import ThreadPool
from portable_spdnn_cpu.machine.timing import least_seconds
from portable_spdnn_cpu.spmm import cost_model, tuning
from portable_spdnn_cpu.spmm.clustered.product import ClusteredProduct
from portable_spdnn_cpu.spmm.cost_model import ProductSize
from portable_spdnn_cpu.spmm.dense import DenseProduct
from portable_spdnn_cpu.spmm.dense_layout import NUMPY_OFFSET, Layout, empty_result, layout_of
from portable_spdnn_cpu.spmm.direct.choice import is_almost_empty, suited_form
from portable_spdnn_cpu.spmm.direct.prepared import DirectProduct, shares_rows
from portable_spdnn_cpu.spmm.fast_path import FastPaths, new_result, result_offset
from portable_spdnn_cpu.spmm.few_columns import product as few_columns
from portable_spdnn_cpu.spmm.few_columns.choice import Form, forms
from portable_spdnn_cpu.spmm.few_columns.packing import PackedProduct
from portable_spdnn_cpu.spmm.few_columns.product import FewColumnsProduct, predicted_seconds
from portable_spdnn_cpu.spmm.stream.product import StreamProduct, StreamVariant

# Entries that a load of B must serve for clusters of rows to be considered.
LEAST_SHARED = 1.5
# Seconds of a product, by streaming, from which clusters are considered without a trial. In shorter
# ones they gain less than it takes to look for rows that share columns, 25 nanoseconds an entry on
# a Zen 3, and to lay them out, which brings that to 0.1 microseconds.
CLUSTERED_FROM = 1e-3
# A form for few columns, and A as it is, are tried too where the model gives them less than so many
# times the least seconds of these forms, or of the stream. For A as it is the model is closer on
# AMD's processors.
DOUBTFUL = 2.0
DIRECT_DOUBTFUL = 1.5 if is_zen() else DOUBTFUL
# It is tried as well where the model gives it at most so many seconds more, and where A is almost
# empty, for which the model gives too many. Of 7,900 products on a Zen 3 for which it gave more
# than 1.5 times the least seconds A as it is was the fastest in 86, all with at most so many more;
# of 4,200 with sparser A it was in four more, whose A was almost empty.
DIRECT_SECONDS = 1e-5
# Choices without a trial that are kept, for numbers of columns and layouts of B. Those of streamed
# weights, and those row by row, share packings of A.
MAX_PREDICTIONS = 128
# Seconds that a call of other kernels takes before they begin, more than one of few columns.
LATER = 8e-7
MAX_TRIAL_BYTES = 1 << 28  # of made-up operands and results; larger products are not tried


class Kernel(Protocol):
    """A product that is prepared for one kernel.

    `multiply` computes `out`; it returns False where this kernel cannot, and another is to.
    `written` are the bytes of all results that are written before the first of them is read, where
    `out` is one of several.
    """

    def multiply(
        self, B: Array, out: Array, residual: Array | None, pool: ThreadPool, written: int = 0
    ) -> bool | None:
        """Compute `out`, of shape (m, n), from B of shape (k, n)."""

    def describe(self) -> str:
        """Return what runs, for people."""

    def threads_used(self, threads: int, columns: int) -> int:
        """Return how many of a pool's threads compute so many columns."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory that A takes as it is prepared."""


@dataclass
class Choice:
    """The kernel that was chosen for a number of columns and a `Layout` of B.

    Attributes
    ----------
    kernel : Kernel
    predicted : float
        Seconds, by the model.
    measured : float or None
        Seconds in the trial, where there was one; in proportion where it had fewer columns.
    tried : int
        The columns that it had.
    """

    kernel: Kernel
    predicted: float
    measured: float | None = None
    tried: int = 0


class WeightsProduct:
    """C = A B for one pruned A and many dense B, finished by an epilogue.

    A kernel is chosen for each number of columns and each `Layout` of B, and kept: by a trial when
    it is made for `columns`, by a model at the first call with any other, or with rows that are as
    long as whole cache lines and not as far apart.

    Parameters
    ----------
    workers : ThreadPool
    A : csr_array, shape (m, k)
    epilogue : Epilogue
        Its bias is None, or an array of A's type.
    columns : int, optional
        How many columns B is going to have.
    keeps_order : bool
        Whether C, where it is made anew, is in Fortran order if B is; else it is in C order.

    Attributes
    ----------
    multiply_as_given : callable
        `FastPaths.multiply` with the kernels that have been chosen. Where C keeps the order of B it
        takes transposes: a layer's features.
    """

    def __init__(
        self,
        workers: ThreadPool,
        A: SparseOperand,
        epilogue: Epilogue,
        columns: int | None = None,
        keeps_order: bool = False,
    ) -> None:
        self.keeps_order = keeps_order
        self.workers, self.A, self.epilogue = workers, A, epilogue
        self._rows, self._dtype = A.shape[0], A.dtype
        self._choices: dict[tuple[int, int], Choice] = {}
        self._packed: dict[StreamVariant, StreamProduct] = {}
        self._few: dict[int, list[FewColumnsProduct]] = {}
        # As long as one of `_few` holds them.
        self._packed_rows = WeakValueDictionary[tuple[int, int], PackedProduct]()
        self._fast_paths = FastPaths(A.shape, self._dtype, keeps_order, workers, self._run)
        self.multiply_as_given = self._fast_paths.multiply
        operands = (columns or 0) * max(1, sum(A.shape)) * A.dtype.itemsize
        if columns and operands <= MAX_TRIAL_BYTES:
            layouts = [Layout.UNALIGNED]
            if columns * A.dtype.itemsize % BLOCK_BYTES == 0:
                layouts = [Layout.SHIFTED, Layout.ALIGNED]
            if columns > 1:
                layouts.append(Layout.FORTRAN)  # a single column is in either order
            for layout in layouts:
                self._choices[columns, layout] = self._try_kernels(columns, layout)
        self._forget()

    def multiply(
        self,
        B: Array,
        out: Array | None = None,
        residual: Array | None = None,
        written: int = 0,
    ) -> Array:
        """Return C, of shape (m, n).

        Parameters
        ----------
        B : ndarray, shape (k, n)
        out : ndarray, shape (m, n), C or Fortran order, optional
        residual : ndarray, shape (m, n), optional
            Added before the activation.
        written : int
            As `Kernel` has it.
        """
        columns = B.shape[1]
        layout = layout_of(B)
        choice = self._choices.get((columns, layout))
        if choice is None:
            choice = self._choices[columns, layout] = self._predict(B, layout)
            self._forget()
        kernel = choice.kernel
        if out is None:
            fortran = self.keeps_order and layout == Layout.FORTRAN
            offset = result_offset(kernel, B)
            out = new_result(kernel, (self._rows, columns), self._dtype, fortran, offset)
        self._run(kernel, B, out, residual, written)
        return out

    def _run(
        self, kernel: Kernel, B: Array, out: Array, residual: Array | None, written: int = 0
    ) -> None:
        """Compute C by a kernel, or the stream where that cannot: dense ones with infinity in B."""
        if kernel.multiply(B, out, residual, self.workers, written) is False:
            size = self._size(B.shape[1], layout_of(B))
            stream = self._stream(tuning.stream_variants(size)[0])
            stream.multiply(B, out, residual, self.workers, written)

    @property
    def has_chosen(self) -> bool:
        """Whether a kernel is chosen for any number of columns."""
        return bool(self._choices)

    def describe(self, layer: bool = False) -> str:
        """Return what was chosen so far, and why: a sentence for each number of columns and layout.

        The first time it measures the processor's peak, which takes a tenth of a second.

        Parameters
        ----------
        layer : bool
            Whether to speak of a layer's inputs, which are the columns of B.
        """
        return (
            "\n".join(
                self._describe(columns, layout, choice, layer)
                for (columns, layout), choice in list(self._choices.items())
            )
            or "No kernel is chosen yet: one is, at the first product with each number of columns."
        )

    def _describe(self, columns: int, layout: int, choice: Choice, layer: bool) -> str:
        """Return a sentence about one choice."""
        what = "Features of {} input{}" if layer else "B of {} column{}"
        order = "Fortran" if (layout == Layout.FORTRAN) != layer else "C"
        side = "columns" if layer else "rows"
        lines = {
            Layout.ALIGNED: f", {side} aligned to 64 bytes",
            Layout.SHIFTED: f", {side} of whole 64 bytes, address not a multiple of 64",
        }.get(layout, "")
        if layout == Layout.UNALIGNED and columns * self.A.dtype.itemsize % BLOCK_BYTES == 0:
            lines = f", {side} of whole 64 bytes, not contiguous or not whole 64 bytes apart"
        threads = choice.kernel.threads_used(self.workers.threads, columns)
        if isinstance(choice.kernel, DirectProduct) and layout == Layout.FORTRAN:
            threads = 1
        packed, dense = choice.kernel.nbytes, math.prod(self.A.shape) * self.A.dtype.itemsize
        on = f", on {threads} thread{'s' if threads > 1 else ''}"
        flops = 2 * self.A.nnz * columns
        text = (
            f"{what.format(columns, 's' if columns != 1 else '')} in {order} order{lines}: "
            f"{choice.kernel.describe()}{on}; "
            f"A takes {format_bytes(packed)} ({format_bytes(dense)} dense); "
            f"predicted {1e6 * choice.predicted:.1f} microseconds"
        )
        if choice.measured is not None:
            # The peak is that of float32; float64 has half of it.
            share = flops * self.A.dtype.itemsize / 4 / choice.measured / fma_rate(self.workers)
            scaled = f" in proportion to {choice.tried} columns" if choice.tried < columns else ""
            text += (
                f", measured {1e6 * choice.measured:.1f}{scaled}, {100 * share:.0f} % of the peak "
                "of multiply-adds"
            )
        if isinstance(choice.kernel, DenseProduct):
            zeros = 1 - self.A.nnz / max(1, self.A.shape[0] * self.A.shape[1])
            text += f": with {100 * zeros:.0f} % zeros, skipping them would cost more than it saves"
        return text + "."

    def _forget(self) -> None:
        """Let go of old predictions beyond MAX_PREDICTIONS, and of packings that nothing uses."""
        predicted = [key for key, choice in list(self._choices.items()) if choice.measured is None]
        for key in predicted[:-MAX_PREDICTIONS]:
            self._choices.pop(key, None)
        used = {id(choice.kernel) for choice in list(self._choices.values())}
        for variant, product in list(self._packed.items()):
            if id(product) not in used:
                self._packed.pop(variant, None)
        for columns, products in list(self._few.items()):
            # Other threads may do the same meanwhile, and never see a list that is empty.
            kept = [product for product in products if id(product) in used]
            if kept:
                self._few[columns] = kept
            else:
                self._few.pop(columns, None)
        for name in ("_dense", "_direct", "_by_columns", "_clustered"):
            kernel = vars(self).get(name)  # None where A was found to have no clusters
            if kernel is not None and id(kernel) not in used:
                vars(self).pop(name, None)
        while True:
            kernels = {key: choice.kernel for key, choice in list(self._choices.items())}
            self._fast_paths.use(kernels)
            if list(kernels) == list(self._choices):
                break  # no other thread has chosen one meanwhile

    def chosen(self, columns: int) -> Choice | None:
        """Return what was chosen for a number of columns, if anything was, for any `Layout`."""
        choices = self._choices
        for layout in (Layout.FORTRAN, Layout.UNALIGNED, Layout.SHIFTED, Layout.ALIGNED):
            if (choice := choices.get((columns, layout))) is not None:
                return choice
        return None

    def few_columns_seconds(self, columns: int) -> float:
        """Return what the model says of `few_columns_product`, but for a call.

        Infinity where columns are too many for it.
        """
        form = self._few_form(columns)
        if form is None:
            return math.inf
        return form.seconds + few_columns.copying_seconds(self.A, columns)

    def few_columns_product(self, columns: int) -> FewColumnsProduct:
        """Return A packed for so few columns, as it is kept or else as the model says."""
        kept = self._few.get(columns) or self._few_columns(columns, forms(self.A, columns)[:1])
        return kept[0]

    def _few_form(self, columns: int) -> Form | None:
        """Return the form that takes the least time by the model; None for too many columns."""
        return forms(self.A, columns)[0] if few_columns.fits(self.A, columns) else None

    def _size(self, columns: int, layout: int) -> ProductSize:
        A = self.A
        return cost_model.size_of(
            A.shape, int(A.nnz), A.dtype.itemsize, columns, layout, self.workers, self.keeps_order
        )

    def _stream(self, variant: StreamVariant) -> StreamProduct:
        """Return A packed for a variant of the stream, once."""
        # Another thread may let go of it meanwhile.
        product = self._packed.get(variant)
        if product is None:
            product = self._packed[variant] = StreamProduct(self.A, self.epilogue, variant)
        return product

    def _few_columns(self, columns: int, wanted: Sequence[Form]) -> list[FewColumnsProduct]:
        """Return A packed for a few columns: as it is kept, else in the wanted forms."""
        products = self._few.get(columns)
        if products is None:
            products = self._few[columns] = [
                FewColumnsProduct(
                    self.A, columns, self.epilogue, self.workers.threads, form, self._packed_rows
                )
                for form in wanted
            ]
        return products

    @cached_property
    def _clustered(self) -> ClusteredProduct | None:
        """A in clusters of rows, unless hardly any rows share columns."""
        offsets = self.A.indptr.astype(np.int64, copy=False)
        clusters = cluster_outputs(offsets, self.A.indices)
        # Known before A is laid out, which takes longer than the search.
        if clusters.shared_at_most(offsets) < LEAST_SHARED:
            return None
        clustered = ClusteredProduct(self.workers, self.A, self.epilogue, clusters)
        return clustered if clustered.shared >= LEAST_SHARED else None

    @cached_property
    def _dense(self) -> DenseProduct:
        return DenseProduct(self.A, self.epilogue)

    @cached_property
    def _direct(self) -> DirectProduct:
        return DirectProduct(self.A, self.epilogue)

    @cached_property
    def _by_columns(self) -> DirectProduct:
        return DirectProduct(sp.csc_array(self.A), self.epilogue)

    def _clustered_for(self, size: ProductSize) -> ClusteredProduct | None:
        """Return A in clusters where B and C are in one order: else these would copy B before."""
        return self._clustered if size.fortran == size.out_fortran else None

    def _direct_seconds(self, size: ProductSize, B: Array) -> float:
        """Return what the model says of A as it is.

        Infinity where the model is not fitted, and the product is not as small as those that single
        calls leave to it. In a trial B has as many columns as are tried.
        """
        if not tuning.is_fitted(size):
            A = self.A
            if suited_form("csr", A.shape, A.nnz, B, self.keeps_order) is None:
                return math.inf
        shared = shares_rows(self.A.nnz, self.A.shape, size.columns, size.itemsize)
        threads = self.workers.threads if shared and not size.fortran else 1
        return cost_model.direct_seconds(replace(size, threads=threads))

    def _predict(self, B: Array, layout: int) -> Choice:
        """Choose by the model."""
        columns = B.shape[1]
        size = self._size(columns, layout)
        # Seconds of a product by the model, and how much later it begins than one of few columns;
        # most kernels are made where they are chosen.
        makers: list[tuple[float, float, Callable[[], Kernel]]] = [
            (cost_model.dense_seconds(size), LATER, lambda: self._dense),
            (self._direct_seconds(size, B), LATER, lambda: self._direct),
        ]
        few, form = math.inf, self._few_form(columns)
        if form is not None:
            few = predicted_seconds(form.seconds, self.A, columns, self.workers.threads)
        best, streamed = None, math.inf
        if form is None or columns > few_columns.SURE_COLUMNS:
            best = tuning.stream_variants(size)[0]
            streamed = cost_model.stream_seconds(size, best)
        if form is not None and few < streamed:
            wanted = [form]
            makers.append((few, 0.0, lambda: self._few_columns(columns, wanted)[0]))
        elif best is not None:
            variant = best
            makers.append((streamed, LATER, lambda: self._stream(variant)))
            clustered = self._clustered_for(size) if streamed >= CLUSTERED_FROM else None
            if clustered is not None:
                seconds = cost_model.clustered_seconds(size, streamed, clustered.gain)
                makers.append((seconds, LATER, lambda: clustered))
        predicted, _, make = min(makers, key=lambda maker: maker[0] + maker[1])
        return Choice(make(), predicted)

    def _try_kernels(self, columns: int, layout: int) -> Choice:
        """Choose by a trial on made-up operands."""
        size = self._size(columns, layout)
        tried = tuning.tried_columns(size)
        offset = NUMPY_OFFSET if layout in (Layout.UNALIGNED, Layout.SHIFTED) else 0
        # Fewer columns would be whole lines, which rows of an unaligned B are not.
        wide = size.columns if layout == Layout.UNALIGNED else tried
        B = empty_result((size.inner, wide), self.A.dtype, size.fortran, offset)[:, :tried]
        B[...] = 1
        results = {
            begin: empty_result((size.rows, tried), self.A.dtype, size.out_fortran, begin)
            for begin in {0, offset}
        }
        candidates: list[tuple[Kernel, float]] = [
            (self._stream(variant), cost_model.stream_seconds(size, variant))
            for variant in tuning.tried_variants(size)
        ]
        if few_columns.fits(self.A, columns):
            # They are there where another layout of B was tried before.
            few = self._few.get(columns) or self._few_columns(
                columns, forms(self.A, columns, DOUBTFUL)
            )
            threads = self.workers.threads
            seconds = [predicted_seconds(each.seconds, self.A, columns, threads) for each in few]
            candidates = [*zip(few, seconds, strict=True), *candidates]
        best = min(seconds for _, seconds in candidates)
        dense = cost_model.dense_seconds(size)
        most = max(DIRECT_DOUBTFUL * best, best + DIRECT_SECONDS)
        direct = self._direct_seconds(size, B)
        if direct < most or (direct < math.inf and is_almost_empty(self.A.nnz, size.rows)):
            candidates.append((self._direct, direct))
        if columns == 1 and self.A.nnz < size.rows:  # rows take longer than their entries
            by_columns = cost_model.direct_seconds(replace(size, rows=size.inner, threads=1))
            if by_columns < most:
                candidates.append((self._by_columns, by_columns))
        clustered = self._clustered_for(size)
        if clustered is not None:
            clustered.prepare(columns, not size.fortran)  # its inputs are the columns of B
            seconds_of_clusters = cost_model.clustered_seconds(size, best, clustered.gain)
            candidates.append((clustered, seconds_of_clusters))
        if dense < tuning.DENSE_MARGIN * best:
            candidates.append((self._dense, dense))
        measured = least_seconds(
            [
                functools.partial(
                    kernel.multiply, B, results[result_offset(kernel, B)], None, self.workers
                )
                for kernel, _ in candidates
            ]
        )
        called = [
            seconds + (0 if isinstance(kernel, FewColumnsProduct) else LATER)
            for seconds, (kernel, _) in zip(measured, candidates, strict=True)
        ]
        chosen = called.index(min(called))
        return Choice(*candidates[chosen], measured[chosen] * columns / tried, tried)
