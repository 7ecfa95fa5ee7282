"""spmm and the fused layer on dense features, called one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from portable_spdnn_cpu import depth_first_tiles as kernels
from portable_spdnn_cpu.compiled import read_only
from portable_spdnn_cpu.packed_network import pack_product
from portable_spdnn_cpu.tile_costs import LEAST_INPUTS, tile_width
from portable_spdnn_cpu.tile_launch import Workspace, cut_tiles, launch, make_source
from portable_spdnn_cpu.workers import Workers

# Tiles of one layer have nothing to decide.
NO_COSTS = kernels.Costs(read_only(np.zeros(1)), 0.0, 0.0, read_only(np.zeros(2, np.int64)))
SERIAL_BELOW = 1 << 20  # edges: 50 microseconds of work, as long as waking another thread takes

Array = npt.NDArray[Any]


def dense_product(
    workers: Workers,
    by_output: Any,
    features: Array,
    bias: Array,
    y_max: float | None,
    activation: bool,
) -> Array:
    """Y' = Y W + bias, with ReLU and clamp where `activation`.

    Parameters
    ----------
    workers : Workers
    by_output : csr_array, shape (neurons_out, neurons_in)
        W transposed.
    features : ndarray, shape (inputs, neurons_in)
    bias : ndarray, shape (neurons_out,)
    y_max : float or None
    activation : bool

    Returns
    -------
    ndarray, shape (inputs, neurons_out)
        In Fortran order where the features are: that is the tiles' own order, and cheapest.
    """
    fortran = features.flags.f_contiguous and not features.flags.c_contiguous
    inputs = features.shape[0]
    layers = pack_product(by_output, bias)
    out = np.empty((inputs, by_output.shape[0]), bias.dtype, order="F" if fortran else "C")
    if inputs * by_output.nnz < SERIAL_BELOW:
        workers = Workers(1)
    # Fortran order is copied in rows of a tile's width: wider ones use more of each memory page.
    least = 2 * LEAST_INPUTS if fortran else LEAST_INPUTS
    width = tile_width(max(by_output.shape), bias.dtype, inputs, workers.threads, least)
    tiles = cut_tiles(
        np.arange(inputs, dtype=np.int64), 0, width, False, False, np.zeros(1, np.bool_)
    )
    with spare_workspace() as workspace:
        workspace.fit(workers.threads, (max(by_output.shape), width), bias.dtype)
        launch(
            workers,
            workspace,
            np.zeros(kernels.COUNTERS, np.int64),
            make_source(features, bias.dtype, fortran),
            tiles,
            NO_COSTS,
            layers,
            y_max,
            activation,
            out,
        )
    return out


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
