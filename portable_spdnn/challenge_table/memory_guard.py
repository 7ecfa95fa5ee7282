"""Which networks are streamed, and with how much memory."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from portable_spdnn.host import available_bytes, resident_bytes
from portable_spdnn.plans.base import BATCH_MEMORY
from portable_spdnn.plans.options import PlanOptions
from portable_spdnn.workloads.streamed_network import LayerFacts

SHARE = 3 / 4
"""Part of the available memory that a network may take, in memory or streamed."""

WORKING_COPIES = 3  # of a batch's features before and after a layer: sparse forms are larger


def streaming_memory(
    facts: Iterable[LayerFacts], inputs: int, options: PlanOptions, available: int | None = None
) -> int | None:
    """Decide whether a network is held in memory or streamed.

    Parameters
    ----------
    facts : iterable of LayerFacts
        Of all layers.
    inputs : int
    options : PlanOptions
        Where its `memory` is set, that stands.
    available : int, optional
        Bytes that the process may still take. Default: what the system tells now; where it
        tells nothing, networks are held in memory.

    Returns
    -------
    int or None
        None: held in memory. Otherwise weights in two forms (as loaded, and planned by any
        backend) and the features at work exceed `SHARE` of the available memory, and the number
        is what the whole process may hold: what it holds already, and that share.
    """
    if options.memory is not None:
        return options.memory
    available = available_bytes() if available is None else available
    if available is None or needed_bytes(facts, inputs, options) <= SHARE * available:
        return None
    return resident_bytes() + int(SHARE * available)


def needed_bytes(facts: Iterable[LayerFacts], inputs: int, options: PlanOptions) -> int:
    """Return the memory that a network takes when it is loaded, planned and run at once."""
    itemsize = np.dtype(options.dtype).itemsize
    weights = widest = 0
    for one in facts:
        planned = (4 + max(one.value_bytes, itemsize)) * one.nnz + 40 * sum(one.shape)
        weights += one.bytes + planned
        widest = max(widest, *one.shape)
    before_and_after = 2 * widest * itemsize
    batch = options.batch_size or max(1, BATCH_MEMORY // max(1, before_and_after))
    return weights + WORKING_COPIES * min(inputs, batch) * before_and_after
