"""Ranks of an MPI job: who there is, what the ranks of a node share, how all end together.

MPI is loaded only in a process that an MPI launcher started (`launched_ranks`), or when a
communicator is given. Extra ``mpi``: mpi4py, and MPICH as a wheel.
"""

from __future__ import annotations

import os
import pickle
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np

from portable_spdnn.arrays import Array
from portable_spdnn.errors import InputError
from portable_spdnn.host import usable_cores

# Set by launchers: MPICH and its relatives, Open MPI, MVAPICH.
_SIZE_VARIABLES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
_RANK_VARIABLES = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMIX_RANK")
_ALIGNMENT = 64
_GPUS = Path("/proc/driver/nvidia/gpus")  # where the driver lists them
# The launcher forwards what a rank printed, and ends all at once when one aborts: time to do the
# one before the other.
FORWARD_SECONDS = 0.2
_PIECE = 1 << 28  # bytes of a message: MPI counts in 32 bits
_PLAIN = 1 << 15  # bytes of an array that goes with others: all of them stay below 2^31
Shared = TypeVar("Shared")


def launched_ranks() -> int:
    """Return how many ranks the launcher of this process says it started, 0 for no launcher."""
    for name in _SIZE_VARIABLES:
        if os.environ.get(name, "").isdecimal():
            return int(os.environ[name])
    return 1 if "PMIX_RANK" in os.environ else 0


def launched_rank() -> int | None:
    """Return this process's rank as its launcher tells it, None where there is no launcher."""
    for name in _RANK_VARIABLES:
        if os.environ.get(name, "").isdecimal():
            return int(os.environ[name])
    return None


