"""What the ranks of a job run: the network read once a node, to each rank its inputs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from portable_spdnn.arrays import Progress
from portable_spdnn.features import Features, PackedFeatures
from portable_spdnn.layer import Layer
from portable_spdnn.mpi.ranks import Ranks
from portable_spdnn.mpi.run import Rows
from portable_spdnn.network import Network
from portable_spdnn.plans.partition import static_part
from portable_spdnn.workloads.loading import Workload
from portable_spdnn.workloads.networks import STORE
from portable_spdnn.workloads.sources import Request, resolve


@dataclass(frozen=True)
class RankedWorkload:
    """A rank's share of the work.

    Attributes
    ----------
    work : Workload
        The network, and the features at hand. Truth on rank 0 alone.
    rows : callable
        (first, end) -> features; any rows where the schedule is dynamic, else the static part.
    inputs : int
        Of all ranks.
    """

    work: Workload
    rows: Rows
    inputs: int


def load_ranked_workload(
    ranks: Ranks,
    request: Request,
    schedule: str,
    progress: Progress | None = None,
) -> RankedWorkload:
    """Load or generate what `request` names, on all ranks.

    The first rank of a node reads or generates the network into memory that all of the node
    share; a packed store is mapped, which shares it as well. With the static schedule a rank
    reads the inputs of its part alone, where the format allows it: stores and images. Text
    files, and everything under the dynamic schedule, are read once a node and shared.

    Parameters
    ----------
    ranks : Ranks
    request : Request
    schedule : {"static", "dynamic"}
    progress : callable, optional

    Raises
    ------
    InputError
        As `load_workload`.
    """
    start = time.perf_counter()
    source, leads = resolve(request), ranks.node_rank == 0
    if request.streamed or source.network.kind == STORE:
        network = source.load_network(progress)
    else:
        network = _share_network(ranks, source.load_network(progress) if leads else None)
    counted = ranks.comm.bcast(source.count_inputs() if ranks.rank == 0 else None)
    mapped = source.inputs.kind == STORE
    first = 0  # of the features at hand
    if counted is None or (schedule == "dynamic" and not mapped):
        features, total = _share_features(ranks, source.load_inputs() if leads else None)
        inputs = features.shape[0]
    else:
        inputs, total = counted
        part = (0, inputs) if mapped else static_part(inputs, ranks.rank, ranks.size)
        first = part[0]
        features = source.inputs.rows(slice(*part), leads)

    def rows(begin: int, end: int) -> Features:
        return features[begin - first : end - first]

    truth = source.load_truth(len(network), inputs, total) if ranks.rank == 0 else None
    # The first rank of a node verifies what the others only map: nobody runs before it has.
    ranks.node.Barrier()
    work = Workload(source, network, features, truth, time.perf_counter() - start)
    return RankedWorkload(work, rows, inputs)


def _share_network(ranks: Ranks, loaded: Network | None) -> Network:
    """Share a network that the first rank of each node has loaded."""
    layers = [] if loaded is None else list(loaded)
    forms = [
        (
            layer.shape,
            layer.constant,
            layer.bias.strides == (0,),
            (layer.activation, layer.lower, layer.upper),
        )
        for layer in layers
    ]
    forms, y_max = ranks.node.bcast(None if loaded is None else (forms, loaded.y_max))
    arrays: list[Any] | None = None
    if loaded is not None:
        arrays = []
        for layer, (_, constant, plain, _) in zip(layers, forms, strict=True):
            values = layer.data[:1] if constant is not None else layer.data
            arrays += [layer.indptr, layer.indices, values, layer.bias[:1] if plain else layer.bias]
    parts = iter(ranks.share_on_node(arrays))
    shared = []
    for shape, constant, plain, finish in forms:
        indptr, indices, data, bias = (next(parts) for _ in range(4))
        if constant is not None:
            data = np.broadcast_to(data[0], indices.shape)
        if plain:
            bias = np.broadcast_to(bias[0], shape[1:]) if bias.size else bias
        shared.append(Layer.from_csr(indptr, indices, data, shape, bias, *finish))
    return Network(shared, y_max)


def _share_features(ranks: Ranks, given: tuple[Features, int] | None) -> tuple[Features, int]:
    """Share features, and how many inputs there are, that the first rank of each node has."""
    arrays: list[Any] | None = None
    form = None
    if given is not None:
        csr: Any
        csr, total = given
        bits = isinstance(csr, PackedFeatures)
        arrays = [csr.bits] if bits else [csr.data, csr.indices, csr.indptr]
        form = (len(arrays), csr.shape, total)
    count, shape, total = ranks.node.bcast(form)
    parts = ranks.share_on_node(arrays)
    if count == 1:
        return PackedFeatures(parts[0], shape[1]), total
    shared = sp.csr_array(tuple(parts), shape=shape)
    shared.has_canonical_format = True
    return shared, total
