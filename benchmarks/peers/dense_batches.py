"""The best loop for libraries that multiply sparse by dense: batches, inactive inputs removed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import portable_spdnn as ps

BATCH = 4096
# Batches are compacted once less than this part is active: copying costs as much as a layer.
COMPACT_BELOW = 0.9


def infer_in_batches(
    weights: list[Any],
    features: ps.PackedFeatures,
    layer: Callable[[Any, Any], Any],
    active: Callable[[Any], Any],
    take: Callable[[Any, Any], Any],
    upload: Callable[[Any], Any],
) -> Any:
    """Return the categories.

    Parameters
    ----------
    weights : list
        By output neuron, in the library's form.
    features : PackedFeatures
    layer : callable
        (weights, Y) -> Y', one column per input.
    active : callable
        Y -> bool ndarray, a flag per column.
    take : callable
        (Y, columns) -> those columns.
    upload : callable
        From a float32 ndarray (neurons, inputs) in C order to the library's dense form.
    """
    found = []
    for first in range(0, features.shape[0], BATCH):
        batch = features[first : first + BATCH]
        kept = np.arange(first, first + batch.shape[0])
        Y = upload(np.ascontiguousarray(batch.dense(np.float32).T))
        for W in weights:
            Y = layer(W, Y)
            flags = active(Y)
            if flags.sum() < COMPACT_BELOW * kept.size:
                columns = np.flatnonzero(flags)
                Y, kept = take(Y, columns), kept[columns]
                if not kept.size:
                    break
        if kept.size:
            found.append(kept[active(Y)])
    return np.concatenate(found) if found else np.empty(0, np.int64)
