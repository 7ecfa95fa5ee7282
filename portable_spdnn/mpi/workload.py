"""What the ranks of a job run: the network read once a node, to each rank its inputs."""

from __future__ import annotations

import time
from dataclasses import dataclass

from portable_spdnn.arrays import Progress
from portable_spdnn.features import Features
from portable_spdnn.mpi.ranks import Ranks
from portable_spdnn.mpi.run import Rows
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
    ranks: Ranks, request: Request, schedule: str, progress: Progress | None = None
) -> RankedWorkload:
    """Load or generate what `request` names, on all ranks.

    The first rank of a node reads or generates the network into memory that all of the node
    share; a packed store is mapped, which shares it as well. With the static schedule a rank
    reads the inputs of its part alone, where the format allows it: stores and images. Text
    files, and everything under the dynamic schedule, are read once a node and shared.
    `schedule` is "static" or "dynamic"; `progress` and errors are those of `load_workload`.
    """
    start = time.perf_counter()
    source, leads = resolve(request), ranks.node_rank == 0
    if request.streamed or source.network.kind == STORE:
        network = source.load_network(progress)
    else:
        network = ranks.share_on_node(source.load_network(progress) if leads else None)
    counted = ranks.comm.bcast(source.count_inputs() if ranks.rank == 0 else None)
    mapped = source.inputs.kind == STORE
    first = 0  # of the features at hand
    if counted is None or (schedule == "dynamic" and not mapped):
        features, total = ranks.share_on_node(source.load_inputs() if leads else None)
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
