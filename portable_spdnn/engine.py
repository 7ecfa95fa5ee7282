"""Inference on any backend: `infer`, and the layer loop that every backend has."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from portable_spdnn.backend import Backend
from portable_spdnn.errors import InputError
from portable_spdnn.features import Features
from portable_spdnn.memory import parse_limit
from portable_spdnn.network import Network
from portable_spdnn.passes import parse_passes
from portable_spdnn.plans.base import NetworkPlan, PlanOptions, Progress, cast_features
from portable_spdnn.plans.crossover import break_even_density, dense_seconds_per_edge
from portable_spdnn.plans.result import BatchOutput, Result
from portable_spdnn.registry import get_backend

TURN_BACK = 0.5  # dense features turn sparse again below this part of the break-even density


def infer(
    network: Network,
    features: Any,
    backend: str | Backend = "auto",
    *,
    threads: int | None = None,
    dtype: npt.DTypeLike = np.float32,
    path: str = "auto",
    batch_size: int | None = None,
    keep_dead_inputs: bool = False,
    exact_passes: str | Iterable[str] = (),
    memory: str | int | None = None,
    kernel: str = "auto",
    storage: str = "same",
    device_memory: str | int | None = None,
    devices: str = "",
    profile: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Result:
    """Run a network on features: Y <- min(max(Y W + b, 0), y_max), layer after layer.

    Parameters
    ----------
    network : Network
    features : PackedFeatures, ndarray or scipy.sparse, shape (inputs, neurons)
        A bool array is packed to bits; uint8 of ceil(neurons / 8) columns is taken as bits
        packed by `numpy.packbits`.
    backend : str or Backend, default "auto"
        A registered name, "auto" for the fastest available one, or a backend at hand.
    threads : int, optional
        For a backend given by name.
    dtype : float32 or float64
    path : {"auto", "spmm", "spgemm"}
        Dense or sparse features between layers.
    batch_size : int, optional
        Inputs that go through the network together.
    keep_dead_inputs : bool
        Compute inputs to the end even when all their features are zero.
    exact_passes : str or iterable of str
        Exact rewrites: "merge-neurons", "merge-inputs", "fixed-point", "all"; see
        `portable_spdnn.passes`.
    memory : str or int, optional
        What the process may take, such as "4GiB": layers are then read block by block, inputs
        go in batches that fit, and scores are kept only with a checkpoint. Worth while with a
        network that is not in memory, such as `open_network` gives.
    kernel, storage, devices : str
    profile : bool
        See `PlanOptions`; for backends that take them.
    device_memory : str or int, optional
        What weights and features may take of a device's memory, such as "2GiB".
    checkpoint : path-like, optional
        A folder that keeps finished batches: an interrupted run goes on from the last.
    progress : callable, optional
        Called with (done, total) in units of inputs x layers.

    Returns
    -------
    Result

    Raises
    ------
    InputError
        If features, options or backend name do not fit.
    BackendUnavailable
        If the named backend cannot run here.
    NumericalError
        If features became NaN on the way.

    References
    ----------
    Kepner, Alford, Gadepally, Jones, Milechin, Robinett, Samsi, "Sparse Deep Neural Network
    Graph Challenge", HPEC 2019.
    """
    if isinstance(backend, Backend):
        if threads is not None:
            raise InputError("threads goes with a backend given by name; this one has its own")
        chosen = backend
    else:
        chosen = get_backend(backend, threads)
    options = PlanOptions(
        dtype=dtype,
        path=path,
        batch_size=batch_size,
        keep_dead_inputs=keep_dead_inputs,
        memory=parse_limit(memory, "memory"),
        exact_passes=parse_passes(exact_passes),
        kernel=kernel,
        storage=storage,
        device_memory=parse_limit(device_memory, "device_memory"),
        devices=devices,
        profile=profile,
        expected_inputs=len_of(features),
    )
    return chosen.plan(network, options).run(features, progress, checkpoint)


def len_of(features: Any) -> int | None:
    """Return how many inputs features hold; None where that is for validation to say."""
    shape: tuple[int, ...] = getattr(features, "shape", ())
    return shape[0] if len(shape) == 2 else None


class LayerLoopPlan(NetworkPlan):
    """The neutral plan: one layer after the other over all inputs of a batch.

    Dead inputs leave after each layer where the biases of all later layers allow it. Where both
    sparse and dense features are exact and the path is left to the plan, features change from
    one to the other as their density passes the one at which both cost the same.
    """

    def __init__(self, backend: Backend, network: Network, options: PlanOptions) -> None:
        super().__init__(backend, network, options)
        self.weights = [backend.upload(layer.csr(options.dtype)) for layer in network]
        self.biases = [np.array(layer.bias, dtype=options.dtype) for layer in network]
        self.break_even: float | None = None  # where it is measured
        self.always_sparse = options.path == "spgemm"
        if options.path == "auto" and network.sparse_features_exact:
            self.break_even = self._measure()
        self.sparse_layers: list[bool] = []  # of the last batch

    def _measure(self) -> float:
        """Return the density at which the first layer costs the same on either path."""
        backend, y_max, dtype = self.backend, self.network.y_max, self.options.dtype
        W = self.network.layers[0].csr(dtype)
        # Nothing is lost below zero: what comes out costs time too.
        bias = np.zeros(W.shape[1], dtype)

        def run(Y: Any) -> None:
            backend.run_layer(self.weights[0], backend.upload(Y), bias, y_max)
            backend.synchronize()

        dense = dense_seconds_per_edge(W, run, dtype)
        return break_even_density(W, dense, run, dtype)

    def describe(self) -> str:
        """Return what the plan chose and why, a line each."""
        if self.break_even is not None:
            choice = f"sparse below {100 * self.break_even:.2g} % nonzero, else dense (measured)"
        elif self.options.path == "auto":
            choice = "dense (a bias is positive)"
        else:
            choice = f"{'sparse' if self.always_sparse else 'dense'} (asked for)"
        if self.break_even is not None and self.sparse_layers:
            choice += f"; in the last batch {_layers_in_words(self.sparse_layers)}"
        dead = "kept (asked for)" if self.options.keep_dead_inputs else "dropped after each layer"
        if not self.options.keep_dead_inputs and self.first_prunable_layer:
            dead += f" from layer {self.first_prunable_layer} on (positive biases before)"
        return (
            f"layer loop on {self.backend.name}\n"
            f"features between layers: {choice}\n"
            f"dead inputs: {dead}\n"
            f"batches of {self.batch_size} inputs"
        )

    def run_batch(self, features: Features, report: Callable[[int], None]) -> BatchOutput:
        """Run the layer loop on one batch; see `NetworkPlan.run_batch`."""
        backend, y_max = self.backend, self.network.y_max
        inputs, layers = features.shape[0], len(self.network)
        count = np.count_nonzero(features) if isinstance(features, np.ndarray) else features.nnz
        sparse = self._takes_sparse(int(count), features.shape, sparse=True)
        y = backend.upload(cast_features(features, self.options.dtype, sparse))
        kept = np.arange(inputs, dtype=np.int64)
        alive_per_layer = np.zeros(layers, np.int64)
        seconds = np.zeros(layers)
        executed_edges = 0
        sparse_layers = []
        for number, (weights, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            start = time.perf_counter()
            if number and self.break_even is not None:
                y = self._choose(y)
            sparse_layers.append(backend.is_sparse(y))
            executed_edges += backend.multiply_adds(weights, y)
            y = backend.run_layer(weights, y, bias, y_max)
            alive = backend.alive_inputs(y)
            alive_per_layer[number] = alive.size
            if self.may_drop_after(number) and alive.size < kept.size:
                y = backend.take_inputs(y, alive)
                kept = kept[alive]
            backend.synchronize()
            seconds[number] = time.perf_counter() - start
            report(kept.size * (number + 1) + (inputs - kept.size) * layers)
        self.sparse_layers = sparse_layers
        return BatchOutput(kept, backend.download(y), alive_per_layer, executed_edges, seconds)

    def _choose(self, y: Any) -> Any:
        """Return features in the form that is the cheaper for their density."""
        sparse = self.backend.is_sparse(y)
        wanted = self._takes_sparse(self.backend.nonzeros(y), y.shape, sparse)
        return y if wanted == sparse else self.backend.convert_features(y, wanted)

    def _takes_sparse(self, nonzero: int, shape: tuple[int, int], sparse: bool) -> bool:
        """Whether features should be sparse; `sparse` says whether they are."""
        if self.break_even is None:
            return self.always_sparse
        # Changing costs about a layer: to be earned before it is changed back.
        limit = self.break_even * (1 if sparse else TURN_BACK)
        return nonzero < limit * max(shape[0] * shape[1], 1)


def _layers_in_words(sparse: list[bool]) -> str:
    """Return which layers took sparse features, as runs of layers counted from 1."""
    runs, first = [], 0
    for end in range(1, len(sparse) + 1):
        if end == len(sparse) or sparse[end] != sparse[first]:
            layers = f"layers {first + 1} to {end}" if end > first + 1 else f"layer {end}"
            runs.append(f"{layers} {'sparse' if sparse[first] else 'dense'}")
            first = end
    return ", ".join(runs)
