"""Single products on dense features: spmm and the fused layer, prepared or called once."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from portable_spdnn_cpu.jit.compilation import read_only
from portable_spdnn_cpu.jit.cpu_info import CACHE_LINE
from portable_spdnn_cpu.jit.thread_pool import Workers
from portable_spdnn_cpu.layout.packing import Activation, pack_product
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.spmm.kernel import multiply_copied, multiply_in_place
from portable_spdnn_cpu.spmm.tuning import Product, Variant, fastest, predict, variants
from portable_spdnn_cpu.tiles.launch import Workspace

Array = npt.NDArray[Any]

MOST_TRIAL_BYTES = 1 << 28  # of made-up features and results; larger products are not tried


class DenseLayer:
    """Y' = activation(Y W + bias), within bounds.

    A variant is chosen for each number of inputs, and kept: by a trial now for `columns`, by a
    model at the first call with any other.

    Parameters
    ----------
    workers : Workers
    by_output : csr_array, shape (neurons_out, neurons_in)
        W transposed.
    bias : ndarray, shape (neurons_out,)
    activation : Activation
    prepare : bool
        Spend time on finding structure: to be used many times.
    columns : int, optional
        How many inputs calls are going to have.
    """

    def __init__(
        self,
        workers: Workers,
        by_output: Any,
        bias: Array,
        activation: Activation,
        prepare: bool,
        columns: int | None = None,
    ) -> None:
        self.dtype = bias.dtype
        self.workers = {1: Workers(1), workers.threads: workers}
        self.natural, self.permuted = pack_product(by_output, bias, activation, prepare)
        neurons_out, neurons_in = by_output.shape
        self.product = Product(
            neurons_in, neurons_out, int(by_output.nnz), self.natural.indices.size,
            self.dtype.itemsize, workers.threads,
        )  # fmt: skip
        self._variants: dict[tuple[int, bool], Variant] = {}  # by inputs and Fortran order
        if columns and columns * sum(by_output.shape) * self.dtype.itemsize <= MOST_TRIAL_BYTES:
            self._try_variants(columns)
        elif prepare:
            self._try_variants(2 * BLOCK_BYTES // self.dtype.itemsize)  # compiles all variants
        self._tried = set(self._variants)

    def __call__(self, features: Array, out: Array | None = None) -> Array:
        """Return Y'.

        Parameters
        ----------
        features : ndarray, shape (inputs, neurons_in)
        out : ndarray, shape (inputs, neurons_out), C or Fortran order, optional

        Returns
        -------
        ndarray, shape (inputs, neurons_out)
            In Fortran order where the features are: that is the tiles' own order, and cheapest.
        """
        inputs = features.shape[0]
        fortran = features.flags.f_contiguous and not features.flags.c_contiguous
        if out is None:
            shape = inputs, self.product.neurons_out
            out = np.empty(shape, self.dtype, order="F" if fortran else "C")
        elif out.flags.f_contiguous != out.flags.c_contiguous:
            fortran = bool(out.flags.f_contiguous)
        features = np.asarray(features, order="F" if fortran else "C")
        variant = self._variants.get((inputs, fortran))
        if variant is None:
            aligned = features.ctypes.data % CACHE_LINE == 0
            variant = predict(self.product, inputs, fortran, aligned)
            self._variants[inputs, fortran] = variant
        self._run(variant, features, out, fortran)
        return out

    def describe(self) -> str:
        """Return the variants that were chosen so far, a sentence each."""
        return "\n".join(
            f"Features of {inputs} inputs in {'Fortran' if fortran else 'C'} order are "
            f"{'read in place' if variant.in_place else 'copied'} in panels of {variant.width} "
            f"inputs, on {variant.threads} thread{'s' if variant.threads > 1 else ''}, "
            f"{'the fastest in a trial' if (inputs, fortran) in self._tried else 'by a model'}."
            for (inputs, fortran), variant in self._variants.items()
        )

    def _try_variants(self, inputs: int) -> None:
        """Choose by a trial on made-up features, in each order."""
        for fortran in (False, True):
            order: Any = "F" if fortran else "C"
            features = np.ones((inputs, self.product.neurons_in), self.dtype, order)
            out = np.empty((inputs, self.product.neurons_out), self.dtype, order)
            run = functools.partial(self._run, features=features, out=out, fortran=fortran)
            choices = variants(self.product, inputs, fortran)
            self._variants[inputs, fortran] = fastest(choices, run)

    def _run(self, variant: Variant, features: Array, out: Array, fortran: bool) -> None:
        """Compute `out`, each thread panel by panel."""
        counter, workers = np.zeros(1, np.int64), self.workers[variant.threads]
        if variant.in_place:
            src, dst = read_only(features.T), out.T
            workers.run(
                lambda worker: multiply_in_place(counter, self.natural, src, dst, variant.width)
            )
            return
        source = read_only(features)
        transposed = out.T if fortran else None
        widest = max(self.product.neurons_in, self.product.neurons_out)
        with spare_workspace() as workspace:
            workspace.fit(workers.threads, widest, variant.width, self.dtype)

            def work(worker: int) -> None:
                _, panel, sums, _ = workspace.tile(worker, variant.width)
                multiply_copied(counter, self.permuted, source, panel, transposed, sums, out)

            workers.run(work)


_spare: list[Workspace] = []


@contextmanager
def spare_workspace() -> Iterator[Workspace]:
    """Lend buffers that an earlier call left; concurrent calls each get their own."""
    try:
        workspace = _spare.pop()
    except IndexError:
        workspace = Workspace()
    yield workspace
    _spare[:] = [workspace]
