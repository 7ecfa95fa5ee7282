"""What a run gives back: categories, scores on demand, times and counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from portable_spdnn.arrays import Array
from portable_spdnn.errors import InputError
from portable_spdnn.plans.batch import Batch
from portable_spdnn.plans.device_report import DeviceReport, merged


@dataclass(frozen=True)
class LayerRecord:
    """What one layer did, over all inputs.

    Attributes
    ----------
    layer : int
        Counted from 1.
    alive_inputs : int or None
        Inputs with a nonzero feature after the layer; None where merged inputs hide it.
    seconds : float or None
        None where the plan does not run layer by layer.
    computed_inputs : int or None
        Inputs that the layer computed, inactive ones that had not left yet included; None where
        not counted.
    """

    layer: int
    alive_inputs: int | None
    seconds: float | None = None
    computed_inputs: int | None = None


@dataclass(frozen=True)
class ReplicaRecord:
    """What one replica of the network did: that of a rank, or of a device where there are several.

    Attributes
    ----------
    rank : int
        0 where there is one process.
    host, device : str
    inputs : int
        That it ran.
    load_seconds : float or None
        Of its rank; None where there is one process, which loads for all.
    plan_seconds : float
    busy_seconds : float
        In batches; the rest of the inference it waited for work or for the others.
    executed_edges : int
    """

    rank: int
    host: str
    device: str
    inputs: int
    load_seconds: float | None
    plan_seconds: float
    busy_seconds: float
    executed_edges: int


def replica_records(
    replicas: Sequence[tuple[str, float]],
    batches: Iterable[Batch],
    host: str,
    rank: int = 0,
    load_seconds: float | None = None,
) -> tuple[ReplicaRecord, ...]:
    """Return what each replica of one process did.

    Parameters
    ----------
    replicas : sequence of (device, plan_seconds)
        See `NetworkPlan.replicas`.
    batches : iterable of Batch
        Of the process.
    host : str
    rank : int
    load_seconds : float, optional
    """
    shares: list[list[Batch]] = [[] for _ in replicas]
    for batch in batches:
        shares[batch.replica].append(batch)
    return tuple(
        ReplicaRecord(
            rank=rank,
            host=host,
            device=device,
            inputs=sum(batch.inputs for batch in share),
            load_seconds=load_seconds,
            plan_seconds=plan_seconds,
            busy_seconds=sum(batch.seconds for batch in share),
            executed_edges=sum(batch.output.executed_edges for batch in share),
        )
        for (device, plan_seconds), share in zip(replicas, shares, strict=True)
    )


@dataclass(frozen=True)
class Result:
    """The outcome of running a network on features.

    Attributes
    ----------
    backend, device, execution_space : str
    inputs, neurons, neurons_out, layers, edges : int
        Sizes of the work; `edges` is the number of weights of the whole network.
    categories : ndarray of int64
        Inputs with any positive score after the last layer, counted from 0, rising. (Graph
        Challenge files count from 1.)
    plan_seconds : float
        What choosing formats, packing weights and compiling took, once for the plan.
    inference_seconds : float
        From features on the host to categories on the host.
    executed_edges : int
        Multiply-adds really done.
    exact_passes : tuple of str
        Exact rewrites that were on.
    resumed_inputs : int
        Inputs that an earlier run had finished, read from a checkpoint; their time is counted.
    replicas : tuple of ReplicaRecord
        Of the ranks or devices that shared the inputs; empty for one process on one device.

    Examples
    --------
    >>> import numpy as np, portable_spdnn as ps
    >>> network = ps.Network([ps.Layer(np.eye(3), -0.5)] * 2)
    >>> result = ps.infer(network, np.diag([2.0, 0.6, 4.0]), backend="scipy")
    >>> result.categories.tolist(), [record.alive_inputs for record in result.records]
    ([0, 2], [3, 2])
    """

    backend: str
    device: str
    execution_space: str
    inputs: int
    neurons: int
    neurons_out: int
    layers: int
    edges: int
    categories: Array
    plan_seconds: float
    inference_seconds: float
    executed_edges: int
    exact_passes: tuple[str, ...] = ()
    resumed_inputs: int = 0
    replicas: tuple[ReplicaRecord, ...] = ()
    _batches: tuple[Batch, ...] = field(repr=False, default=())

    @property
    def edge_rate(self) -> float:
        """Challenge edge rate, edges/s: inputs x edges / inference seconds."""
        return self.inputs * self.edges / self.inference_seconds

    @property
    def executed_edge_rate(self) -> float:
        """Executed edge rate, edges/s: multiply-adds really done / inference seconds."""
        return self.executed_edges / self.inference_seconds

    @cached_property
    def records(self) -> tuple[LayerRecord, ...]:
        """What each layer did, over all inputs: a record for each, made when it is asked for."""
        return layer_records(self._batches, self.layers)

    @property
    def device_report(self) -> DeviceReport | None:
        """Where the time of the device went; None where nobody kept it."""
        return merged(batch.output.device for batch in self._batches)

    @property
    def imbalance(self) -> float:
        """Busy time of the busiest replica over the mean of all; 1 for one alone."""
        busy = [record.busy_seconds for record in self.replicas]
        return max(busy) * len(busy) / sum(busy) if sum(busy) else 1.0

    @property
    def parallel_efficiency(self) -> float:
        """Mean part of the inference time that replicas were busy; 1 for one alone."""
        busy = [record.busy_seconds for record in self.replicas]
        return sum(busy) / len(busy) / self.inference_seconds if busy else 1.0

    @property
    def scores(self) -> Array:
        """Features after the last layer, a new array of shape (inputs, neurons_out).

        Built on every call: inactive inputs cost nothing until then.
        """
        return self.score_rows(0, self.inputs)

    def score_rows(self, first: int, end: int) -> Array:
        """Return `scores` of inputs `first` .. `end` - 1, or the last: a new array, a row for each.

        Raises
        ------
        InputError
            If they were not kept: memory was limited, and there was no checkpoint.

        Examples
        --------
        >>> import numpy as np, portable_spdnn as ps
        >>> result = ps.infer(ps.Network([ps.Layer(np.eye(2))]), np.diag([1.0, 2.0]), "scipy")
        >>> result.score_rows(1, 2).tolist()
        [[0.0, 2.0]]
        """
        end = min(end, self.inputs)
        if any(batch.output.rows is None for batch in self._batches):
            raise InputError("scores were not kept under a memory limit; run with a checkpoint")
        types = [batch.output.rows.dtype for batch in self._batches]
        scores = np.zeros((end - first, self.neurons_out), np.result_type(np.float32, *types))
        for batch in self._batches:
            output, before = batch.output.fetched(), batch.first - first
            if output.active.size == batch.inputs:  # each in its own row
                begin, stop = (min(max(0, n - batch.first), batch.inputs) for n in (first, end))
                where: slice | Array = slice(before + begin, before + stop)
            else:
                begin, stop = np.searchsorted(output.active, (-before, end - batch.first))
                where = before + output.active[begin:stop]
            part = output.rows[begin:stop]
            part = part if isinstance(part, np.ndarray) else part.toarray()
            scores[where] = part if output.columns is None else part[:, output.columns]
        return scores


def layer_records(batches: Sequence[Batch], layers: int) -> tuple[LayerRecord, ...]:
    """Return a record of each layer, over all batches; None where one of them does not tell."""
    outputs = [batch.output for batch in batches]
    active = np.zeros(layers, np.int64)
    for output in outputs:
        unknown = (active < 0) | (output.active_per_layer < 0)
        active = np.where(unknown, -1, active + output.active_per_layer)
    seconds = _summed([output.seconds_per_layer for output in outputs], layers)
    computed = _summed([output.computed_per_layer for output in outputs], layers)
    return tuple(
        LayerRecord(
            number + 1,
            int(active[number]) if active[number] >= 0 else None,
            None if seconds is None else float(seconds[number]),
            None if computed is None else int(computed[number]),
        )
        for number in range(layers)
    )


def _summed(parts: Sequence[Array | None], layers: int) -> Array | None:
    """Return the sum over batches for each layer; None where one of them does not tell."""
    known = [part for part in parts if part is not None]
    return sum(known, np.zeros(layers)) if len(known) == len(parts) else None
