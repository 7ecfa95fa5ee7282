"""Lines of two whole numbers and a number by the parser of pandas, which releases the lock."""

from __future__ import annotations

import csv
import io

import numpy as np
import pandas as pd

from portable_spdnn.arrays import Array


def read_table(text: bytes) -> list[Array]:
    """Return the columns of lines of fields with tabs between them.

    The third is float64; the others are what pandas makes of them, int64 if all are whole numbers.
    Blank lines are left out. Raises ValueError, as every parse error of pandas is, or
    OverflowError.
    """
    table = pd.read_csv(
        io.BytesIO(text), sep="\t", header=None, engine="c", na_filter=False,
        quoting=csv.QUOTE_NONE, low_memory=False,
        dtype={2: np.float64},  # asked for integers, it would take 2.0 and True as well
    )  # fmt: skip
    return [table[column].to_numpy() for column in table]
