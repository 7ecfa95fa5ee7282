"""What `scaling` asks of a request; `sources.resolve` answers everybody else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from portable_spdnn.features import Features
from portable_spdnn.network import Network
from portable_spdnn.workloads.sources import DEFAULT_LAYERS, Request, Source, resolve

__all__ = [
    "DEFAULT_LAYERS",
    "Request",
    "count_inputs_of",
    "load_inputs_of",
    "load_network_of",
    "load_rows_of",
]


def load_network_of(
    request: Request, progress: Callable[[int, int], None] | None = None
) -> tuple[Network, str]:
    """Load the network, and tell where it is from."""
    source = resolve(request)
    return source.load_network(progress), source.network.name


def load_inputs_of(request: Request, neurons: int) -> tuple[Features, int, str]:
    """Load the inputs; tell how many there are, and where they are from."""
    source = _inputs(request, neurons)
    return *source.load_inputs(), source.inputs.name


def count_inputs_of(request: Request, neurons: int) -> tuple[int, int, str] | None:
    """Return how many inputs are asked for, how many there are, and where they are from."""
    source = _inputs(request, neurons)
    counted = source.count_inputs()
    return None if counted is None else (*counted, source.inputs.name)


def load_rows_of(request: Request, neurons: int, rows: slice, verify: bool) -> Features:
    """Load some of the inputs that `count_inputs_of` counts."""
    return _inputs(request, neurons).inputs.rows(rows, verify)


def _inputs(request: Request, neurons: int) -> Source:
    path = request.data if request.inputs is None else request.inputs
    return resolve(replace(request, data=None, neurons=neurons, inputs=path))