class Ranks:
    """The ranks of a communicator, and those of them on this node.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm, optional
        Default: all ranks of the job.

    Attributes
    ----------
    rank, size : int
    node_rank, node_size : int
        Among the ranks that share this node's memory.
    host : str

    Raises
    ------
    InputError
        If mpi4py is not installed or does not fit the launcher.
    """

    def __init__(self, comm: Any = None) -> None:
        started = launched_ranks()
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            raise InputError(
                f"started by an MPI launcher, but mpi4py does not load ({error}); "
                "pip install 'portable-spdnn[mpi]'"
            ) from error
        self._mpi = MPI
        world = MPI.COMM_WORLD
        if comm is None and world.size == 1 and started > 1:
            raise InputError(
                f"the launcher started {started} ranks but mpi4py sees one: they belong to "
                "different MPI libraries; use the mpiexec of the library that mpi4py was built for"
            )
        # Messages of this class never meet those of the caller.
        self.comm = (world if comm is None else comm).Dup()
        self.rank, self.size = int(self.comm.rank), int(self.comm.size)
        self.node = self.comm.Split_type(MPI.COMM_TYPE_SHARED, self.rank)
        self.node_rank, self.node_size = int(self.node.rank), int(self.node.size)
        self.host = socket.gethostname()
        self._windows: list[Any] = []
        _open.add(self)
        global _opened
        _opened = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        # A rank that fails does not wait for the others: whoever catches the error aborts.
        if kind is None:
            self.close()

    def close(self) -> None:
        """Free what the ranks share; all call it, and use nothing of it afterwards."""
        for window in self._windows:
            window.Free()
        self._windows.clear()
        self.node.Free()
        self.comm.Free()
        _open.discard(self)

    def require_equal(self, options: Mapping[str, Any]) -> None:
        """Raise InputError, on all ranks, where an option of one differs from rank 0's.

        Parameters
        ----------
        options : mapping of str
            What the ranks were called with, by name; compared as text.
        """
        said = self.comm.allgather({name: str(value) for name, value in options.items()})
        for rank, theirs in enumerate(said):
            for name in sorted(said[0].keys() | theirs.keys()):
                first, other = said[0].get(name), theirs.get(name)
                if first != other:
                    raise InputError(
                        f"{name} is {other} on rank {rank} but {first} on rank 0; all ranks take "
                        "the same options"
                    )

    def threads_each(self) -> int:
        """Return how many threads a rank should have: cores, over the ranks that share them.

        Where the launcher binds ranks to cores of their own, that is all of them.
        """
        cores = tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()
        sharing: int = sum(theirs == cores for theirs in self.node.allgather(cores))
        return max(1, usable_cores() // sharing)

    def bind_gpu(self, devices: str = "") -> None:
        """Let this rank see one GPU, those of the node by turns; to be called before CUDA starts.

        The GPUs are those that CUDA_VISIBLE_DEVICES names, or all that the driver lists. Ranks
        keep what they see where there are none, or where the launcher left each its own.

        Parameters
        ----------
        devices : str
            As `PlanOptions.devices`.

        Raises
        ------
        InputError
            If devices are named, and several ranks share the node: which has which?
        """
        if devices and self.node_size > 1:
            raise InputError(
                f"devices {devices}: {self.node_size} ranks on {self.host} take its GPUs by turns, "
                "one each; leave the option out, or start one rank a node, which drives the "
                "devices named"
            )
        named = os.environ.get("CUDA_VISIBLE_DEVICES")
        if named is None:
            present = len(list(_GPUS.iterdir())) if _GPUS.is_dir() else 0
            named = ",".join(map(str, range(present)))
        gpus = [name for name in named.split(",") if name]
        if len(gpus) > 1 and self.node_size > 1:
            os.environ["CUDA_VISIBLE_DEVICES"] = gpus[self.node_rank % len(gpus)]

    def share_on_node(self, value: Shared | None) -> Shared:
        """Put the arrays of what the node's first rank has into memory that all its ranks read.

        Parameters
        ----------
        value : object that can be pickled
            On the first rank of the node; None on the others.

        Returns
        -------
        object
            Equal to `value`; its contiguous arrays are read-only and there until `close`.
        """
        leads = self.node_rank == 0
        text, given = _pickled(value)
        text, sizes = self.node.bcast((text, [raw.size for raw in given]))
        starts = np.concatenate(([0], np.cumsum([-(-s // _ALIGNMENT) * _ALIGNMENT for s in sizes])))
        total = max(int(starts[-1]), 1) if leads else 0
        window = self._mpi.Win.Allocate_shared(total, 1, comm=self.node)
        self._windows.append(window)
        memory = np.frombuffer(window.Shared_query(0)[0], np.uint8)
        parts = [memory[start : start + size] for start, size in zip(starts, sizes, strict=False)]
        for part, raw in zip(parts, given, strict=False):  # other ranks give nothing
            part[:] = raw
        self.node.Barrier()
        for part in parts:
            part.flags.writeable = False
        shared: Shared = pickle.loads(text, buffers=parts)
        return shared

    def gather(self, value: Shared) -> list[Shared] | None:
        """Bring what each rank has, with arrays of any size, to rank 0.

        Parameters
        ----------
        value : object that can be pickled

        Returns
        -------
        list of object, or None
            By rank; None on all ranks but the first.
        """
        text, given = _pickled(value, _PLAIN)
        told = self.comm.gather((text, [raw.size for raw in given]))
        if told is None:
            for raw in given:
                for start in range(0, raw.size, _PIECE):
                    self.comm.Send(raw[start : start + _PIECE], 0)
            return None
        gathered = [value]
        for rank, (text, sizes) in enumerate(told[1:], start=1):
            parts = [np.empty(size, np.uint8) for size in sizes]
            for part in parts:
                for start in range(0, part.size, _PIECE):
                    self.comm.Recv(part[start : start + _PIECE], rank)
            gathered.append(pickle.loads(text, buffers=parts))
        return gathered


def _pickled(value: object, most: int = -1) -> tuple[bytes, list[Array]]:
    """Return an object as a pickle, and the bytes of its arrays of more than `most` bytes."""
    apart: list[Array] = []

    def stays(buffer: pickle.PickleBuffer) -> bool:
        raw = np.asarray(buffer.raw())
        if raw.size > most:
            apart.append(raw)
        return raw.size <= most

    return pickle.dumps(value, 5, buffer_callback=stays), apart


_open: set[Ranks] = set()
_opened = False


def others_may_wait() -> bool:
    """Whether other ranks may wait for this one: its ranks are open, or were never opened."""
    return bool(_open) or not _opened


def abort(code: int) -> None:
    """End all ranks of the job at once with an exit code; to be called by one that failed.

    Returns where mpi4py is missing: then no rank waits for another.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):
        return
    sys.stdout.flush()
    if not sys.stderr.closed:
        sys.stderr.flush()
    time.sleep(FORWARD_SECONDS)
    MPI.COMM_WORLD.Abort(code)
