"""The form of fused segments that `persistent_layers` reads: its constants, and what varies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from portable_spdnn_gpu.compile.catalog import CLUSTER, PERSISTENT_SPREAD, Kernel
from portable_spdnn_gpu.compile.precision import Precision
from portable_spdnn_gpu.device.interface import Array

STEPS = 4  # entries that a lane reads together
ROWS = 8  # rows of a cluster that a lane computes
HALVES = CLUSTER // ROWS
NO_ROW = 0xFFFF
BANK_BYTES = 128  # that all banks of shared memory give together
UNIT, LINE = 16, 128  # bytes in which headers count, and of a cache line
ALIGNMENT = 256  # bytes: headers and data begin at multiples of it
# What a header says of a group, in the order of persistent_layers.cu.
HEADER = 16
BEGIN, COMMON, OWN, NEXT, NEXT_LINES, MAY_STOP = 0, 1, 2, 2 + ROWS, 3 + ROWS, 4 + ROWS
WEIGHT = 5 + ROWS
COLUMN = np.dtype(np.uint32)  # where the features of a neuron begin in shared memory, in bytes
ROW = np.dtype(np.uint16)  # the row of shared memory that holds the features of an output


def feature_rows(neurons: Array) -> Array:
    """Return the rows of shared memory that hold the features of neurons.

    As `row_of_neuron` of group_sums.cuh, which says why.
    """
    found = neurons.copy()
    for shift in range(3, 16, 3):
        found ^= neurons >> shift & (PERSISTENT_SPREAD - 1)
    return found


@dataclass(frozen=True)
class Layout:
    """What the form of a layer depends on beside the layer.

    Attributes
    ----------
    precision : Precision
    tile : int
        How many inputs a block computes.
    groups : int
        How many groups each layer has, those without rows among them.
    zero_row : int
        The row of shared memory that padding names; its features are 0.
    features : numpy dtype
        The type of features in shared memory.
    constant : bool
        Whether all weights of each layer are equal, so that headers alone have them.
    """

    precision: Precision
    tile: int
    groups: int
    zero_row: int
    features: np.dtype[Any]
    constant: bool

    @staticmethod
    def of(kernel: Kernel, precision: Precision, zero_row: int) -> Layout:
        """Return the layout that a configuration of the kernel reads."""
        macros = dict(kernel.defines)
        groups = int(macros["GROUPS"]) * (kernel.threads // 32)
        features = precision.sums if "WIDE" in macros else precision.storage
        return Layout(
            precision, int(macros["TILE"]), groups, zero_row, features, "CONSTANT" in macros
        )

    @property
    def apart(self) -> int:
        """How many neighbouring rows of features lie in different banks."""
        return max(1, BANK_BYTES // self.row_bytes)

    @property
    def clusters(self) -> int:
        """How many clusters a group has."""
        return 64 // self.tile

    @property
    def parts(self) -> int:
        """How many halves of clusters a group has."""
        return self.clusters * HALVES

    @property
    def row_bytes(self) -> int:
        """The bytes of a neuron's features in shared memory."""
        return self.tile * self.features.itemsize

    @property
    def weight_bytes(self) -> int:
        """The bytes in memory of the weight of an entry."""
        return 0 if self.constant else self.precision.storage.itemsize
