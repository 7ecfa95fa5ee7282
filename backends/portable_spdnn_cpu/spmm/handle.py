"""Single products on dense features.

spmm and the fused layer, called one at a time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from portable_spdnn_cpu.jit.compilation import read_only
from portable_spdnn_cpu.jit.thread_pool import Workers
from portable_spdnn_cpu.layout.packing import (
    EDGES,
    NEURONS_IN,
    NEURONS_OUT,
    Activation,
    pack_product,
)
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.spmm.tuning import MeasuredChoice
from portable_spdnn_cpu.tiles import kernel as kernels
from portable_spdnn_cpu.tiles.launch import Workspace, cut_tiles, launch
from portable_spdnn_cpu.tiles.layer import run_columns, run_copied_columns
from portable_spdnn_cpu.tiles.sources import make_source
from portable_spdnn_cpu.tiles.spilling import SpillCosts
from portable_spdnn_cpu.tiles.tuning import (
    LEAST_INPUTS,
    MOST_INPUTS,
    measure_tile_costs,
    shared_width,
    tile_width,
)

Array = npt.NDArray[Any]

# Of a single call. Below so many edges, 50 microseconds of work, waking a thread takes as long.
SERIAL_BELOW = 3 << 20
# Fortran order is a tile's own: up to so many inputs, rows are near enough to each other to be
# gathered where they are.
MOST_IN_PLACE = 64
# Tiles of one layer have nothing to decide.
NO_COSTS = SpillCosts(read_only(np.zeros(1)), 0.0, 0.0, read_only(np.zeros(2, np.int64)))


@dataclass(frozen=True)
class Way:
    """One way to run a layer on a number of inputs.

    Attributes
    ----------
    workers : Workers
    form : {"in place", "copied in", "tiles"}
        Gather from the features as they are, or from tiles that they are copied into; sums go
        where they belong, or are copied there from tiles too.
    width : int
        Inputs that a worker takes at a time.
    """

    workers: Workers
    form: str
    width: int


class DenseLayer:
    """Y' = activation(Y W + bias), within bounds.

    Parameters
    ----------
    workers : Workers
    by_output : csr_array, shape (neurons_out, neurons_in)
        W transposed.
    bias : ndarray, shape (neurons_out,)
    activation : Activation
    prepare : bool
        Spend time on finding structure and the best tiles: to be used many times.
    """

    def __init__(
        self,
        workers: Workers,
        by_output: Any,
        bias: Array,
        activation: Activation,
        prepare: bool,
    ) -> None:
        self.workers, self.serial, self.dtype = workers, Workers(1), bias.dtype
        self.layers, self.in_tiles = pack_product(by_output, bias, activation, prepare)
        self.costs = None
        if prepare:
            widest = max(by_output.shape)
            self.costs = measure_tile_costs(
                workers, self.in_tiles, widest, self.dtype, some_leave=False
            )
        # All ways give the same result to the bit.
        self._ways: dict[tuple[int, bool], tuple[list[Way], MeasuredChoice]] = {}

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
        fortran = features.flags.f_contiguous and not features.flags.c_contiguous
        if out is None:
            shape = (features.shape[0], int(self.layers.table[0, NEURONS_OUT]))
            out = np.empty(shape, self.dtype, order="F" if fortran else "C")
        elif out.flags.f_contiguous != out.flags.c_contiguous:
            fortran = bool(out.flags.f_contiguous)
        features = np.asarray(features, order="F" if fortran else "C")
        known = self._ways.get((features.shape[0], fortran))
        if known is None:
            ways = self._find_ways(features.shape[0], fortran)
            known = self._ways[features.shape[0], fortran] = ways, MeasuredChoice(len(ways))
        ways, choice = known
        number = choice.next()
        way = ways[number]
        start = time.perf_counter()
        if way.form == "in place":
            self._in_place(way, features, out)
        elif way.form == "copied in":
            self._copied_in(way, features, out)
        else:
            self._in_tiles(way, features, out, fortran)
        choice.note(number, time.perf_counter() - start)
        return out

    def _find_ways(self, inputs: int, fortran: bool) -> list[Way]:
        """Return the ways to run so many inputs."""
        row = self.layers.table[0]
        widest = int(max(row[NEURONS_IN], row[NEURONS_OUT]))
        can_stay = fortran and inputs % (BLOCK_BYTES // self.dtype.itemsize) == 0
        # Fortran order is copied in rows of a tile's width: wider ones use more of each page.
        least = 2 * LEAST_INPUTS if fortran else LEAST_INPUTS
        if self.costs is None:
            workers = self.serial if inputs * row[EDGES] < SERIAL_BELOW else self.workers
            threads = workers.threads
            if can_stay and inputs <= MOST_IN_PLACE:
                return [Way(workers, "in place", shared_width(inputs, self.dtype, inputs, threads))]
            return [Way(workers, "tiles", tile_width(widest, self.dtype, inputs, threads, least))]
        ways = []
        for workers in (self.workers, self.serial)[: 1 + (self.workers.threads > 1)]:
            if can_stay:
                wanted = [("in place", LEAST_INPUTS), ("in place", 2 * LEAST_INPUTS)]
                widths = LEAST_INPUTS, self.costs.width, MOST_INPUTS
                wanted += [("copied in", width) for width in widths]
            else:
                wanted = [("tiles", max(self.costs.width, least))]
            shared = [
                (form, shared_width(width, self.dtype, inputs, workers.threads))
                for form, width in wanted
            ]
            ways += [Way(workers, form, width) for form, width in dict.fromkeys(shared)]
        return ways

    def _in_place(self, way: Way, features: Array, out: Array) -> None:
        """Run on columns as they are, each worker some of them."""
        counter = np.zeros(1, np.int64)
        live = np.empty(features.shape[0], self.dtype)
        src, dst = read_only(features.T), out.T

        def work(worker: int) -> None:
            run_columns(counter, self.layers, src, dst, live, way.width)

        way.workers.run(work)

    def _copied_in(self, way: Way, features: Array, out: Array) -> None:
        """Run on tiles that columns are copied into, each worker some of them."""
        counter = np.zeros(1, np.int64)
        src, dst = read_only(features.T), out.T
        with spare_workspace() as workspace:
            workspace.fit(way.workers.threads, src.shape[0], way.width, self.dtype)

            def work(worker: int) -> None:
                _, tile, _, live = workspace.tile(worker, way.width)
                run_copied_columns(counter, self.in_tiles, src, tile, dst, live)

            way.workers.run(work)

    def _in_tiles(self, way: Way, features: Array, out: Array, fortran: bool) -> None:
        """Copy inputs into tiles and out of them."""
        workers, width = way.workers, way.width
        widest = int(self.layers.table[0, [NEURONS_IN, NEURONS_OUT]].max())
        inputs = np.arange(features.shape[0], dtype=np.int64)
        tiles = cut_tiles(inputs, 0, 1, width, False, False, np.zeros(1, np.bool_))
        with spare_workspace() as workspace:
            workspace.fit(workers.threads, widest, width, self.dtype)
            launch(
                workers,
                workspace,
                np.zeros(kernels.COUNTERS, np.int64),
                make_source(features, self.dtype)._replace(dense=read_only(features)),
                tiles,
                NO_COSTS,
                self.in_tiles,
                out,
            )


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
