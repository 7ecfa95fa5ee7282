"""Sparse operands whose offsets or indices lie, and arguments of other types: always InputError."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import portable_spdnn as ps

BACKENDS = [info.name for info in ps.backends() if info.availability.available]
ON_HOST = [name for name in BACKENDS if name != "cupy"]
SIZE = 20


def intact(form: str = "csr") -> Any:
    rng = np.random.default_rng(1)
    A = sp.random_array((SIZE, SIZE), density=0.3, rng=rng, dtype=np.float32, format="csr")
    return sp.bsr_array(A, blocksize=(2, 2)) if form == "bsr" else A.asformat(form)


def changed(form: str, part: str, at: int, value: int) -> Any:
    A = intact(form)
    getattr(A, part)[at] = value
    return A


def empty_with_offsets() -> Any:
    A = sp.csr_array((SIZE, SIZE), dtype=np.float32)
    A.indptr[5] = 7
    return A


def without_values() -> Any:
    A = intact()
    A.data = A.data[:5]
    return A


def with_float_indices() -> Any:
    A = intact()
    A.indices = A.indices.astype(float)
    return A


def with_part_of_two_dimensions(part: str) -> Any:
    A = intact()
    setattr(A, part, getattr(A, part)[None])
    return A


def of_shape(*shape: Any, form: str = "csr") -> Any:
    A = intact(form)
    A._shape = shape
    return A


def coo_with(index: int) -> Any:
    A = intact("coo")
    A.coords[0][2] = index
    return A


def lil_with() -> Any:
    A = intact("lil")
    A.rows[0] = [100]
    A.data[0] = [1.0]
    return A


def lil_of(**lists: Any) -> Any:
    """Other columns or values of the first row."""
    A = intact("lil")
    for part, given in lists.items():
        getattr(A, part)[0] = given
    return A


LIES: dict[str, Callable[[], Any]] = {
    "column beyond": lambda: changed("csr", "indices", 3, SIZE),
    "column far beyond": lambda: changed("csr", "indices", 3, 2**30),
    "column below": lambda: changed("csr", "indices", 3, -1),
    "offsets fall": lambda: changed("csr", "indptr", 5, int(intact().indptr[6]) + 3),
    "offset below": lambda: changed("csr", "indptr", 3, -5),
    "offsets begin late": lambda: changed("csr", "indptr", 0, 3),
    "offsets end beyond": lambda: changed("csr", "indptr", -1, 10**9),
    "offsets of no entries": empty_with_offsets,
    "fewer values": without_values,
    "indices are floats": with_float_indices,
    "offsets of two dimensions": lambda: with_part_of_two_dimensions("indptr"),
    "indices of two dimensions": lambda: with_part_of_two_dimensions("indices"),
    "values of two dimensions": lambda: with_part_of_two_dimensions("data"),
    "negative rows": lambda: of_shape(-SIZE, SIZE),
    "negative columns": lambda: of_shape(SIZE, -SIZE),
    "rows are None": lambda: of_shape(None, SIZE),
    "columns are a float": lambda: of_shape(SIZE, float(SIZE)),
    "rows are a text": lambda: of_shape(str(SIZE), SIZE),
    "rows of csc are None": lambda: of_shape(None, SIZE, form="csc"),
    "columns of csc are a float": lambda: of_shape(SIZE, float(SIZE), form="csc"),
    "rows of csc beyond any memory": lambda: of_shape(2**62, SIZE, form="csc"),
    "columns are true": lambda: of_shape(SIZE, True),
    "rows beyond any memory": lambda: of_shape(2**62, SIZE),
    "columns beyond 64 bits": lambda: of_shape(SIZE, 2**70),
    "row of csc beyond": lambda: changed("csc", "indices", 3, 500),
    "offsets of csc fall": lambda: changed("csc", "indptr", 5, 10**6),
    "row of coo below": lambda: coo_with(-7),
    "row of coo beyond": lambda: coo_with(SIZE),
    "block of bsr beyond": lambda: changed("bsr", "indices", 1, 99),
    "column of lil beyond": lil_with,
    "more values than columns of lil": lambda: lil_of(data=[1.0] * 100_000),
    "values of lil are none": lambda: lil_of(data=None),
    "columns of lil are an array": lambda: lil_of(rows=np.arange(2)),
    "fewer rows than lists of lil": lambda: of_shape(1, SIZE, form="lil"),
    "more rows than lists of lil": lambda: of_shape(2 * SIZE, SIZE, form="lil"),
    "no shape": lambda: of_shape(),
    "complex": lambda: intact().astype(complex),
    "one dimension": lambda: sp.coo_array(np.ones(SIZE)),
}


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("lie", LIES)
def test_no_operation_takes_a_matrix_that_lies(name: str, lie: str) -> None:
    backend, good, dense = ps.get_backend(name), intact(), np.ones((SIZE, 3), np.float32)
    network = ps.Network([ps.Layer(good)])
    handle, plan = backend.layer_handle(good), ps.plan(network, backend)
    operations: list[Callable[[Any], Any]] = [
        lambda A: backend.spmm(A, dense),
        lambda A: backend.spmm_handle(A, columns=3),
        lambda A: backend.spgemm(A, good),
        lambda A: backend.spgemm_handle(good, A),
        lambda A: backend.layer(A, dense.T),
        lambda A: backend.layer(good, A),
        handle.apply,
        plan.run,
        ps.Layer,
    ]
    for operation in operations:
        with pytest.raises(ps.InputError):
            operation(LIES[lie]())


def test_matrices_that_only_look_odd_are_taken() -> None:
    good, dense = intact(), np.ones((SIZE, 3), np.float32)
    spare = intact()
    spare.data = np.append(spare.data, [9, 9]).astype(np.float32)
    spare.indices = np.append(spare.indices, [10**6, -1]).astype(spare.indices.dtype)
    unsorted = good[:, ::-1][:, ::-1]
    duplicated = sp.csr_array(
        (np.repeat(good.data / 2, 2), np.repeat(good.indices, 2), 2 * good.indptr), good.shape
    )
    wide = good.copy()
    wide.indptr = wide.indptr.astype(np.int64)
    for name in BACKENDS:
        backend = ps.get_backend(name)
        expected = backend.download(backend.spmm(good, dense))
        for A in (spare, unsorted, duplicated, wide, *map(intact, ("csc", "coo", "bsr", "dia"))):
            found = backend.download(backend.spmm(A, dense))
            np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("name", BACKENDS)
def test_handles_keep_what_they_were_made_of(name: str) -> None:
    backend, A, B = ps.get_backend(name), intact(), intact()
    expected = backend.download(backend.spgemm(A, B)).toarray()
    handle = backend.spgemm_handle(A, B)
    for array in (A.indices, A.indptr, A.data, B.indices, B.indptr, B.data):
        array[:] = 10**6
    np.testing.assert_array_equal(backend.download(handle.numeric()).toarray(), expected)


def test_flags_of_scipy_are_not_believed() -> None:
    network = ps.Network([ps.Layer(np.eye(5), -0.3)])
    A = sp.csr_array(np.triu(np.ones((5, 5))) * 0.2)
    assert A.has_canonical_format
    A.indices[:5] = 4  # five entries of one place, which add up to 1
    for name in BACKENDS:
        for path in ("spmm", "spgemm"):
            assert ps.infer(network, A, name, path=path).categories.tolist() == [0]
    assert ps.Layer(A).csr().toarray()[0].tolist() == [0, 0, 0, 0, 1]


@pytest.mark.parametrize(
    "arguments",
    [
        ([], [], 1.0, (-1, 3)), ([0], [], 1.0, (0, -3)), ([0, 0], [], 1.0, (1, 1 << 62)),
        ([0, 0], [], 1.0, (1,)), ([0, 0], [], 1.0, 3), ([0, 0], [], 1.0, (1.5, 1)),
        ([0, 0], [], 1.0, ("1", "1")), ([[0], [1, 2]], [], 1.0, (1, 1)),
        ([0, 1], [0], [[1], [1, 2]], (1, 1)), ([0, 1], [5], 1.0, (1, 1)),
    ],
)  # fmt: skip
def test_layers_of_arrays_that_are_none(arguments: Any) -> None:
    with pytest.raises(ps.InputError, match="layer"):
        ps.Layer.from_csr(*arguments)
    assert ps.Layer.from_csr([0, 0], [], [], (1, 1)).nnz == 0


def test_duplicates_are_summed_in_the_type_of_the_result() -> None:
    twice = sp.coo_array((np.array([100, 100], np.int8), ([0, 0], [1, 1])), shape=(2, 2))
    assert ps.Layer(twice).csr().toarray().tolist() == [[0, 200], [0, 0]]
    for name in BACKENDS:
        backend = ps.get_backend(name)
        product = backend.download(backend.spmm(twice, np.eye(2, dtype=np.float32)))
        assert product.tolist() == [[0, 200], [0, 0]]


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize(
    "values", [np.ones(3), 1j * np.ones(intact().nnz), ["x"] * intact().nnz, "x", [None]]
)
def test_new_values_are_numbers_one_for_each_entry(name: str, values: Any) -> None:
    handle = ps.get_backend(name).spgemm_handle(intact(), intact())
    for arguments in ({"A_data": values}, {"B_data": values}):
        with pytest.raises(ps.InputError, match="spgemm: new values for"):
            handle.numeric(**arguments)


@pytest.mark.parametrize(
    ("action", "name"),
    [
        (lambda value: ps.Network([ps.Layer(np.eye(2))], value), "y_max"),
        (lambda value: ps.PlanOptions(batch_size=value), "batch_size"),
        (lambda value: ps.PlanOptions(exact_passes=value), "exact"),
        (lambda value: ps.PlanOptions(dtype=value), "dtype"),
        (lambda value: ps.get_backend("numba", threads=value), "threads"),
        (lambda value: ps.get_backend("scipy").spmm_handle(intact(), columns=value), "columns"),
        (lambda value: ps.Epilogue(activation=value), "activation"),
    ],
)
@pytest.mark.parametrize("value", ["x", -1, 0.5j, True, b"1", [2, 3], 10**30])
def test_arguments_of_other_types_are_named(
    action: Callable[[Any], Any], name: str, value: Any
) -> None:
    if (name, value) == ("y_max", 10**30):
        assert action(value).y_max == 1e30
        return
    with pytest.raises(ps.InputError, match=name):
        action(value)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("dtype", ["f2", ">f4", ">f8", ">i2", "i1", "i8", "u8", "?", "g"])
def test_dense_numbers_of_every_type_are_taken(name: str, dtype: str) -> None:
    backend = ps.get_backend(name)
    A, B = np.array([[1, 0], [1, 1]], dtype), np.array([[1, 0], [0, 1]], dtype)
    layer = ps.Layer(A)
    scores = ps.infer(ps.Network([layer]), B, backend).scores
    np.testing.assert_array_equal(np.asarray(scores), A.astype(float))
    product = backend.download(backend.spmm(layer.csr(), B))
    np.testing.assert_array_equal(product, A.astype(float))
    assert product.dtype == (np.float64 if np.dtype(dtype).itemsize >= 8 else np.float32)


def test_a_weight_beyond_float32_is_named() -> None:
    network = ps.Network([ps.Layer(np.eye(2)), ps.Layer(np.array([[1e300], [1.0]]))])
    with pytest.raises(ps.InputError, match=r"layer 2: a weight of magnitude 1e\+300"):
        ps.plan(network, "scipy")
    found = ps.infer(network, np.eye(2), "scipy", dtype="float64").scores
    np.testing.assert_array_equal(np.asarray(found), [[1e300], [1]])


@pytest.mark.parametrize("name", BACKENDS)
def test_merging_neurons_rounds_no_sum_of_weights(name: str) -> None:
    first = ps.Layer(np.ones((1, 2), np.float32))
    second = ps.Layer(np.array([[1], [2.0**-30]], np.float32), -1)
    network = ps.Network([first, second])
    for passes in ("none", "merge-neurons"):
        options = {"dtype": "float64", "exact_passes": passes}
        assert ps.infer(network, np.ones((1, 1)), name, **options).categories.tolist() == [0]


@pytest.mark.parametrize("name", ON_HOST)
def test_indices_of_either_byte_order(name: str) -> None:
    backend, swapped = ps.get_backend(name), sp.csr_array(np.tri(40))
    expected = backend.spmm(swapped, np.ones((40, 2)))
    swapped.indices, swapped.indptr = swapped.indices.astype(">i4"), swapped.indptr.astype(">i4")
    np.testing.assert_array_equal(backend.spmm(swapped, np.ones((40, 2))), expected)
    softmax = backend.sparse_softmax(swapped)
    np.testing.assert_allclose(softmax.toarray().sum(axis=1), 1)
    scores = backend.sddmm(swapped, np.eye(40), np.eye(40))
    np.testing.assert_array_equal(scores.toarray(), np.eye(40))


@pytest.mark.parametrize("name", ON_HOST)
def test_space_to_spare_of_integers(name: str) -> None:
    A = sp.csr_array(np.eye(3, dtype=np.int32))
    A.data = np.append(A.data, np.int32(7))
    found = ps.get_backend(name).spmm(A, np.ones((3, 2)))
    np.testing.assert_array_equal(found, np.ones((3, 2)))


@pytest.mark.parametrize("name", ON_HOST)
def test_masked_arrays_and_numbers_beyond_float32_are_named(name: str) -> None:
    backend, A = ps.get_backend(name), sp.csr_array(np.eye(4, dtype=np.float32))
    handle, masked = backend.spmm_handle(A), np.ma.masked_equal(np.eye(4, dtype=np.float32), 1)
    with pytest.raises(ps.InputError, match="B is a masked array"):
        handle.multiply(masked)
    with pytest.raises(ps.InputError, match="out is MaskedArray"):
        handle.multiply(np.eye(4, dtype=np.float32), masked)
    for scale in (10**400, 1e39, float("nan"), True):
        with pytest.raises(ps.InputError, match="sddmm: scale is"):
            backend.sddmm(A, np.eye(4), np.eye(4), scale)
    vector = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(handle.multiply(memoryview(vector)), vector)
    with pytest.raises(ps.InputError, match="out is memoryview"):
        handle.multiply(vector, memoryview(vector.copy()))


@pytest.mark.parametrize("name", ON_HOST)
def test_one_infinite_weight_for_all_meets_stored_entries_alone(name: str) -> None:
    weights = np.zeros((8, 8), np.float32)
    weights[:4, :6] = np.inf
    B = np.arange(2048, dtype=np.float32).reshape(8, 256)
    found = ps.get_backend(name).spmm_handle(sp.csr_array(weights)).multiply(B)
    assert np.isnan(found[:4, 0]).all()  # infinity times 0
    assert (found[:4, 1:] == np.inf).all()
    assert (found[4:] == 0).all()


def test_a_trial_of_nothing_takes_no_memory() -> None:
    empty = sp.csr_array((0, 0), dtype=np.float32)
    for name in ON_HOST:
        handle = ps.get_backend(name).spmm_handle(empty, columns=10**15)
        assert handle.multiply(np.ones((0, 3), np.float32)).shape == (0, 3)
