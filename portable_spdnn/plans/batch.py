"""Batches: what goes through a network together, and what comes out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from portable_spdnn.arrays import Array
from portable_spdnn.errors import NumericalError
from portable_spdnn.plans.device_report import DeviceReport

OVERFLOW = (
    "features became NaN on the way: the sums overflowed; give the network a y_max, "
    "scale its weights, or use dtype float64"
)


class LazyRows:
    """Rows of features that are not in host memory until somebody asks for them.

    They stay on a device until then, or are not yet expanded from those of which they are copies.

    Parameters
    ----------
    shape : (int, int)
    dtype : numpy dtype
    fetch : callable
        Returns them in host memory; called once.
    """

    def __init__(
        self, shape: tuple[int, int], dtype: npt.DTypeLike, fetch: Callable[[], Array]
    ) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
        self._fetch: Callable[[], Array] | None = fetch
        self._rows: Array | None = None

    @property
    def on_device(self) -> bool:
        """Whether nobody has asked for them yet."""
        return self._fetch is not None

    def fetched(self) -> Array:
        """Return the rows in host memory; they leave the device."""
        if self._fetch is not None:
            self._rows, self._fetch = self._fetch(), None
        assert self._rows is not None
        return self._rows


@dataclass(frozen=True)
class BatchOutput:
    """What `NetworkPlan.run_batch` returns: the state of one batch after the last layer.

    Attributes
    ----------
    active : ndarray of int64, shape (active,)
        Inputs of the batch, counted from its start and rising, whose features may be nonzero
        (or NaN). The scores of all others are zero.
    rows : ndarray or csr_array in host memory, or LazyRows; shape (active, neurons_out)
        Their features, row i those of input `active[i]`. None where they were not kept. If they are
        `ComparedRows`, exact passes compare them where they lie.
    active_per_layer : ndarray of int64, shape (layers,)
        How many inputs have a nonzero feature after each layer; -1 where not known.
    executed_edges : int
        Multiply-adds done for real inputs; padding does not count.
    seconds_per_layer : ndarray of float64, shape (layers,), or None
    columns : ndarray of int64, shape (neurons_out,), or None
        Column of `rows` that holds each output neuron, where exact passes made several share one.
    inputs : int or None
        How many inputs of the batch, from its start, were run; None, as of backends, for all.
    positive : ndarray of bool, shape (active,), or None
        Which of the active inputs have a positive score, after a check for NaN; None where the
        engine is to find out from the rows.
    device : DeviceReport or None
        Where a device's time went.
    computed_per_layer : ndarray of int64, shape (layers,), or None
        Inputs that each layer computed.
    """

    active: Array
    rows: Any
    active_per_layer: Array
    executed_edges: int
    seconds_per_layer: Array | None = None
    columns: Array | None = None
    inputs: int | None = None
    positive: Array | None = None
    device: DeviceReport | None = None
    computed_per_layer: Array | None = None

    def fetched(self) -> BatchOutput:
        """Return the same with rows in host memory."""
        if not isinstance(self.rows, LazyRows):
            return self
        return replace(self, rows=self.rows.fetched())

    def all_rows(self, inputs: int) -> Any:
        """Return rows of all `inputs` in host memory: zeros where they are inactive."""
        rows = self.fetched().rows
        if self.active.size == inputs:
            return rows
        everyone = np.zeros((inputs, rows.shape[1]), rows.dtype)
        everyone[self.active] = rows if isinstance(rows, np.ndarray) else rows.toarray()
        return everyone

    def positive_inputs(self) -> Array:
        """Return which of the active inputs have a positive score; NaN raises NumericalError."""
        return positive_rows(self.fetched().rows) if self.positive is None else self.positive


@dataclass(frozen=True)
class Batch:
    """A finished batch.

    Attributes
    ----------
    first, inputs : int
        Its inputs: `first` .. `first` + `inputs` - 1 of all.
    categories : ndarray of int64
        Those of them with a positive score, numbered among all inputs, rising.
    seconds : float
    output : BatchOutput
    resumed : bool
        Whether an earlier run had finished it.
    replica : int
        Which replica of the plan ran it; see `NetworkPlan.replicas`.
    """

    first: int
    inputs: int
    categories: Array
    seconds: float
    output: BatchOutput
    resumed: bool = False
    replica: int = 0


def resumed_seconds(batches: Iterable[Batch]) -> float:
    """Return what earlier runs took for their batches: replicas ran theirs at the same time."""
    seconds: dict[int, float] = {}
    for batch in batches:
        if batch.resumed:
            seconds[batch.replica] = seconds.get(batch.replica, 0.0) + batch.seconds
    return max(seconds.values(), default=0.0)


def positive_rows(rows: Any) -> Array:
    """Return for each row whether it holds a positive score."""
    if isinstance(rows, np.ndarray):
        largest = rows.max(axis=1, initial=0)  # NaN, where there is one
        overflow = np.isnan(largest).any()
        positive = largest > 0
    else:
        overflow = np.isnan(rows.data).any()
        positives_before = np.concatenate(([0], np.cumsum(rows.data > 0)))
        positive = np.diff(positives_before[rows.indptr]) > 0
    if overflow:
        raise NumericalError(OVERFLOW)
    return np.asarray(positive)
