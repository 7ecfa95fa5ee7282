"""Figures that others have published for the official networks.

They were measured by their authors on their machines, with 60,000 official inputs, and are
printed here as they stand in the source: nothing is converted from one machine to another, and a
network for which a source prints nothing has no figure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from portable_spdnn.graphchallenge.configurations import CONFIGURATIONS


@dataclass(frozen=True)
class Publication:
    """Its citation, and the machine that it measured on."""

    citation: str
    hardware: str


@dataclass(frozen=True)
class PublishedSeries:
    """One column of a publication.

    Attributes
    ----------
    source : Publication
    program : str
    where : str
        The table that the figures stand in.
    threads : int or None
        None on a GPU.
    figures : mapping
        By (neurons, layers): the challenge edge rate in edges/s, and the seconds where printed.
    """

    source: Publication
    program: str
    where: str
    threads: int | None
    figures: Mapping[tuple[int, int], tuple[float, float | None]]


DAVIS = Publication(
    'T. Davis, "Sparse DNN Results with the MATLAB interface to SuiteSparse:GraphBLAS", '
    "2 September 2019, updated 20 February 2020; dnn_summary.tex in GraphBLAS/demo/dnn_results "
    "of the SuiteSparse sources",
    "Intel Xeon E5-2698 v4 at 2.2 GHz, 20 cores, 256 GB, GCC 5.4",
)
HIDAYETOGLU = Publication(
    "M. Hidayetoglu, C. Pearson, V. S. Mailthody, E. Ebrahimi, J. Xiong, R. Nagi and W. Hwu, "
    '"At-Scale Sparse Deep Neural Network Inference with Efficient GPU Implementation", '
    "IEEE HPEC 2020, arXiv:2007.14152",
    "one NVIDIA A100",
)
KK_SPDNN = Publication(
    'J. A. Ellis and S. Rajamanickam, "Scalable Inference for Sparse Deep Neural Networks using '
    'Kokkos Kernels", IEEE HPEC 2019',
    "Intel Skylake nodes",
)


def _davis(
    program: str, version: str, threads: int, giga_rates: tuple[float, ...],
    seconds: tuple[float, ...],
) -> PublishedSeries:  # fmt: skip
    """Give figures to the twelve networks, in the order of the official table."""
    figures = {
        (one.neurons, one.layers): (1e9 * rate, spent)
        for one, rate, spent in zip(CONFIGURATIONS, giga_rates, seconds, strict=True)
    }
    where = f"run times and rates of GraphBLAS {version}, {threads} thread(s)"
    return PublishedSeries(DAVIS, program, where, threads, figures)


SERIES = (
    _davis(
        "MATLAB", "v3.1.0, August 2019", 1,
        (10.0, 14.0, 15.6, 9.7, 12.9, 14.0, 4.9, 5.6, 5.8, 4.0, 4.4, 4.4),
        (24, 68, 242, 98, 293, 1076, 766, 2684, 10381, 3777, 13817, 54701),
    ),
    _davis(
        "LAGraph", "v3.1.0, August 2019", 1,
        (9.7, 13.8, 15.5, 8.7, 11.4, 12.4, 5.1, 5.9, 6.2, 3.3, 3.7, 3.7),
        (24.2, 68.2, 243.3, 108.1, 330.1, 1222.5, 741.4, 2552.1, 9783.1, 4536.3, 16447.9,
         65492.3),
    ),
    _davis(
        "LAGraph", "v3.2.0, February 2020", 1,
        (9.4, 11.0, 11.5, 9.2, 10.6, 10.8, 5.2, 5.7, 5.8, 3.8, 4.0, 4.0),
        (25.1, 85.6, 328.7, 102.0, 356.6, 1395.9, 722.0, 2653.2, 10407.3, 4001.3, 15124.5,
         59774.9),
    ),
    _davis(
        "MATLAB", "v3.1.0, August 2019", 40,
        (85.8, 101.3, 110.1, 94.6, 123.3, 129.1, 64.6, 75.2, 77.2, 59.4, 62.2, 63.1),
        (3, 9, 34, 10, 31, 117, 58, 201, 783, 254, 971, 3829),
    ),
    _davis(
        "LAGraph", "v3.1.0, August 2019", 40,
        (100.4, 209.2, 230.2, 101.1, 122.9, 128.4, 74.0, 86.3, 87.5, 61.5, 65.2, 64.5),
        (2.4, 4.5, 16.4, 9.3, 30.7, 117.6, 51.0, 175.0, 690.1, 245.3, 926.4, 3743.3),
    ),
    _davis(
        "LAGraph", "v3.2.0, February 2020", 40,
        (164.9, 198.5, 205.8, 152.8, 174.1, 179.6, 107.9, 114.8, 119.7, 65.8, 65.7, 67.7),
        (1.4, 4.8, 18.3, 6.2, 21.7, 84.1, 35.0, 131.5, 504.7, 229.4, 918.9, 3570.3),
    ),
    PublishedSeries(
        HIDAYETOGLU, "optimised kernels", "single-GPU throughput", None,
        {(1024, 1920): (20.7e12, None), (4096, 1920): (19.9e12, None),
         (16384, 1920): (15.3e12, None), (65536, 120): (8.2e12, None),
         (65536, 1920): (9.3e12, None)},
    ),
)  # fmt: skip
"""Everything published that belongs to a network, as far as it is known here."""

REMARKS = (
    (HIDAYETOGLU, "SpDNN: up to 180 TeraEdges/s on many NVIDIA V100 GPUs of a whole machine"),
    (
        KK_SPDNN,
        "KK-SpDNN: 1.16 TeraEdges/s on 20 nodes; 120 to 500 times the serial reference on a "
        "single node",
    ),
)
"""Published figures that belong to no single network of the table."""

COLUMNS = {
    "GraphBLAS, 1 thread": [one for one in SERIES if one.threads == 1],
    "GraphBLAS, 40 threads": [one for one in SERIES if one.threads == 40],
    "SpDNN, one A100": [one for one in SERIES if one.threads is None],
}
"""What stands beside the rows of a table: series of one publication and one kind of hardware."""


def fastest(series: Iterable[PublishedSeries], neurons: int, layers: int) -> float | None:
    """Return the largest published edge rate of a network, edges/s; None if there is none."""
    figures = (one.figures.get((neurons, layers)) for one in series)
    return max((figure[0] for figure in figures if figure), default=None)
