"""RadiX-Nets in general: mixed-radix systems and dense widths.

Sources: Kepner and Robinett, "RadiX-Net: Structured Sparse Matrices for Deep Neural Networks",
IEEE IPDPS Workshops 2019 (the construction); Kepner, Alford, Gadepally, Jones, Milechin,
Robinett and Samsi, "Sparse Deep Neural Network Graph Challenge", IEEE HPEC 2019 (its use, and
the official layers, whose permutations follow the form stated here).
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from portable_spdnn.errors import InputError
from portable_spdnn.layer import Layer, index_dtype
from portable_spdnn.network import Network

Array = npt.NDArray[Any]


def general_radixnet(
    systems: Iterable[Iterable[int]],
    widths: Iterable[int],
    *,
    weight: float = 1.0,
    bias: float = 0.0,
    y_max: float | None = None,
) -> Network:
    """Build the RadiX-Net of mixed-radix systems and Kronecker widths as a network.

    Parameters
    ----------
    systems, widths, weight, bias
        As for `general_radixnet_layers`.
    y_max : float, optional
        Upper bound of the features after a layer. None: no bound.

    Returns
    -------
    Network

    Raises
    ------
    InputError
        As for `general_radixnet_layers`.
    """
    return Network(general_radixnet_layers(systems, widths, weight=weight, bias=bias), y_max)


def general_radixnet_layers(
    systems: Iterable[Iterable[int]],
    widths: Iterable[int],
    *,
    weight: float = 1.0,
    bias: float = 0.0,
) -> Iterator[Layer]:
    """Generate the layers of the RadiX-Net of mixed-radix systems and Kronecker widths.

    A system (N_1, ..., N_L) gives L layers over N' nodes. The i-th sends node j to the nodes
    ``(j + n * N_1 * ... * N_(i-1)) mod N'`` for n = 0 .. N_i - 1. The layers of all systems
    follow each other. With widths D_0, D_1, ..., layer i of the chain then becomes the
    Kronecker product of the D_(i-1) x D_i matrix of ones with it, so that it has
    D_(i-1) N' inputs, D_i N' outputs and D_(i-1) D_i N' N_i edges.

    The result is symmetric: each output is reached from each input by the same number of
    paths, the product of all radices and of the inner widths, over N'.

    Parameters
    ----------
    systems : iterable of iterables of int
        Radices, each at least 2. All systems but the last have the product N'; the product of
        the last divides N'. Where there is one system, N' is its product.
    widths : iterable of int
        D_0, D_1, ...: each at least 1, one more than there are radices in all systems.
    weight : float
        Of every edge.
    bias : float
        Of every neuron.

    Returns
    -------
    iterator of Layer
        No more than the layer at hand is kept.

    Raises
    ------
    InputError
        At once, if the systems and widths do not meet these conditions; with the first layer,
        if `weight` or `bias` is not finite.
    """
    radices = [
        [
            whole_number(f"radix {place} of system {number}", radix, least=2)
            for place, radix in enumerate(system, start=1)
        ]
        for number, system in enumerate(systems, start=1)
    ]
    nodes = _nodes(radices)
    extents = [
        whole_number(f"Kronecker width {number}", width, least=1)
        for number, width in enumerate(widths)
    ]
    wanted = sum(map(len, radices)) + 1
    if len(extents) != wanted:
        raise InputError(
            f"{len(extents)} Kronecker widths do not fit {wanted - 1} radices; "
            f"{wanted} are needed, one more than radices"
        )
    return _general_layers(radices, nodes, extents, weight, bias)


def _general_layers(
    systems: list[list[int]], nodes: int, widths: list[int], weight: float, bias: float
) -> Iterator[Layer]:
    sides = itertools.pairwise(widths)
    for system in systems:
        place_value = 1
        for radix in system:
            copies_in, copies_out = next(sides)
            targets = np.arange(nodes)[:, None] + place_value * np.arange(radix)
            rows = np.tile(outgoing(targets, nodes, copies_out), (copies_in, 1))
            yield equal_rows_layer(rows, copies_out * nodes, weight, bias)
            place_value *= radix


def _nodes(systems: Sequence[Sequence[int]]) -> int:
    """Return N', after checking that the products of the systems agree."""
    if not systems:
        raise InputError("a RadiX-Net needs at least one mixed-radix system")
    products = [math.prod(system) for system in systems]
    nodes = products[0]
    for number, (system, product) in enumerate(zip(systems, products, strict=True), start=1):
        if not system:
            raise InputError(f"system {number} has no radix; each needs at least one")
        last = number == len(systems)
        if nodes % product if last else nodes != product:
            relation = "divide" if last else "be"
            raise InputError(
                f"system {number} has the product {product}; "
                f"it must {relation} {nodes}, the product of system 1"
            )
    return nodes


def outgoing(targets: Array, nodes: int, copies: int) -> Array:
    """Wrap the targets of each node and repeat them in every copy of the nodes, sorted."""
    targets = np.sort(targets % nodes, axis=1)
    offsets = nodes * np.arange(copies)
    columns = (offsets[:, None] + targets[:, None, :]).reshape(len(targets), -1)
    return columns.astype(index_dtype(copies * nodes))


def equal_rows_layer(columns: Array, neurons_out: int, weight: float, bias: Any) -> Layer:
    """Return a layer of one weight whose rows have as many entries each, at given columns."""
    rows, length = columns.shape
    indptr = np.arange(0, columns.size + 1, length)
    return Layer.from_csr(indptr, columns.reshape(-1), weight, (rows, neurons_out), bias)


def whole_number(what: str, value: Any, *, least: int) -> int:
    """Return a whole number of at least `least`, or raise InputError that says `what` is not."""
    try:
        number = operator.index(value)
    except TypeError:
        raise InputError(f"{what} is {value!r}; a whole number is expected") from None
    if number < least:
        raise InputError(f"{what} is {number}; it must be at least {least}")
    return number
