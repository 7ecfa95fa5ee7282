"""Layers and networks: what they hold, and what they refuse."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

import portable_spdnn as ps
from portable_spdnn.sparse_arrays import index_dtype


def test_a_layer_keeps_what_it_was_given() -> None:
    dense = np.array([[0, 0.5, -2], [0, 0, 0], [1, 0, 0]])
    for form in (dense, sp.csr_matrix(dense), sp.coo_array(dense), sp.csc_array(dense)):
        layer = ps.Layer(form, [1, 2, -3])
        np.testing.assert_array_equal(layer.csr().toarray(), dense)
        assert layer.shape == (3, 3)
        assert layer.nnz == 3
        assert layer.bias.tolist() == [1, 2, -3]
        assert layer.constant is None
        assert layer.row_length is None
        assert not layer.zeros_stay
        assert layer.indices.dtype == np.uint16


def test_equal_weights_take_one_number() -> None:
    layer = ps.Layer(np.eye(5) / 16, -0.3)
    assert layer.constant == 1 / 16
    assert layer.row_length == 1
    assert layer.data.strides == (0,)
    assert layer.bias.strides == (0,)
    assert layer.zeros_stay
    np.testing.assert_array_equal(layer.csr(np.float64).toarray(), np.eye(5) / 16)
    assert ps.Layer(sp.csr_array((3, 4))).constant is None


def test_a_layer_has_its_own_activation_and_bounds() -> None:
    weights = np.eye(3)
    plain, gelu = ps.Layer(weights, -0.5), ps.Layer(weights, -0.5, "gelu")
    relu6, linear = ps.Layer(weights, 0.5, upper=6), ps.Layer(weights, 0.5, "none", lower=-1)
    assert [one.is_plain_relu for one in (plain, gelu, relu6, linear)] == [
        True,
        False,
        False,
        False,
    ]
    # y_max bounds ReLU layers, and no others.
    bounds = [
        (e.lower, e.upper) for e in (one.epilogue(4.0) for one in (plain, gelu, relu6, linear))
    ]
    assert bounds == [(None, 4.0), (None, None), (None, 4.0), (-1.0, None)]
    assert relu6.epilogue(32.0).upper == 6
    network = ps.Network([plain, gelu, relu6, linear], 4.0)
    assert network.layers_filling_zeros == (1, 2, 3)
    others = [
        ps.Network([one]).fingerprint() for one in (plain, gelu, ps.Layer(weights, -0.5, upper=6))
    ]
    assert len(set(others)) == 3
    for arguments, message in (
        ({"activation": "swish"}, "activation is 'swish'; choose one of"),
        ({"lower": 2, "upper": 1}, "lower is 2"),
        ({"upper": "six"}, "upper is 'six'"),
    ):
        with pytest.raises(ps.InputError, match=message):
            ps.Layer(weights, **arguments)


def test_duplicates_are_summed_and_columns_sorted() -> None:
    layer = ps.Layer(sp.coo_array(([1.0, 2, 4], ([0, 0, 0], [2, 1, 2])), shape=(1, 3)))
    assert layer.indices.tolist() == [1, 2]
    assert layer.data.tolist() == [2, 5]


@pytest.mark.parametrize(
    ("given_type", "kept"),
    [
        ("f4", "f4"), ("f8", "f8"), ("i4", "f4"), ("i8", "f8"), ("u8", "f8"), ("?", "f4"),
        (">f4", "f4"), (">f8", "f8"), (">i2", "f4"), ("f2", "f4"), ("g", "f8"),
    ],
)  # fmt: skip
def test_types_are_kept_or_become_floats_that_hold_them(given_type: str, kept: str) -> None:
    dense = np.array([[1, 0], [1, 3]], dtype=given_type)
    forms = [dense]
    if given_type[0] != ">" and given_type != "f2":  # SciPy has no such sparse arrays
        forms += [sp.csr_array(dense), sp.coo_array(dense)]
    for weights in forms:
        layer = ps.Layer(weights)
        assert layer.data.dtype == np.dtype(kept)
        assert layer.data.dtype.isnative
        np.testing.assert_array_equal(layer.csr().toarray(), dense.astype(kept))


def test_arrays_are_read_only_and_the_owner_keeps_his() -> None:
    W = sp.csr_array(np.array([[1.0, 2], [0, 3]]))
    layer = ps.Layer(W)
    W.data[:] = 7
    assert layer.csr().toarray().tolist() == [[1, 2], [0, 3]]
    with pytest.raises(ValueError, match="read-only"):
        layer.data[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        layer.indices[0] = 1


@pytest.mark.parametrize(
    ("extent", "expected"),
    [(1, "uint16"), (1 << 16, "uint16"), ((1 << 16) + 1, "int32"), (1 << 31, "int32"),
     ((1 << 31) + 1, "int64")],
)  # fmt: skip
def test_indices_are_as_narrow_as_they_fit(extent: int, expected: str) -> None:
    assert index_dtype(extent) == np.dtype(expected)
    assert np.iinfo(expected).max >= extent - 1


@pytest.mark.parametrize(
    ("weights", "bias", "message"),
    [
        (np.zeros(3), 0, r"1 dimension\(s\); 2 are expected"),
        (np.array([[np.nan, 1.0]]), 0, r"weight is NaN or infinite \(entry 0\)"),
        (np.array([[1.0, np.inf]]), 0, r"weight is NaN or infinite \(entry 1\)"),
        (np.array([[1j, 1.0]]), 0, r"weights has type complex128; real"),
        (np.eye(2), [1, 2, 3], r"bias has shape \(3,\); \(2,\) or one number fits"),
        (np.eye(2), np.nan, "bias is NaN"),
        (np.eye(2), [0, -np.inf], r"bias is NaN or infinite \(entry 1\)"),
        (np.ma.array(np.eye(2), mask=np.eye(2)), 0, "layer: weights is a masked array"),
        (np.eye(2), np.ma.array([1, 2], mask=[0, 1]), "layer: bias is a masked array"),
    ],
)
def test_what_a_layer_refuses(weights: Any, bias: Any, message: str) -> None:
    with pytest.raises(ps.InputError, match=message):
        ps.Layer(weights, bias)


def test_one_number_for_all_weights_is_a_float32() -> None:
    indptr, indices = np.array([0, 1, 2]), np.array([1, 0])
    message = r"a weight is 1e\+300, beyond the range of float32; give all of them as an array"
    with pytest.raises(ps.InputError, match=message):
        ps.Layer.from_csr(indptr, indices, 1e300, (2, 2))
    if np.finfo(np.longdouble).max > np.finfo(np.float64).max:
        large = np.longdouble("1e4000")
        for data, where in ((large, "weight"), (np.array([large, np.nan]), r"weight \(entry 0\)")):
            with pytest.raises(ps.InputError, match=rf"a {where} is 1e\+4000, beyond the range of"):
                ps.Layer.from_csr(indptr, indices, data, (2, 2))
    layer = ps.Layer.from_csr(indptr, indices, np.array([1e300, 1.0]), (2, 2))
    assert layer.data.tolist() == [1e300, 1.0]


@pytest.mark.parametrize(
    ("indptr", "indices", "message"),
    [
        ([0, 1], [0], "2 row offsets of type int64; 2 rows take 3"),
        ([0, 2, 1], [0, 1], "row offsets"),
        ([1, 1, 2], [0, 1], "row offsets"),
        ([0, 1, 3], [0, 1], "end at 3, but there are 2 column indices"),
        ([0, 1, 2], [0, 3], r"column index 3 is outside 0 \.\. 2"),
        ([0, 1, 2], [-1, 0], r"column index -1 is outside"),
        ([0, 1, 3], [0, 2, 1], "columns of row 1 are unsorted or duplicated"),
        ([0, 2, 2], [1, 1], "columns of row 0 are unsorted or duplicated"),
    ],
)
def test_what_csr_arrays_must_be(indptr: list[int], indices: list[int], message: str) -> None:
    with pytest.raises(ps.InputError, match=message):
        ps.Layer.from_csr(np.array(indptr), np.array(indices), 1.0, (2, 3))


def test_from_csr_copies_what_its_caller_may_change() -> None:
    indptr, indices, data = np.array([0, 1, 2]), np.array([0, 2], np.uint16), np.ones(2, "f4")
    data[1] = 3
    bias = np.array([-1.0, 0, -2])
    layer = ps.Layer.from_csr(indptr, indices, data, (2, 3), bias)
    indptr[:], indices[:], data[:], bias[:] = 7, 7, 7, 7
    assert layer.csr().toarray().tolist() == [[1, 0, 0], [0, 0, 3]]
    assert layer.bias.tolist() == [-1, 0, -2]


def test_from_csr_copies_nothing_that_fits_where_it_need_not() -> None:
    indptr = np.array([0, 1, 2], np.int64)
    indices = np.array([0, 2], np.uint16)
    data = np.array([1.0, 2.0], np.float32)
    layer = ps.Layer.from_csr(indptr, indices, data, (2, 3), copy=False)
    assert np.shares_memory(layer.indptr, indptr)
    assert np.shares_memory(layer.indices, indices)
    assert np.shares_memory(layer.data, data)
    assert indices.flags.writeable


@given(st.data())
def test_a_layer_is_the_matrix_it_was_made_from(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    shape = data.draw(st.tuples(st.integers(0, 20), st.integers(0, 20)))
    dense = rng.integers(-2, 3, shape) * (rng.random(shape) < rng.random())
    layer = ps.Layer(dense.astype(float))
    np.testing.assert_array_equal(layer.csr().toarray(), dense)
    assert layer.nnz == np.count_nonzero(dense)
    again = ps.Layer.from_csr(layer.indptr, layer.indices, layer.data, layer.shape, layer.bias)
    np.testing.assert_array_equal(again.csr().toarray(), dense)
    lengths = np.count_nonzero(dense, axis=1)
    same = lengths[0] if lengths.size and (lengths == lengths[0]).all() else None
    assert layer.row_length == same


def test_a_network_is_a_chain() -> None:
    network = ps.Network([ps.Layer(np.ones((2, 3))), ps.Layer(np.ones((3, 4)), -1)], y_max=32)
    assert (network.neurons, network.neurons_out, network.widest) == (2, 4, 4)
    assert (len(network), network.edges, network.y_max) == (2, 18, 32)
    assert network.sparse_features_exact
    assert ps.Network(network.layers, np.inf).y_max is None


@pytest.mark.parametrize(
    ("layers", "y_max", "message"),
    [
        ([], None, "at least one layer"),
        ([ps.Layer(np.eye(2)), ps.Layer(np.eye(3))], None, "layer 1 gives 2 outputs but layer 2"),
        ([np.eye(2)], None, "layer 1 is a ndarray, not a Layer: make it one by Layer"),
        (ps.Layer(np.eye(2)), None, "layers is a Layer; expected a list of Layer"),
        ([ps.Layer(np.eye(2))], 0, "y_max is 0"),
        ([ps.Layer(np.eye(2))], np.nan, "y_max is nan"),
    ],
)
def test_what_a_network_refuses(layers: Any, y_max: Any, message: str) -> None:
    with pytest.raises(ps.InputError, match=message):
        ps.Network(layers, y_max)


@pytest.mark.parametrize("name", ["bias", "data", "indptr", "shape", "activation", "upper", "nnz"])
def test_a_layer_stays_as_it_was_made(name: str) -> None:
    layer = ps.Layer(np.eye(2), -1.0)
    with pytest.raises(AttributeError, match=f"{name} of a Layer cannot be changed"):
        setattr(layer, name, None)
    with pytest.raises(AttributeError, match=f"{name} of a Layer cannot be removed"):
        delattr(layer, name)


def test_a_network_stays_as_it_was_made() -> None:
    network = ps.Network([ps.Layer(np.eye(2))], 32)
    for name in ("layers", "y_max"):
        with pytest.raises(AttributeError, match=f"{name} of a Network cannot be changed"):
            setattr(network, name, None)
    again = pickle.loads(pickle.dumps(network))
    assert again.fingerprint() == copy.deepcopy(network).fingerprint() == network.fingerprint()


def test_the_caller_keeps_its_bias() -> None:
    bias = np.array([-1.0, -2.0])
    layer = ps.Layer(np.eye(2), bias)
    bias[:] = 7
    assert layer.bias.tolist() == [-1, -2]


@pytest.mark.parametrize("weights", [0.5, np.array([0.5, -1.0, 2.0], np.float32)])
def test_what_single_products_need_of_a_layer_is_made_once(weights: Any) -> None:
    offsets, indices = np.array([0, 1, 3]), np.array([1, 0, 1])
    layer = ps.Layer.from_csr(offsets, indices, weights, (2, 2), bias=[-1.0, 0.0])
    pickled, features = pickle.dumps(layer), np.array([[1.0, 2.0]])
    expected = np.maximum(features @ layer.csr().toarray() + layer.bias, 0)
    for name in ("scipy", "numba"):
        for _ in range(2):
            np.testing.assert_allclose(ps.get_backend(name).layer(layer, features), expected)
    kept, own = layer.kept_csr(), layer.kept_epilogue()
    assert kept is layer.kept_csr()
    assert own is layer.kept_epilogue()
    np.testing.assert_array_equal(own.bias, layer.bias)
    bounded = ps.get_backend("scipy").layer(layer, 9 * features, y_max=3.0)
    np.testing.assert_allclose(bounded, np.clip(9 * features @ kept + layer.bias, 0, 3))
    assert own.upper is None
    np.testing.assert_array_equal(kept.toarray(), layer.csr().toarray())
    assert not any(each.flags.writeable for each in (kept.data, kept.indices, kept.indptr))
    assert all(each.flags.writeable for each in (layer.csr().data, layer.csr().indices))
    assert pickle.dumps(layer) == pickled
