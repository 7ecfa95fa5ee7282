"""How panels and tasks of a convolution are cut: by a model, and by a trial of its best few.

A user's call never measures, so that its time is predictable.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TypeVar

from portable_spdnn.arrays import Array
from portable_spdnn.operations.convolutions.geometry import ConvGeometry
from portable_spdnn.operations.handles import Prepared
from portable_spdnn_cpu.conv.kernel import WIDTHS
from portable_spdnn_cpu.conv.packing import ImageLayout
from portable_spdnn_cpu.jit.target import VECTOR_BYTES
from portable_spdnn_cpu.machine.cpu_info import cache_bytes
from portable_spdnn_cpu.machine.timing import least_seconds

L1_SHARES = (0.5, 0.65)  # of the first-level cache for a panel
L2_SHARE = 0.5  # of the second-level cache for a band's phases, or sums
# Constants of the model in `ConvSize.cycles`, in cycles, as measured on a server core of 2023 with
# AVX-512, by loops that masked all gathers and finished sums in memory. A factor of two more or
# less hardly changes which cut is predicted to be the fastest.
MULTIPLY_ADD = 0.9  # of a vector
ENTRY = 0.6
SUMS = 14  # for each output and block, besides
SUM = 1.5  # for each vector of them
GATHER = 1.3  # of a vector
FINISH = 12  # for each output and panel
COPY = 3  # for each vector of phases
WAKING = 10_000  # until another thread has begun, if it spins
TRIED = 4

Choice = TypeVar("Choice", bound=Prepared)


@dataclass(frozen=True)
class Cut:
    """One way to cut a convolution.

    Attributes
    ----------
    vectors : int
        Of a whole panel, at most `max(kernel.WIDTHS)`.
    block : int
        What kernels see for one panel, at most.
    bands, parts, threads : int
    """

    vectors: int
    block: int
    bands: int
    parts: int
    threads: int

    def __str__(self) -> str:
        cut = f"{self.bands} band{'s' if self.bands > 1 else ''}"
        if self.parts > 1:
            cut += f", outputs in {self.parts} parts"
        plural = "s" if self.threads > 1 else ""
        return (
            f"panels of {self.vectors} vectors of pixels by at most {self.block} entries of "
            f"kernels, {cut}, on {self.threads} thread{plural}"
        )


@dataclass(frozen=True)
class ConvSize:
    """What a choice depends on.

    Attributes
    ----------
    geometry : ConvGeometry
    layout : ImageLayout
    images : int
    nonzeros : int
        Weights that are not 0.
    itemsize : int
    """

    geometry: ConvGeometry
    layout: ImageLayout
    images: int
    nonzeros: int
    itemsize: int

    @property
    def positions(self) -> int:
        """Positions of an image: of a result's pixels, and between its rows."""
        rows, columns = self.geometry.output_size
        return (rows - 1) * self.layout.pitch + columns

    @property
    def vectors(self) -> int:
        """Vectors of an image's positions."""
        return -(-self.positions * self.itemsize // VECTOR_BYTES)

    def panels(self, cut: Cut) -> int:
        """Return the panels of an image."""
        return -(-self.vectors // cut.vectors)

    def band_rows(self, cut: Cut) -> int:
        """Return the rows of phases that a band sees at most."""
        size = cut.vectors * VECTOR_BYTES // self.itemsize
        positions = -(-self.panels(cut) // cut.bands) * size
        rows = (positions - 2) // self.layout.pitch + 2
        return min(rows, self.geometry.output_size[0]) + self.layout.last - self.layout.first

    def phase_stride(self, cut: Cut) -> int:
        """Return the items from the start of one copied phase of a band to the start of the next.

        One vector is spare: whole vectors are stored, and the next phase may be written at the same
        time.
        """
        return self.band_rows(cut) * self.layout.pitch + VECTOR_BYTES // self.itemsize

    def copied_items(self, cut: Cut) -> int:
        """Return how many items the phases of a band take."""
        if not self.layout.copied:
            return 0
        phases = self.geometry.group_channels * len(self.layout.phases)
        return phases * self.phase_stride(cut)

    def cycles(self, cut: Cut) -> float:
        """Return the cycles that a cut is predicted to take, with its threads."""
        geometry, lanes = self.geometry, VECTOR_BYTES // self.itemsize
        seen = geometry.matrix_shape[2]
        outputs = -(-geometry.group_outputs // cut.parts)
        blocks = max(1, -(-seen // cut.block))
        entries = self.nonzeros / geometry.groups / cut.parts
        panel = entries * ENTRY + outputs * (blocks * SUMS + FINISH)
        vector = seen * GATHER + entries * MULTIPLY_ADD + outputs * (blocks + 1) * SUM
        copied = COPY * self.copied_items(cut) / lanes
        work = self.panels(cut) * panel + self.vectors * vector
        task = work / cut.bands + copied  # as their mean
        tasks = self.images * geometry.groups * cut.bands * cut.parts
        return -(-tasks // cut.threads) * task + (WAKING if cut.threads > 1 else 0)


def cuts(size: ConvSize, threads: int) -> list[Cut]:
    """Return the cuts that make sense, the best by the model first."""
    found = set()
    second_level = L2_SHARE * cache_bytes(2)
    tasks = size.images * size.geometry.groups
    most = min(size.vectors, max(WIDTHS))
    for vectors in {min(width, most) for width in WIDTHS}:
        sums = size.geometry.group_outputs * vectors * VECTOR_BYTES
        fewest = max(1, int(sums / second_level))  # parts
        for share in L1_SHARES:
            block = max(16, int(share * cache_bytes(1)) // (vectors * VECTOR_BYTES))
            for used in {1, threads}:
                whole = Cut(vectors, block, 1, fewest, used)
                panels = size.panels(whole)
                least = int(size.copied_items(whole) * size.itemsize / second_level) + 1
                # More bands have more to share out, and copy more.
                choices = {panels}
                if size.layout.copied:
                    wanted = (least, used, 2 * used, 4 * used) if used > 1 else (least,)
                    choices = {min(panels, max(least, number)) for number in wanted}
                for bands in choices:
                    found.add(replace(whole, bands=bands))
                    if tasks * bands < 4 * used:
                        found.add(replace(whole, bands=bands, parts=fewest * used))
    return sorted(found, key=lambda cut: (size.cycles(cut), str(cut)))


def fastest(choices: list[Choice], x: Array) -> Choice:
    """Return the fastest of some convolutions of x."""
    out = choices[0](x, None, None)
    measured = least_seconds([functools.partial(choice, x, out, None) for choice in choices])
    return choices[measured.index(min(measured))]
