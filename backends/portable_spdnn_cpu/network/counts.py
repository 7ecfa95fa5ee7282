"""What a plan of products counts of the features after each layer."""

from __future__ import annotations

import numpy as np

from portable_spdnn_cpu.jit.compilation import Array, kernel

# What is counted of a layer: inputs that are active after it, inputs that it computed,
# multiply-adds that sparse features saved (in the first), and inputs with NaN (after the last).
ACTIVE, COMPUTED, SAVED, WITH_NAN = range(4)
COUNTS = 4


@kernel
def find_active_columns(features: Array, active: Array, counts: Array) -> int:
    """Mark columns of features that hold a value other than zero, and return how many do.

    Adds that to counts[ACTIVE], and the number of all columns to counts[COMPUTED].
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
    counts[ACTIVE] += count
    counts[COMPUTED] += columns
    return count


@kernel
def find_positive_rows(rows: Array, positive: Array, counts: Array) -> None:
    """Mark rows that hold a value above zero.

    Adds to `counts`, at ACTIVE, how many rows hold a value other than zero, at COMPUTED how many
    there are, and at WITH_NAN how many hold NaN.
    """
    for row in range(rows.shape[0]):
        active = found = with_nan = False
        for column in range(rows.shape[1]):
            value = rows[row, column]
            active |= value != 0
            found |= value > 0
            with_nan |= np.isnan(value)
        positive[row] = found
        counts[ACTIVE] += active
        counts[WITH_NAN] += with_nan
    counts[COMPUTED] += rows.shape[0]
