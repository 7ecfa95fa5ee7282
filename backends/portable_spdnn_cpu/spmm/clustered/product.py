"""Products of prepared weights whose outputs share inputs."""

from __future__ import annotations

import functools
from typing import Literal

import numpy as np

from portable_spdnn.epilogue import Epilogue
from portable_spdnn.operations.operands import SparseOperand
from portable_spdnn_cpu.activations import NONE, activation_of
from portable_spdnn_cpu.jit.compilation import Array, read_only
from portable_spdnn_cpu.layout.clusters import Clusters
from portable_spdnn_cpu.layout.packing import ACTIVATION, PackedLayers, pack_product
from portable_spdnn_cpu.machine.buffers import Spare
from portable_spdnn_cpu.machine.cpu_info import CACHE_LINE
from portable_spdnn_cpu.machine.thread_pool import ALONE, ThreadPool
from portable_spdnn_cpu.spmm.clustered.kernel import (
    add_residual,
    multiply_copied,
    multiply_in_place,
)
from portable_spdnn_cpu.spmm.clustered.tuning import (
    ProductSize,
    Variant,
    fastest,
    predict,
    variants,
)
from portable_spdnn_cpu.spmm.dense_layout import new_result
from portable_spdnn_cpu.tiles.launch import TileWorkspace

MAX_VARIANTS = 64  # for different numbers of inputs that are kept


