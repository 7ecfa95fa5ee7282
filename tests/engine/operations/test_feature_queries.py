"""What plans ask about features, against loops over their entries."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

import portable_spdnn as ps

SCIPY = ps.get_backend("scipy")
SIZES = st.integers(0, 6)


def matrices(rows: int, columns: int) -> st.SearchStrategy[Any]:
    entries = st.lists(st.sampled_from([0.0, 0.0, 1.5, -2.0, np.nan]), min_size=rows * columns,
                       max_size=rows * columns)  # fmt: skip
    return entries.map(lambda values: np.array(values).reshape(rows, columns))


@given(data=st.data(), inputs=SIZES, neurons=SIZES, outputs=SIZES)
def test_every_answer_is_that_of_plain_loops(
    data: st.DataObject, inputs: int, neurons: int, outputs: int
) -> None:
    Y, W = data.draw(matrices(inputs, neurons)), data.draw(matrices(neurons, outputs))
    sparse_Y, sparse_W = sp.csr_array(Y), sp.csr_array(W)
    nonzero = [(i, k) for i in range(inputs) for k in range(neurons) if Y[i, k] != 0]
    per_row = [sum(W[k, j] != 0 for j in range(outputs)) for k in range(neurons)]
    active = sorted({i for i, _ in nonzero})
    for features in (Y, sparse_Y):
        assert SCIPY.active_inputs(features).tolist() == active
        assert SCIPY.active_inputs(features).dtype == np.int64
        assert SCIPY.nonzeros(features) == len(nonzero)
    assert SCIPY.multiply_adds(sparse_W, Y) == inputs * sum(per_row)
    assert SCIPY.multiply_adds(sparse_W, sparse_Y) == sum(per_row[k] for _, k in nonzero)


def test_features_change_their_form_and_keep_their_values() -> None:
    Y = np.array([[0, 2, 0], [0, 0, 0], [1, 0, np.nan]])
    sparse = SCIPY.convert_features(Y, sparse=True)
    assert SCIPY.is_sparse(sparse)
    np.testing.assert_array_equal(sparse.toarray(), Y)
    dense = SCIPY.convert_features(sparse, sparse=False)
    assert not SCIPY.is_sparse(dense)
    np.testing.assert_array_equal(dense, Y)
