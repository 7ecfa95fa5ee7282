"""Plans: a network prepared once for a backend, then run on any number of inputs."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from portable_spdnn.errors import InputError, NumericalError
from portable_spdnn.features import Features, PackedFeatures, as_features
from portable_spdnn.network import Network
from portable_spdnn.passes import parse_passes
from portable_spdnn.result import BatchOutput, LayerRecord, Result

Array = npt.NDArray[Any]
Progress = Callable[[int, int], None]
PATHS = ("auto", "spmm", "spgemm")
BATCH_MEMORY = 1 << 30  # bytes that the features before and after a layer may take by default


@dataclass(frozen=True)
class PlanOptions:
    """What a user may ask of a plan.

    Attributes
    ----------
    dtype : numpy dtype, default float32
        Type of weights, features and sums: float32 or float64.
    path : {"auto", "spmm", "spgemm"}
        Dense or sparse features between layers; "auto" leaves the choice to the plan.
    batch_size : int, optional
        Inputs that go through the network together; bounds memory, never changes an answer.
    keep_dead_inputs : bool, default False
        Keep computing inputs whose features are all zero, as the plain reference does.
    exact_passes : str or iterable of str, default none
        Exact rewrites to apply: see `portable_spdnn.passes`.

    Raises
    ------
    InputError
        If an option has no valid value.
    """

    dtype: npt.DTypeLike = np.float32
    path: str = "auto"
    batch_size: int | None = None
    keep_dead_inputs: bool = False
    exact_passes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        try:
            dtype = np.dtype(self.dtype)
        except TypeError:
            dtype = None
        if dtype not in (np.float32, np.float64):
            raise InputError(f"dtype is {self.dtype!r}; choose float32 or float64")
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "exact_passes", parse_passes(self.exact_passes))
        if self.path not in PATHS:
            raise InputError(f"path is {self.path!r}; choose one of {', '.join(PATHS)}")
        if self.batch_size is not None and self.batch_size < 1:
            raise InputError(f"batch size is {self.batch_size}; it must be at least 1")

    def check(self, network: Network) -> None:
        """Raise InputError where the options do not fit the network."""
        if self.path == "spgemm" and not network.sparse_features_exact:
            number = next(
                number
                for number, layer in enumerate(network, start=1)
                if not layer.keeps_dead_inputs_dead
            )
            raise InputError(
                f"path spgemm: layer {number} has a positive bias, which turns zeros into "
                "nonzeros; sparse features are exact only where no bias is positive; "
                "use path spmm or auto"
            )


class NetworkPlan(ABC):
    """A network prepared for one backend: packed, uploaded, compiled.

    A backend that improves on the layer loop derives from this class and implements
    `run_batch` and `describe`. Splitting into batches, the clock, the categories and the
    records are the same for all and stand here.

    Parameters
    ----------
    backend : Backend
    network : Network
    options : PlanOptions
    """

    def __init__(self, backend: Any, network: Network, options: PlanOptions) -> None:
        options.check(network)
        self.backend = backend
        self.network = network
        self.options = options
        self.plan_seconds = 0.0  # set by Backend.plan, which holds the clock
        biased = [n for n, layer in enumerate(network) if not layer.keeps_dead_inputs_dead]
        # A zero row stays zero only through layers without a positive bias.
        self.first_prunable_layer = biased[-1] + 1 if biased else 0

    def may_drop_after(self, layer: int) -> bool:
        """Whether inputs that are dead after `layer` (from 0; -1: before all) may leave."""
        return not self.options.keep_dead_inputs and layer + 1 >= self.first_prunable_layer

    @property
    def batch_size(self) -> int:
        """Inputs that go through the network together."""
        if self.options.batch_size is not None:
            return self.options.batch_size
        row = 2 * self.network.widest * np.dtype(self.options.dtype).itemsize
        return max(1, BATCH_MEMORY // max(row, 1))

    @abstractmethod
    def describe(self) -> str:
        """Return what the plan chose and why, a line each."""

    @abstractmethod
    def run_batch(self, features: Features, report: Callable[[int], None]) -> BatchOutput:
        """Run the whole network on one batch.

        Parameters
        ----------
        features : PackedFeatures, ndarray or csr_array in host memory, shape (inputs, neurons)
            Valid; of any real type.
        report : callable
            To be called now and then with the work done so far, out of inputs x layers.

        Returns
        -------
        BatchOutput
        """

    def run(self, features: Any, progress: Progress | None = None) -> Result:
        """Run the network.

        Parameters
        ----------
        features : PackedFeatures, ndarray or scipy.sparse, shape (inputs, neurons)
            See `portable_spdnn.features.as_features`.
        progress : callable, optional
            Called with (done, total) in units of inputs x layers.

        Returns
        -------
        Result

        Raises
        ------
        InputError
            If the features do not fit the network or are not finite.
        NumericalError
            If features became NaN on the way.
        """
        network = self.network
        valid = as_features(features, network.neurons)
        inputs, layers = valid.shape[0], len(network)
        total = inputs * layers
        alive_per_layer = np.zeros(layers, np.int64)
        seconds_per_layer: Array | None = np.zeros(layers)
        executed_edges = 0
        categories: list[Array] = []
        batches: list[BatchOutput] = []

        start = time.perf_counter()
        for first in range(0, inputs, self.batch_size):
            batch = valid[first : first + self.batch_size]

            def report(done: int, before: int = first * layers) -> None:
                if progress is not None:
                    progress(before + done, total)

            output = self.run_batch(batch, report)
            output = replace(output, alive=output.alive + first)
            categories.append(output.alive[_has_positive(output.rows)])
            batches.append(output)
            unknown = (alive_per_layer < 0) | (output.alive_per_layer < 0)
            alive_per_layer = np.where(unknown, -1, alive_per_layer + output.alive_per_layer)
            executed_edges += output.executed_edges
            if seconds_per_layer is not None and output.seconds_per_layer is not None:
                seconds_per_layer += output.seconds_per_layer
            else:
                seconds_per_layer = None
            report(batch.shape[0] * layers)
        found = np.concatenate(categories) if categories else np.empty(0, np.int64)
        inference_seconds = time.perf_counter() - start

        records = tuple(
            LayerRecord(
                number + 1,
                int(alive_per_layer[number]) if alive_per_layer[number] >= 0 else None,
                None if seconds_per_layer is None else float(seconds_per_layer[number]),
            )
            for number in range(layers)
        )
        return Result(
            backend=self.backend.name,
            device=self.backend.device,
            execution_space=self.backend.execution_space,
            inputs=inputs,
            neurons=network.neurons,
            neurons_out=network.neurons_out,
            layers=layers,
            edges=network.edges,
            categories=found,
            plan_seconds=self.plan_seconds,
            inference_seconds=inference_seconds,
            executed_edges=executed_edges,
            records=records,
            exact_passes=self.options.exact_passes,
            _batches=tuple(batches),
        )


def cast_features(features: Features, dtype: npt.DTypeLike, sparse: bool) -> Any:
    """Return features as a csr_array or as a dense array of `dtype`, copying where needed."""
    if isinstance(features, PackedFeatures):
        return features.csr(dtype) if sparse else features.dense(dtype)
    if isinstance(features, np.ndarray):
        if not sparse:
            return features.astype(dtype, copy=False)
        from scipy.sparse import csr_array

        return csr_array(features).astype(dtype, copy=False)
    return features.astype(dtype, copy=False) if sparse else features.astype(dtype).toarray()


def _has_positive(rows: Any) -> Array:
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
        raise NumericalError(_OVERFLOW)
    return np.asarray(positive)


_OVERFLOW = (
    "features became NaN on the way: the sums overflowed; give the network a y_max, "
    "scale its weights, or use --dtype float64"
)
