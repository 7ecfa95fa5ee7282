"""Data-parallel inference over MPI: each rank runs the whole network on a part of the inputs.

Inputs never meet in a network, so ranks need not talk while they run. Parts are fixed beforehand
(``static``: as many inputs to each) or handed out as ranks ask for them (``dynamic``: what an
input costs depends on how long it is active). Results come together on rank 0 in the order of
the inputs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from portable_spdnn.arrays import Progress
from portable_spdnn.backend import Backend
from portable_spdnn.errors import InputError
from portable_spdnn.features import Features, as_features
from portable_spdnn.mpi.ranks import Ranks
from portable_spdnn.network import Network
from portable_spdnn.plans.base import NetworkPlan
from portable_spdnn.plans.batch import Batch, resumed_seconds
from portable_spdnn.plans.checkpoint import Checkpoint, features_fingerprint
from portable_spdnn.plans.options import PlanOptions
from portable_spdnn.plans.partition import chunk_bounds, static_part
from portable_spdnn.plans.planner import make_plan
from portable_spdnn.plans.result import Result, replica_records
from portable_spdnn.registry import get_backend

Rows = Callable[[int, int], Features]

SCHEDULES = ("static", "dynamic")
POLL_SECONDS = 5e-4  # between two looks of rank 0 for questions
_ASK, _ANSWER = 1, 2


def infer_distributed(
    network: Network,
    features: Any,
    backend: str | Backend = "auto",
    *,
    comm: Any = None,
    schedule: str = "static",
    threads: int | None = None,
    options: PlanOptions | None = None,
    progress: Progress | None = None,
    checkpoint: str | None = None,
) -> Result | None:
    """Run a network on features on all ranks of an MPI job; all ranks call it.

    Parameters
    ----------
    network : Network
        The same on all ranks.
    features : as `infer` takes them
        All inputs, the same on all ranks.
    backend : str or Backend
    comm : mpi4py.MPI.Intracomm, optional
        Default: all ranks of the job.
    schedule : {"static", "dynamic"}
    threads : int, optional
        Of each rank; default: the node's cores over its ranks.
    options : PlanOptions, optional
    progress : callable, optional
        Called on rank 0 with (done, total) of its own part.
    checkpoint : path-like, optional
        A folder that all ranks can reach.

    Returns
    -------
    Result or None
        On rank 0 the result, scores included; None on the others.

    Raises
    ------
    InputError
        As `infer`; or if mpi4py is missing. The other ranks then wait for ever, unless the
        job runs under ``python -m mpi4py`` or the caller calls `ranks.abort`.

    Examples
    --------
    Four ranks share the inputs where ``mpiexec -n 4 python -m mpi4py script.py`` runs this. A
    process that no launcher started is a job of one rank.

    >>> import numpy as np, portable_spdnn as ps
    >>> network = ps.Network([ps.Layer(np.eye(3), -0.5)])
    >>> result = ps.infer_distributed(network, np.eye(3), backend="scipy")
    >>> if result is not None:  # on rank 0
    ...     print(result.categories.tolist(), [one.rank for one in result.replicas])
    [0, 1, 2] [0]
    """
    valid = as_features(features, network.neurons)
    with Ranks(comm) as ranks:
        ranks.bind_gpu("" if options is None else options.devices)
        if isinstance(backend, Backend):
            chosen = backend
        else:
            chosen = get_backend(backend, ranks.threads_each() if threads is None else threads)
        options = options or PlanOptions()
        ranks.require_equal(
            {"network": network, "inputs": valid.shape[0], "backend": chosen.name,
             "schedule": schedule, "checkpoint": checkpoint, "options": options}
        )  # fmt: skip
        each = -(-valid.shape[0] // ranks.size)
        plan = make_plan(chosen, network, replace(options, expected_inputs=each))
        return run_on_ranks(
            ranks,
            plan,
            lambda first, end: valid[first:end],
            valid.shape[0],
            schedule,
            progress=progress,
            checkpoint=checkpoint,
            scores=True,
        )


def run_on_ranks(
    ranks: Ranks,
    plan: NetworkPlan,
    rows: Rows,
    inputs: int,
    schedule: str = "static",
    *,
    load_seconds: float = 0.0,
    progress: Progress | None = None,
    checkpoint: Any = None,
    scores: bool = False,
) -> Result | None:
    """Run a plan that each rank has made, on inputs shared out among the ranks.

    Parameters
    ----------
    ranks : Ranks
    plan : NetworkPlan
    rows : callable
        (first, end) -> the valid features of those inputs. With the static schedule a rank asks
        only for those of `static_part`.
    inputs : int
        In all.
    schedule : {"static", "dynamic"}
    load_seconds : float
        What this rank spent on loading; for its record.
    progress, checkpoint
        As for `infer_distributed`.
    scores : bool
        Bring the features after the last layer to rank 0 as well.

    Returns
    -------
    Result or None
        None on all ranks but the first. `inference_seconds` runs from when all ranks are ready
        until rank 0 has all results.
    """
    if schedule not in SCHEDULES:
        raise InputError(f"schedule is {schedule!r}; choose one of {', '.join(SCHEDULES)}")
    kept = None
    if checkpoint is not None:
        kept = _open_checkpoint(ranks, plan, rows, inputs, checkpoint)
    if schedule == "static":
        parts = iter([static_part(inputs, ranks.rank, ranks.size)])
    else:
        parts = dynamic_parts(ranks, inputs)
    batches: list[Batch] = []
    seen = 0

    def show(done: int, total: int) -> None:
        if progress is not None:
            before = seen * len(plan.network)
            progress(before + done, -(-inputs // ranks.size) * len(plan.network))

    ranks.comm.Barrier()
    start = time.perf_counter()
    for first, end in parts:
        if first < end:
            batches += plan.finished_batches(rows(first, end), first, show, kept)
            seen += end - first
    if not scores:
        batches = [replace(one, output=replace(one.output, rows=None)) for one in batches]
    batches = [replace(one, output=one.output.fetched()) for one in batches]
    mine = replica_records(plan.replicas(), batches, ranks.host, ranks.rank, load_seconds)
    gathered = ranks.gather(batches)
    told = ranks.comm.gather((mine, plan.plan_seconds))
    seconds = time.perf_counter() - start
    if gathered is None or told is None:
        return None
    resumed = [resumed_seconds(theirs) for theirs in gathered]
    together = sorted((b for theirs in gathered for b in theirs), key=lambda batch: batch.first)
    covered = sum(batch.inputs for batch in together)
    if covered != inputs:
        raise InputError(f"the ranks ran {covered} inputs of {inputs}; did they get the same data?")
    result = plan.result(inputs, together, seconds + max(resumed))
    records, plan_seconds = zip(*told, strict=True)
    return replace(result, plan_seconds=max(plan_seconds), replicas=sum(records, start=()))


def dynamic_parts(ranks: Ranks, inputs: int) -> Iterator[tuple[int, int]]:
    """Yield (first, end) of chunks as this rank asks for them; all ranks iterate to the end.

    Rank 0 keeps the count, and a thread of it answers the others while it computes. The first
    chunk of a rank is its own number.
    """
    chunks = chunk_bounds(inputs, ranks.size)
    counter = _ChunkCounter(ranks, len(chunks))
    number = ranks.rank
    while number < len(chunks):
        yield chunks[number]
        number = counter.next()
    counter.close()


class _ChunkCounter:
    """Hands out chunk numbers from `size` on, each once."""

    def __init__(self, ranks: Ranks, chunks: int) -> None:
        from mpi4py import MPI

        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            raise InputError(
                "schedule dynamic: this MPI library does not take calls from several threads; "
                "use the static schedule"
            )
        self._mpi, self._comm = MPI, ranks.comm.Dup()
        self._ranks, self._chunks = ranks, chunks
        self._next = ranks.size
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._server: threading.Thread | None = None
        if ranks.rank == 0 and ranks.size > 1:
            self._server = threading.Thread(target=self._answer, name="spdnn-chunks", daemon=True)
            self._server.start()

    def next(self) -> int:
        """Return a number that nobody else gets; beyond the last chunk there is no work left."""
        if self._ranks.rank:
            self._comm.send(None, 0, _ASK)
            return int(self._comm.recv(source=0, tag=_ANSWER))
        return self._take()

    def close(self) -> None:
        """Return when all ranks have been told that there is no work left."""
        if self._ranks.rank and self._ranks.rank >= self._chunks:
            self._comm.send(None, 0, _ASK)  # never asked: let the server count it
            self._comm.recv(source=0, tag=_ANSWER)
        if self._server is not None:
            self._server.join()
        if self._error is not None:
            raise self._error
        self._comm.Free()

    def _take(self) -> int:
        with self._lock:
            number = self._next
            self._next += 1
        return number

    def _answer(self) -> None:
        """Answer the other ranks until each has been told that nothing is left."""
        waiting = self._ranks.size - 1
        status = self._mpi.Status()
        try:
            while waiting:
                if not self._comm.Iprobe(tag=_ASK, status=status):
                    time.sleep(POLL_SECONDS)  # a blocking receive would keep a core busy
                    continue
                source = status.Get_source()
                self._comm.recv(source=source, tag=_ASK)
                number = self._take()
                waiting -= number >= self._chunks
                self._comm.send(number, source, _ANSWER)
        except BaseException as error:  # noqa: BLE001 - raised again by `close`, in the main thread
            self._error = error


def _open_checkpoint(
    ranks: Ranks, plan: NetworkPlan, rows: Rows, inputs: int, folder: Any
) -> Checkpoint:
    """Open the checkpoint of all ranks, rank 0 first: it makes the folder."""
    first, end = static_part(inputs, ranks.rank, ranks.size)
    mine = features_fingerprint(rows(first, end), first) if first < end else 0
    fingerprint = sum(ranks.comm.allgather(mine)) % (1 << 64)
    identity = plan.identity(inputs, fingerprint)
    if ranks.rank == 0:
        kept = Checkpoint(folder, identity)
    ranks.comm.Barrier()
    return kept if ranks.rank == 0 else Checkpoint(folder, identity)
