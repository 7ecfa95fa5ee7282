"""Plans: a network prepared once for a backend, then run on any number of inputs."""

from __future__ import annotations

import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np

from portable_spdnn.arrays import Array, Progress
from portable_spdnn.backend import Backend
from portable_spdnn.errors import InputError
from portable_spdnn.features import Features, FeaturesLike, as_features, check_magnitudes
from portable_spdnn.kernel_model import KernelModel
from portable_spdnn.network import Network
from portable_spdnn.passes.compared_rows import ComparedRows, HostRows
from portable_spdnn.plans.batch import Batch, BatchOutput, resumed_seconds
from portable_spdnn.plans.checkpoint import Checkpoint, features_fingerprint
from portable_spdnn.plans.options import BATCH_MEMORY, PlanOptions
from portable_spdnn.plans.result import Result, replica_records
from portable_spdnn.version import __version__

# Makes a plan of a network on a backend; the planner hands it to plans that make others.
Build = Callable[[Backend, Network, PlanOptions], "NetworkPlan"]


class NetworkPlan(ABC):
    """A network prepared for one backend: packed, uploaded, compiled.

    A backend that improves on the layer loop derives from this class and implements
    `run_batch` and `describe`. Splitting into batches, the clock, the categories and the
    records are the same for all and stand here. `plan_seconds` is what planning took.

    Parameters
    ----------
    backend : Backend
    network : Network
    options : PlanOptions

    Examples
    --------
    >>> import numpy as np, portable_spdnn as ps
    >>> plan = ps.plan(ps.Network([ps.Layer(np.eye(2))]), backend="scipy", batch_size=64)
    >>> plan.run(np.eye(2)).categories.tolist(), plan.batch_size
    ([0, 1], 64)
    """

    def __init__(self, backend: Backend, network: Network, options: PlanOptions) -> None:
        options.check(network)
        self.backend = backend
        self.network = network
        self.options = options
        self.plan_seconds = 0.0  # set by the planner, which holds the clock
        self._widest, self._edges = network.widest, network.edges  # which look at all layers
        # Zero rows stay zero from this layer on.
        self.first_prunable_layer = max(network.layers_filling_zeros, default=-1) + 1

    def __reduce__(self) -> NoReturn:
        raise TypeError("a plan holds what only its process has; pickle the network, plan again")

    def may_drop_after(self, layer: int) -> bool:
        """Whether inputs that are inactive after `layer` (from 0; -1: before all) may leave."""
        return not self.options.keep_dead_inputs and layer + 1 >= self.first_prunable_layer

    @property
    def batch_size(self) -> int:
        """Inputs that go through the network together."""
        if self.options.batch_size is not None:
            return self.options.batch_size
        row = 2 * self._widest * np.dtype(self.options.dtype).itemsize
        return max(1, BATCH_MEMORY // max(row, 1))

    def replicas(self) -> list[tuple[str, float]]:
        """Return device and planning seconds of each that takes batches: by default one."""
        return [(self.backend.device, self.plan_seconds)]

    @abstractmethod
    def describe(self) -> str:
        """Return what the plan chose and why, a line each."""

    @abstractmethod
    def run_batch(self, features: Features, report: Callable[[int], None]) -> BatchOutput:
        """Run the whole network on one batch; only threads of a user call it twice at once.

        Parameters
        ----------
        features : PackedFeatures, ndarray or csr_array in host memory, shape (inputs, neurons)
            float32 or float64, whatever `options.dtype` is; not to be written to. Finite, except
            between blocks of a network: what an earlier block gave as `rows` may hold NaN.
        report : callable
            May be called, in the caller's thread, with the work done so far on this batch: inputs
            x layers, never falling. An input that was dropped counts for all layers.

        Returns
        -------
        BatchOutput

        Raises
        ------
        NumericalError
            If features became NaN, and `BatchOutput.positive` is given; else the rows tell.
        """

    def compared_rows(self, features: Features) -> ComparedRows:
        """Return features of a batch as exact passes compare them: by default in host memory.

        A plan whose features stay on a device overrides this and `run_rows`.
        """
        return HostRows(features)

    def run_rows(self, rows: ComparedRows, report: Callable[[int], None]) -> BatchOutput:
        """Run what this or `BatchOutput.rows` gave, and let go of it; else as `run_batch`."""
        return self.run_batch(rows.fetched(), report)

    def layer_models(self, inputs: Sequence[int]) -> list[KernelModel] | None:
        """Return what each layer needs for an edge, to be held against the machine's limits.

        Parameters
        ----------
        inputs : sequence of int
            That each layer computes.

        Returns
        -------
        list of KernelModel, or None
            None where the backend has no models of its layers.
        """
        return None

    def for_layers(self, network: Network, options: PlanOptions, build: Build) -> NetworkPlan:
        """Return a plan for layers after these, on the same backend.

        A backend whose plans measure overrides this, to take over what this plan measured. The
        two plans do not run at the same time.

        Parameters
        ----------
        network : Network
        options : PlanOptions
            Those of this plan, but for `keep_dead_inputs` and `edges_after`.
        build : callable
            (backend, network, options) -> a plan, for where nothing can be taken over.
        """
        return build(self.backend, network, options)

    def run(
        self,
        features: FeaturesLike,
        progress: Progress | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> Result:
        """Run the network.

        Parameters
        ----------
        features : PackedFeatures, ndarray or scipy.sparse, shape (inputs, neurons)
            See `portable_spdnn.features.as_features`. Also what the backend's operations take:
            arrays on a device are first copied to host memory, off the clock.
        progress : callable, optional
            Called with (done, total) in units of inputs x layers.
        checkpoint : path-like, optional
            A folder that keeps every finished batch: a run that was interrupted goes on from
            the last of them, with the same answer. See `portable_spdnn.plans.checkpoint`.

        Returns
        -------
        Result

        Raises
        ------
        InputError
            If the features do not fit the network or are not finite, or the checkpoint is that
            of another run, damaged, or cannot be written.
        NumericalError
            If features became NaN on the way.

        >>> import portable_spdnn as ps
        >>> plan = ps.plan(ps.Network([ps.Layer([[1.0, -1.0]], bias=-0.5)]), backend="scipy")
        >>> plan.run([[2.0], [0.25]]).scores.tolist()
        [[1.5, 0.0], [0.0, 0.0]]
        """
        valid = as_features(self.backend.download(features), self.network.neurons)
        kept = None
        if checkpoint is not None:
            fingerprint = features_fingerprint(valid)
            kept = Checkpoint(checkpoint, self.identity(valid.shape[0], fingerprint))
        start = time.perf_counter()
        batches = list(self.finished_batches(valid, progress=progress, checkpoint=kept))
        seconds = time.perf_counter() - start + resumed_seconds(batches)
        result = self.result(valid.shape[0], batches, seconds)
        if not self.options.devices:
            return result
        records = replica_records(self.replicas(), batches, socket.gethostname())
        return replace(result, replicas=records)

    def scores(self, features: FeaturesLike) -> Array:
        """Return the features after the last layer; may be faster than `run(features).scores`.

        Parameters
        ----------
        features : PackedFeatures, ndarray or scipy.sparse, shape (inputs, neurons)
            As for `run`.

        Returns
        -------
        ndarray of the plan's dtype, shape (inputs, neurons_out)
            A new array; equal to those of `run` within rounding, if not to the bit.

        Raises
        ------
        InputError
            If the features do not fit the network or are not finite, or memory is limited: then
            scores are not kept.
        NumericalError
            If features became NaN on the way.

        >>> import portable_spdnn as ps
        >>> plan = ps.plan(ps.Network([ps.Layer([[1.0, -1.0]], bias=-0.5)]), backend="scipy")
        >>> plan.scores([[2.0], [0.25]]).tolist()
        [[1.5, 0.0], [0.0, 0.0]]
        """
        if (found := self.scores_as_given(features)) is not None:
            return found
        if self.options.memory is not None:
            raise InputError(
                "scores are not kept under a memory limit; use `run` with a checkpoint, or plan "
                "without `memory`"
            )
        return self.run_scores(as_features(self.backend.download(features), self.network.neurons))

    def scores_as_given(self, features: object) -> Array | None:
        """Return what `scores` does, of what a user gave; None, the default, for the usual way.

        It is asked before anything is checked, for networks that take as long as checks in Python.

        Parameters
        ----------
        features : object
            Anything; nobody has looked at it.

        Returns
        -------
        ndarray, or None
            A new array, as `scores` returns it. None wherever features are not such as a backend
            takes as they are, or are not valid, or a score is NaN: the usual way then tells why.
        """
        return None

    def run_scores(self, features: Features) -> Array:
        """Return what `scores` does, of features that it has checked.

        A backend that has a shorter way than by batches and a result overrides this.

        Parameters
        ----------
        features : PackedFeatures, ndarray or csr_array
            As `as_features` gives them.

        Returns
        -------
        ndarray of the plan's dtype, shape (inputs, neurons_out)
        """
        return self.scores_of(features.shape[0], list(self.finished_batches(features)))

    def scores_of(self, inputs: int, batches: Sequence[Batch]) -> Array:
        """Return the scores of so many inputs, which some batches have, as a new array."""
        scores = self.result(inputs, batches, 0.0).scores
        return scores.astype(self.options.dtype, copy=False)

    def identity(self, inputs: int, fingerprint: int) -> dict[str, Any]:
        """Return what tells a run of this plan from others: all that its answer depends on.

        `fingerprint` is the `features_fingerprint` of all `inputs`.
        """
        options = self.options
        return {
            "version": __version__,
            "backend": self.backend.name,
            "network": self.network.fingerprint(),
            "inputs": inputs,
            "features": f"{fingerprint:016x}",
            "dtype": str(options.dtype),
            "path": options.path,
            "storage": options.storage,
            "keep_dead_inputs": options.keep_dead_inputs,
            "exact_passes": list(options.exact_passes),
        }

    def finished_batches(
        self,
        features: Features,
        first: int = 0,
        progress: Progress | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> Iterator[Batch]:
        """Run valid features batch by batch; part of what `run` does.

        Parameters
        ----------
        features : PackedFeatures, ndarray or csr_array
            As `as_features` gives them.
        first : int
            Number of the first of these inputs among all.
        progress : callable, optional
            Called with (done, total) in units of inputs x layers.
        checkpoint : Checkpoint, optional
            Batches that it holds are not run again.

        Yields
        ------
        Batch
            In the order of the inputs; without the features after the last layer where memory is
            limited and no checkpoint holds them.
        """
        check_magnitudes(features, self.options.dtype)
        inputs, layers = features.shape[0], len(self.network)
        done = 0
        while done < inputs:
            batch = None
            if checkpoint is not None:
                batch = checkpoint.load(first + done, first + inputs)
            if batch is None:

                def report(work: int, before: int = done) -> None:
                    if progress is not None:
                        progress(before * layers + work, inputs * layers)

                batch = self._run_one(features[done : done + self.batch_size], first + done, report)
                if checkpoint is not None:
                    batch = checkpoint.save(batch)
                elif self.options.memory is not None:
                    batch = replace(batch, output=replace(batch.output, rows=None))
            done += batch.inputs
            if progress is not None:
                progress(done * layers, inputs * layers)
            yield batch

    def _run_one(self, features: Features, first: int, report: Callable[[int], None]) -> Batch:
        start = time.perf_counter()
        output = self.run_batch(features, report)
        categories = first + output.active[output.positive_inputs()]
        inputs = features.shape[0] if output.inputs is None else output.inputs
        return Batch(first, inputs, categories, time.perf_counter() - start, output)

    def result(self, inputs: int, batches: Sequence[Batch], seconds: float) -> Result:
        """Put the batches of all inputs together, which are in the order of the inputs.

        `seconds` are those of the whole, what earlier runs spent included.
        """
        network = self.network
        return Result(
            backend=self.backend.name,
            device="; ".join(device for device, _ in self.replicas()),
            execution_space=self.backend.execution_space,
            inputs=inputs,
            neurons=network.neurons,
            neurons_out=network.neurons_out,
            layers=len(network),
            edges=self._edges,
            categories=np.concatenate([np.empty(0, np.int64), *(b.categories for b in batches)]),
            plan_seconds=self.plan_seconds,
            inference_seconds=seconds,
            executed_edges=sum(batch.output.executed_edges for batch in batches),
            exact_passes=tuple(self.options.exact_passes),
            resumed_inputs=sum(batch.inputs for batch in batches if batch.resumed),
            _batches=tuple(batches),
        )
