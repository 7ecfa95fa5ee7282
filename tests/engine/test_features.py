"""Features: the forms that are taken, and what they are brought to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import portable_spdnn as ps
from portable_spdnn.features import as_features


@pytest.mark.parametrize("neurons", [1, 7, 8, 9, 16, 21])
@pytest.mark.parametrize("inputs", [0, 1, 5])
def test_packing_loses_nothing(inputs: int, neurons: int) -> None:
    dense = np.random.default_rng(neurons).random((inputs, neurons)) < 0.5
    packed = ps.PackedFeatures.from_dense(dense)
    assert packed.shape == (inputs, neurons)
    assert packed.nnz == dense.sum()
    np.testing.assert_array_equal(packed.dense(), dense)
    np.testing.assert_array_equal(packed.csr().toarray(), dense)
    assert packed.csr(np.float64).dtype == np.float64
    np.testing.assert_array_equal(packed[1:3].dense(), dense[1:3])


def test_wide_features_unpack_in_blocks() -> None:
    wide = np.zeros((300, 1 << 16), bool)  # more than one block of 16 MiB
    wide[np.arange(300), np.arange(300) * 200] = True
    csr = ps.PackedFeatures.from_dense(wide).csr()
    assert csr.indices.tolist() == (np.arange(300) * 200).tolist()


def test_what_packed_features_refuse() -> None:
    with pytest.raises(ps.InputError, match=r"9 neurons take uint8 of shape \(inputs, 2\)"):
        ps.PackedFeatures(np.zeros((3, 1), np.uint8), 9)
    with pytest.raises(ps.InputError, match="uint8"):
        ps.PackedFeatures(np.zeros((3, 1)), 8)
    with pytest.raises(ps.InputError, match="past the last neuron"):
        ps.PackedFeatures(np.full((3, 1), 1, np.uint8), 7)


def test_forms() -> None:
    dense = np.random.default_rng(0).random((6, 20)) < 0.4
    assert isinstance(as_features(dense, 20), ps.PackedFeatures)
    bits = as_features(np.packbits(dense, axis=1), 20)
    assert isinstance(bits, ps.PackedFeatures)
    np.testing.assert_array_equal(bits.dense(), dense)
    for dtype, kept in [(np.uint8, np.float32), (np.float16, np.float32), (np.int64, np.float64),
                        (np.float32, np.float32), (np.float64, np.float64)]:  # fmt: skip
        array = as_features(dense.astype(dtype), 20)
        assert array.dtype == kept
        np.testing.assert_array_equal(array, dense)
        csr = as_features(sp.coo_matrix(dense.astype(dtype)) if dtype != np.float16
                          else sp.csr_array(dense), 20)  # fmt: skip
        np.testing.assert_array_equal(csr.toarray(), dense)
        assert csr.has_canonical_format


def test_sparse_duplicates_are_summed_without_touching_the_original() -> None:
    given_features = sp.csr_array(([1.0, 2.0], [1, 1], [0, 2]), shape=(1, 3))
    assert as_features(given_features, 3).toarray().tolist() == [[0, 3, 0]]
    assert given_features.nnz == 2


@pytest.mark.parametrize(
    ("features", "neurons", "message"),
    [
        (np.zeros((2, 5)), 4, r"5 columns but the network takes 4 neurons; was neurons=5 meant"),
        (sp.csr_array((2, 5)), 4, "5 columns"),
        (ps.PackedFeatures.from_dense(np.zeros((2, 5))), 4, "5 columns"),
        (np.zeros(5), 5, r"1 dimension\(s\)"),
        (np.zeros((2, 3), complex), 3, "type complex128"),
        (np.zeros((2, 1), np.uint8), 1, "may be bits or numbers"),
        (np.array([[0, np.inf]]), 2, r"input 0, neuron 1 \(counted from 0\) is NaN or infinite"),
        (np.array([[np.inf, -np.inf]]), 2, "input 0, neuron 0"),
        (sp.csr_array(np.array([[0, 0], [0, np.nan]])), 2, "input 1, neuron 1"),
        (np.array([["a"]]), 1, "real numbers are expected"),
    ],
)
def test_what_is_refused(features: Any, neurons: int, message: str) -> None:
    with pytest.raises(ps.InputError, match=message):
        as_features(features, neurons)


def test_large_finite_numbers_are_not_mistaken_for_infinity() -> None:
    largest = np.full((2, 2), np.finfo(np.float64).max)
    np.testing.assert_array_equal(as_features(largest, 2), largest)
