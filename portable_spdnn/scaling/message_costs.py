"""What it costs to pickle a rank's results."""

from __future__ import annotations

import pickle
import time

import numpy as np

from portable_spdnn.plans.batch import Batch, BatchOutput
from portable_spdnn.plans.result import ReplicaRecord
from portable_spdnn.scaling.calibration import Messages

LAYER_BYTES = 8
"""Of a batch's message for each layer: the inputs that were alive after it."""
SURVIVOR_BYTES = 16
"""Of a batch's message for each survivor: its number, as alive and as a category."""

_BATCHES = 16
_SURVIVORS = 1 << 16
_TURNS = 50


def measure_messages() -> Messages:
    """Measure what `run_on_ranks` sends of a rank: its batches without features, its record."""
    none, few, large = _message(0, 0), _message(_BATCHES, 0), _message(1, _SURVIVORS)
    sizes = [len(pickle.dumps(message, -1)) for message in (none, few, large)]
    pickling, _ = _seconds(none)
    (_, least), (_, batches), (_, survivors) = map(_seconds, (none, few, large))
    batch_seconds = max(0.0, batches - least) / _BATCHES
    return Messages(
        bytes_each=float(sizes[0]),
        bytes_batch=(sizes[1] - sizes[0]) / _BATCHES,
        pickle_seconds=pickling,
        unpickle_seconds=least,
        unpickle_seconds_batch=batch_seconds,
        unpickle_seconds_byte=max(0.0, survivors - least - batch_seconds) / (sizes[2] - sizes[0]),
    )


def _message(batches: int, survivors: int) -> tuple[object, ...]:
    alive = np.arange(survivors)
    output = BatchOutput(alive, None, np.empty(0, np.int64), 0)
    together = [Batch(n, 1, alive + 1, float(n), output) for n in range(batches)]
    # A name and a processor of usual length.
    record = ReplicaRecord(0, "node-00000", "a processor, 128 threads" * 2, 1, 1.5, 1.5, 1.5, 1)
    return together, [None] * batches, ((record,), 1.5)


def _seconds(message: object) -> tuple[float, float]:
    """Return the least seconds of pickling and of unpickling."""
    there = back = float("inf")
    for _ in range(_TURNS):
        start = time.perf_counter()
        octets = pickle.dumps(message, -1)
        there = min(there, time.perf_counter() - start)
        start = time.perf_counter()
        pickle.loads(octets)
        back = min(back, time.perf_counter() - start)
    return there, back
