"""What a plan of products counts of the features after each layer."""

from __future__ import annotations

import numpy as np

from portable_spdnn_cpu.jit.compilation import Array, kernel

# What is counted of a layer, in this order: inputs that are active after it, inputs that it
# computed, multiply-adds that sparse features saved, and inputs with a feature that is NaN.
COUNTS, (SAVED, UNDEFINED) = 4, (2, 3)


@kernel
def find_active_columns(features: Array, active: Array, counts: Array) -> int:
    """Mark columns of features that hold a value other than zero, and return how many do.

    Adds that to counts[0], and the number of all columns to counts[1].
    """
    rows, columns = features.shape
    count = 0
    for row in range(rows):
        count = 0
        for column in range(columns):
            active[column] |= features[row, column] != 0
            count += active[column]
        if count == columns:
            break  # after a few rows, where all are active
    counts[0] += count
    counts[1] += columns
    return count


@kernel
def find_positive_rows(rows: Array, positive: Array, counts: Array) -> None:
    """Mark rows that hold a value above zero.

    Adds to `counts` how many rows hold a value other than zero, how many rows there are, and, at
    UNDEFINED, how many hold NaN.
    """
    for row in range(rows.shape[0]):
        active = found = undefined = False
        for column in range(rows.shape[1]):
            value = rows[row, column]
            active |= value != 0
            found |= value > 0
            undefined |= np.isnan(value)
        positive[row] = found
        counts[0] += active
        counts[UNDEFINED] += undefined
    counts[1] += rows.shape[0]