class ClusteredProduct:
    """Y' = Y W for dense Y, finished by an epilogue.

    Activations that bounds express (none and ReLU) are applied in registers, the others to a panel
    while it is in a cache, and after a residual in a pass over the result.

    A variant is chosen for each number of inputs, and kept: by a trial in `prepare`, by a model at
    the first call with any other.

    Parameters
    ----------
    workers : ThreadPool
    by_output : csr_array, shape (neurons_out, neurons_in)
        W transposed.
    epilogue : Epilogue
        Its bias is None, or an array of the weights' type.
    clusters : Clusters, optional
        Those of W's outputs; looked for by default.
    """

    def __init__(
        self,
        workers: ThreadPool,
        by_output: SparseOperand,
        epilogue: Epilogue,
        clusters: Clusters | None = None,
    ) -> None:
        self.dtype = by_output.dtype
        self.workers = {1: ALONE, workers.threads: workers}
        self.activation = activation_of(epilogue, self.dtype)
        bias = epilogue.bias
        if bias is None:
            bias = np.zeros(by_output.shape[0], self.dtype)
        # By whether the activation is left for later, as it is where a residual comes before it.
        natural, permuted = pack_product(by_output, bias, self.activation, clusters)
        self.packed = {False: (natural, permuted), True: (linear(natural), linear(permuted))}
        neurons_out, neurons_in = by_output.shape
        self.product = ProductSize(
            neurons_in, neurons_out, int(by_output.nnz), natural.indices.size,
            self.dtype.itemsize, workers.threads,
        )  # fmt: skip
        self._variants: dict[tuple[int, bool], Variant] = {}  # by inputs and Fortran order

    @property
    def shared(self) -> float:
        """How many entries there are for each input that is loaded."""
        return self.product.edges / max(1, self.product.loads)

    @property
    def gain(self) -> float:
        """About how many times as fast this is as streaming the weights, where the work counts.

        Measured: 1.3 to 1.8 where a load serves four entries.
        """
        return float(self.shared**0.3)

    def __call__(
        self, features: Array, out: Array | None = None, residual: Array | None = None
    ) -> Array:
        """Return Y'.

        Parameters
        ----------
        features : ndarray, shape (inputs, neurons_in)
        out : ndarray, shape (inputs, neurons_out), C or Fortran order, optional
        residual : ndarray, shape (inputs, neurons_out), optional
            Added before the activation.

        Returns
        -------
        ndarray, shape (inputs, neurons_out)
            In Fortran order where the features are: that is the tiles' own order, and cheapest.
        """
        inputs = features.shape[0]
        fortran = features.flags.f_contiguous and not features.flags.c_contiguous
        if out is None:
            shape = inputs, self.product.neurons_out
            out = new_result(shape, self.dtype, fortran)
        elif out.flags.f_contiguous != out.flags.c_contiguous:
            fortran = bool(out.flags.f_contiguous)
        features = np.asarray(features, order="F" if fortran else "C")
        variant = self._variants.get((inputs, fortran))
        if variant is None:
            aligned = features.ctypes.data % CACHE_LINE == 0
            variant = predict(self.product, inputs, fortran, aligned)
            if len(self._variants) >= MAX_VARIANTS:
                self._variants.clear()
            self._variants[inputs, fortran] = variant
        self._run(variant, features, out, fortran, residual is not None)
        if residual is not None:
            self._finish(out, np.asarray(residual, order="F" if fortran else "C"), variant.threads)
        return out

    def multiply(
        self, B: Array, out: Array, residual: Array | None, pool: ThreadPool, written: int = 0
    ) -> None:
        """Compute C = A B, for A = W^T: C^T = B^T W, where the inputs are the columns of B.

        Takes what `StreamProduct.multiply` takes; the threads are those that it was made with, and
        `written` is not used.
        """
        self(B.T, out.T, None if residual is None else residual.T)

    def describe(self) -> str:
        """Return what runs, for people."""
        return f"in clusters of rows: a load of B serves {self.shared:.1f} entries"

    def threads_used(self, threads: int, columns: int) -> int:
        """Return how many threads compute so many columns."""
        known = list(self._variants.items())
        used = {one.threads for (inputs, _), one in known if inputs == columns}
        return max(used, default=threads)

    @property
    def nbytes(self) -> int:
        """Bytes that W takes, packed for panels in place and for those that are copied."""
        packed = (one for forms in self.packed.values() for one in forms)
        arrays = {id(array): array for one in packed for array in one}  # forms share some
        return sum(array.nbytes for array in arrays.values())

    def prepare(self, inputs: int, fortran: bool) -> None:
        """Choose the variant for so many inputs, by a trial on made-up ones, once."""
        if (inputs, fortran) in self._variants:
            return
        order: Literal["F", "C"] = "F" if fortran else "C"
        features = np.ones((inputs, self.product.neurons_in), self.dtype, order)
        out = new_result((inputs, self.product.neurons_out), self.dtype, fortran)
        run = functools.partial(self._run, features=features, out=out, fortran=fortran)
        self._variants[inputs, fortran] = fastest(variants(self.product, inputs, fortran), run)

    def _finish(self, out: Array, residual: Array, threads: int) -> None:
        """Add the residual and apply the activation, each thread to its part of the result."""
        values, added = out.ravel(order="K"), residual.ravel(order="K")

        def work(worker: int) -> None:
            first, end = (values.size * part // threads for part in (worker, worker + 1))
            add_residual(values, read_only(added), first, end, *self.activation)

        self.workers[threads].run(work)

    def _run(
        self, variant: Variant, features: Array, out: Array, fortran: bool, bare: bool = False
    ) -> None:
        """Compute `out`, each thread panel by panel; `bare` leaves the activation for later."""
        counter, workers = np.zeros(1, np.int64), self.workers[variant.threads]
        natural, permuted = self.packed[bare]
        if variant.in_place:
            src, dst = read_only(features.T), out.T
            workers.run(lambda worker: multiply_in_place(counter, natural, src, dst, variant.width))
            return
        source = read_only(features)
        transposed = out.T if fortran else None
        widest = max(self.product.neurons_in, self.product.neurons_out)
        workspace = _SPARE.take()
        workspace.fit(workers.threads, widest, variant.width, self.dtype)

        def work(worker: int) -> None:
            _, panel, sums, _ = workspace.tile(worker, variant.width)
            multiply_copied(counter, permuted, source, panel, transposed, sums, out)

        workers.run(work)
        _SPARE.give_back(workspace)


def linear(packed: PackedLayers) -> PackedLayers:
    """Return a packed product with neither activation nor bounds, which shares all else."""
    table = packed.table.copy()
    table[:, ACTIVATION] = NONE
    infinite = np.full(len(table), np.inf, packed.bias.dtype)
    return packed._replace(
        table=read_only(table), lower=read_only(-infinite), upper=read_only(infinite)
    )


_SPARE = Spare(TileWorkspace)
