"""Operands of other libraries, on the emulated device and in host memory."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from cuda_emulation.emulated_backend import EmulatedCupyBackend
from cuda_emulation.emulated_device import EmulatedArray, allocate, compiler

import portable_spdnn as ps
from portable_spdnn.plans.planner import make_plan
from portable_spdnn.testing import oracle
from portable_spdnn_gpu.device import matrices
from portable_spdnn_gpu.device.cuda_device import CudaDevice
from portable_spdnn_gpu.device.matrices import DeviceCsr, upload_csr
from portable_spdnn_gpu.device.operands import adopt_dense, adopt_sparse

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler (g++, clang++)")


class ForeignArray:
    """An array of another library in the device's memory; says so by the CUDA array interface."""

    def __init__(self, values: Any, read_only: bool = False, **interface: Any) -> None:
        self.owner = values if isinstance(values, EmulatedArray) else allocate(np.asarray(values))
        inner = self.owner.values
        self.__cuda_array_interface__ = {
            "shape": inner.shape,
            "typestr": inner.dtype.str,
            "data": (inner.ctypes.data, read_only),
            "strides": None if inner.flags.c_contiguous else inner.strides,
            "version": 3,
            "stream": 1,
            **interface,
        }

    @property
    def address(self) -> int:
        return int(self.__cuda_array_interface__["data"][0])


class DlpackArray:
    """An array that speaks DLPack alone."""

    def __init__(self, values: Any, device: tuple[int, int] = (1, 0)) -> None:
        self.values, self.device = values, device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **options: Any) -> Any:
        return self.values.__dlpack__(**options)


class ForeignCsr:
    """What `cupyx.scipy.sparse` matrices have, with parts on the emulated device."""

    def __init__(self, matrix: Any, index: Any = np.int32) -> None:
        self.host, self.shape, self.format, self.dtype = matrix, matrix.shape, "csr", matrix.dtype
        if matrix.format != "csr":
            self.format, self.data = matrix.format, allocate(matrix.data)
            return
        self.indptr = allocate(matrix.indptr.astype(index))
        self.indices = allocate(matrix.indices.astype(index))
        self.data = allocate(matrix.data)
        self.has_canonical_format = bool(sp.csr_array(matrix).has_canonical_format)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def tocsr(self) -> ForeignCsr:
        return self if self.format == "csr" else ForeignCsr(self.host.tocsr())

    def copy(self) -> ForeignCsr:
        return ForeignCsr(self.host.copy())

    def astype(self, dtype: Any) -> ForeignCsr:
        return ForeignCsr(self.host.astype(dtype))

    def sum_duplicates(self) -> None:
        self.host.sum_duplicates()
        ForeignCsr.__init__(self, self.host)


@pytest.fixture
def backend() -> EmulatedCupyBackend:
    return EmulatedCupyBackend()


def random_csr(rng: np.random.Generator, shape: tuple[int, int], dtype: Any = np.float32) -> Any:
    dense = np.where(rng.random(shape) < 0.3, rng.uniform(-1, 1, shape), 0)
    return sp.csr_array(dense.astype(dtype))


def address(array: EmulatedArray) -> int:
    return int(array.values.ctypes.data)


# -- dense --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dense_operands_are_used_where_they_are(
    backend: EmulatedCupyBackend, monkeypatch: pytest.MonkeyPatch, dtype: Any
) -> None:
    rng = np.random.default_rng(1)
    A = random_csr(rng, (20, 30), dtype)
    values = rng.uniform(-1, 1, (30, 9)).astype(dtype)
    B = ForeignArray(values, read_only=True)
    adopted = backend.dense_operand("spmm: B", B)
    assert address(adopted) == B.address
    assert address(backend.upload(B)) == B.address
    expected = oracle.spmm(A, values)
    handle = backend.spmm_handle(A)
    uploads: list[int] = []
    monkeypatch.setattr(
        backend.cuda, "upload", lambda host: uploads.append(host.size) or allocate(host)
    )
    results = [handle.multiply(B)]
    assert values.size not in uploads
    results.append(backend.spmm(A, B))
    for result in results:
        assert isinstance(result, EmulatedArray)
        np.testing.assert_allclose(backend.download(result), expected, rtol=2e-5, atol=1e-5)
    np.testing.assert_array_equal(B.owner.values, values)


def test_layers_take_dense_features_of_any_strides(backend: EmulatedCupyBackend) -> None:
    rng = np.random.default_rng(2)
    W = random_csr(rng, (30, 17))
    bias = rng.uniform(-0.2, 0.2, 17)
    memory = allocate(rng.uniform(0, 1, (12, 31)).astype(np.float32))
    for view in (memory.values[:, 1:], memory.values[::-2, :30], memory.values[:, :30]):
        features = ForeignArray(EmulatedArray(memory.memory, view), strides=view.strides)
        assert address(adopt_dense(backend.cuda, "Y", features)) == view.ctypes.data
        expected = oracle.layer(W, view, bias, 1.0)
        handle = backend.layer_handle(W, bias, 1.0)
        for result in (backend.layer(W, features, bias, 1.0), handle.apply(features)):
            np.testing.assert_allclose(backend.download(result), expected, rtol=2e-5, atol=1e-5)
    fortran = allocate(np.asfortranarray(memory.values[:, :30]))
    features = ForeignArray(fortran)
    assert address(backend.dense_operand("Y", features)) == features.address
    np.testing.assert_allclose(
        backend.download(backend.layer(W, features, bias, 1.0)), expected, rtol=2e-5, atol=1e-5
    )


def test_narrow_types_are_widened_and_empty_arrays_taken(backend: EmulatedCupyBackend) -> None:
    A = sp.csr_array(np.eye(3, 4))
    whole = np.arange(8).reshape(4, 2)
    for dtype in (bool, np.uint8, np.int32, np.float16):
        result = backend.spmm(A.astype(np.float32), ForeignArray(whole.astype(dtype)))
        assert result.dtype == np.float32
        np.testing.assert_array_equal(backend.download(result), whole[:3].astype(dtype))
    assert backend.spmm(A, ForeignArray(whole)).dtype == np.float64
    empty = ForeignArray(np.empty((4, 0), np.float32), data=(0, False))
    assert backend.spmm(A, empty).shape == (3, 0)


def test_dense_operands_of_the_host_go_through_numpy(backend: EmulatedCupyBackend) -> None:
    A = sp.csr_array(np.eye(3, 4, dtype=np.float32))
    values = np.arange(8, dtype=np.float32).reshape(4, 2)
    for chosen in (backend, ps.get_backend("scipy")):
        for B in (DlpackArray(values), DlpackArray(values, (3, 0)), memoryview(values)):
            np.testing.assert_array_equal(chosen.download(chosen.spmm(A, B)), values[:3])


class Gradient:
    """As a tensor that takes part in a gradient: it gives nothing away."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)

    @property
    def __cuda_array_interface__(self) -> Any:
        raise RuntimeError("use tensor.detach() first")


def refusal(values: Any = None, **interface: Any) -> ForeignArray:
    return ForeignArray(np.ones((4, 2)) if values is None else values, **interface)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: refusal(mask=refusal()), r"spmm: B has a mask, .* fill the entries"),
        (lambda: refusal(np.ones((4, 2), np.complex64)), "spmm: B has type complex64; .* float32"),
        (lambda: refusal(typestr=">f8"), "spmm: B has type >f8; .* little-endian"),
        (lambda: refusal(data=(16, False)), "spmm: B: ForeignArray cannot .* not in the device's"),
        (lambda: refusal(np.ones(4)), r"spmm: B has 1 dimension\(s\)"),
        (lambda: DlpackArray(None, (10, 0)), r"spmm: B is in .* another kind \(number 10 of DLP"),
        (Gradient, r"spmm: B: Gradient cannot be used where it is: use tensor.detach\(\) first"),
        (lambda: allocate(np.ones((4, 2), complex)), "spmm: B has type complex128"),
        (lambda: sp.csr_array(np.ones((4, 2))), "spmm: B is csr_array, sparse; a dense array"),
        (lambda: ForeignCsr(sp.csr_array(np.ones((4, 2)))), "spmm: B is ForeignCsr, sparse"),
        (lambda: [[1, 2], [3]], "spmm: B: list cannot be read as an array"),
        (lambda: np.ones((4, 2), complex), ": B has type complex128"),
    ],
    ids=["mask", "complex", "endian", "address", "dimension", "kind", "gradient", "own", "scipy",
         "sparse", "ragged", "host"],
)  # fmt: skip
def test_refused_dense_operands(backend: EmulatedCupyBackend, make: Any, message: str) -> None:
    A = sp.csr_array(np.eye(3, 4))
    with pytest.raises(ps.InputError, match=message):
        backend.spmm(A, make())


def test_out_of_another_library_is_refused(backend: EmulatedCupyBackend) -> None:
    handle = backend.spmm_handle(sp.csr_array(np.eye(3, 4)))
    with pytest.raises(ps.InputError, match="spmm: out is ForeignArray; an ndarray, or an array"):
        handle.multiply(np.ones((4, 2)), ForeignArray(np.ones((3, 2))))


# -- sparse -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_canonical_csr_shares_all_its_parts(backend: EmulatedCupyBackend, dtype: Any) -> None:
    rng = np.random.default_rng(3)
    host = random_csr(rng, (11, 13), dtype)
    foreign = ForeignCsr(host)
    for adopted in (backend.sparse_operand("A", foreign), backend.upload(foreign)):
        assert isinstance(adopted, DeviceCsr)
        assert adopted.shape == (11, 13)
        assert adopted.dtype == dtype
        for ours, theirs in zip(
            (adopted.indptr, adopted.indices, adopted.data),
            (foreign.indptr, foreign.indices, foreign.data),
            strict=True,
        ):
            assert address(ours) == address(theirs)
    wide = ForeignCsr(host, np.int64)
    adopted = adopt_sparse(backend.cuda, "A", wide)
    assert adopted.indptr.dtype == adopted.indices.dtype == np.int32
    assert address(adopted.data) == address(wide.data)
    np.testing.assert_array_equal(backend.download(adopted).toarray(), host.toarray())


def test_parts_may_be_of_a_third_library(backend: EmulatedCupyBackend) -> None:
    host = random_csr(np.random.default_rng(4), (6, 7))
    foreign = ForeignCsr(host)
    for part in ("indptr", "indices", "data"):
        setattr(foreign, part, ForeignArray(getattr(foreign, part)))
    adopted = backend.sparse_operand("A", foreign)
    assert address(adopted.data) == foreign.data.address
    np.testing.assert_array_equal(backend.download(adopted).toarray(), host.toarray())


def test_every_operation_takes_foreign_sparse_operands(backend: EmulatedCupyBackend) -> None:
    rng = np.random.default_rng(5)
    A, B = random_csr(rng, (12, 15)), random_csr(rng, (15, 10))
    W, Y = random_csr(rng, (15, 10)), abs(random_csr(rng, (12, 15)))
    dense = rng.uniform(-1, 1, (15, 4)).astype(np.float32)
    tolerance = {"rtol": 2e-5, "atol": 1e-5}
    foreign_A, foreign_B = ForeignCsr(A), ForeignCsr(B)
    expected = oracle.spmm(A, dense)
    for C in (backend.spmm(foreign_A, dense), backend.spmm_handle(foreign_A).multiply(dense)):
        np.testing.assert_allclose(backend.download(C), expected, **tolerance)
    expected, _ = oracle.spgemm(A, B)
    handle = backend.spgemm_handle(foreign_A, foreign_B)
    for C in (backend.spgemm(foreign_A, foreign_B), backend.spgemm(A, foreign_B), handle.numeric()):
        np.testing.assert_allclose(backend.download(C).toarray(), expected, **tolerance)
    bias = np.full(10, -0.1)
    expected = oracle.layer(W, Y.toarray(), bias, 1.0)
    layers = backend.layer_handle(ForeignCsr(W), bias, 1.0)
    for features in (ForeignCsr(Y), ForeignArray(Y.toarray())):
        for result in (
            backend.layer(ForeignCsr(W), features, bias, 1.0),
            layers.apply(features),
        ):
            sparse = isinstance(features, ForeignCsr)
            assert isinstance(result, DeviceCsr) == sparse
            host = backend.download(result)
            np.testing.assert_allclose(host.toarray() if sparse else host, expected, **tolerance)


@pytest.mark.parametrize("form", ["unsorted", "csc", "coo"])
def test_other_forms_become_canonical_and_stay_as_they_are(
    backend: EmulatedCupyBackend, form: str
) -> None:
    # Row 0 holds column 2 twice and out of order.
    host = sp.csr_array(
        (np.array([1, 2, 4], np.float32), np.array([2, 0, 2]), np.array([0, 3, 3])), shape=(2, 3)
    )
    foreign = ForeignCsr(host if form == "unsorted" else host.asformat(form))
    before = foreign.data.values.copy()
    adopted = backend.sparse_operand("A", foreign)
    downloaded = backend.download(adopted)
    assert downloaded.indices.tolist() == [0, 2]
    np.testing.assert_array_equal(downloaded.toarray(), [[2, 0, 5], [0, 0, 0]])
    large = sp.csr_array((np.array([1 << 24, 1], np.float32), [2, 2], [0, 2, 2]), shape=(2, 3))
    wide = backend.sparse_operand(
        "A", ForeignCsr(large.asformat("csr" if form == "unsorted" else form)), np.float64
    )
    assert backend.download(wide).toarray()[0, 2] == (1 << 24) + 1
    np.testing.assert_array_equal(foreign.data.values, before)
    assert foreign.format == ("csr" if form == "unsorted" else form)


def test_refused_sparse_operands(
    backend: EmulatedCupyBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    B = np.ones((3, 2))
    with pytest.raises(ps.InputError, match=r"spmm: A has type complex128; .* convert it"):
        backend.spmm(ForeignCsr(sp.csr_array(np.eye(3, dtype=complex))), B)
    with pytest.raises(ps.InputError, match=r"spmm: A is EmulatedArray; a scipy.sparse"):
        backend.spmm(allocate(np.eye(3)), B)
    vector = ForeignCsr(sp.csr_array(np.eye(3)))
    vector.shape = (9,)
    with pytest.raises(ps.InputError, match=r"spmm: A has 1 dimension"):
        backend.spmm(vector, B)
    short = ForeignCsr(sp.csr_array(np.eye(3)))
    short.indptr = allocate(np.zeros(3, np.int32))
    with pytest.raises(ps.InputError, match=r"spmm: A: row offsets of shape \(3,\), .* 3 rows"):
        backend.spmm(short, B)
    monkeypatch.setattr(matrices, "INDEX_LIMIT", 5)
    with pytest.raises(ps.InputError, match="spmm: A: 3 x 3 with 6 entries is too large"):
        backend.spmm(ForeignCsr(sp.csr_array(np.triu(np.ones((3, 3))))), B)


def test_results_become_cupyx_matrices_without_a_copy(
    backend: EmulatedCupyBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def csr_matrix(parts: Any, shape: Any) -> Any:
        return SimpleNamespace(parts=parts, shape=shape, has_canonical_format=None)

    def no_library(parts: Any, shape: Any) -> Any:
        raise ImportError('Failure finding "libcusparse"\nlistdir()')

    for name in ("cupyx", "cupyx.scipy", "cupyx.scipy.sparse"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    C = upload_csr(backend.cuda, sp.csr_array(np.eye(2, 3)))
    monkeypatch.setattr(sys.modules["cupyx.scipy.sparse"], "csr_matrix", csr_matrix, raising=False)
    made = C.to_cupyx()
    assert made.parts == (C.data, C.indices, C.indptr)
    assert made.shape == (2, 3)
    assert made.has_canonical_format
    monkeypatch.setattr(sys.modules["cupyx.scipy.sparse"], "csr_matrix", no_library)
    with pytest.raises(ps.InputError, match=r'\(Failure finding "libcusparse"\); .* extra ctk'):
        C.to_cupyx()


# -- plans --------------------------------------------------------------------------------------


def test_plans_take_features_on_the_device(backend: EmulatedCupyBackend) -> None:
    network = ps.radixnet(64, 3, bias=-0.3)
    Y = np.random.default_rng(0).random((9, 64)) < 0.4
    plan = make_plan(backend, network, ps.PlanOptions(path="spmm"))
    expected = make_plan(ps.get_backend("scipy"), network).run(Y)
    csr = sp.csr_array(Y.astype(np.float32))
    for features in (
        allocate(Y), ForeignArray(Y), ForeignArray(Y.astype(np.float64)), ForeignCsr(csr),
        upload_csr(backend.cuda, csr), DlpackArray(Y.astype(np.float32)),
    ):  # fmt: skip
        result = plan.run(features)
        np.testing.assert_array_equal(result.categories, expected.categories)
        np.testing.assert_allclose(result.scores, expected.scores, rtol=1e-5)
    unfit = ForeignArray(np.ones((2, 5)))
    with pytest.raises(ps.InputError, match="features have 5 columns but the network takes 64"):
        plan.run(unfit)


def test_backends_of_the_host_name_what_is_on_a_device() -> None:
    network = ps.radixnet(64, 2, bias=-0.3)
    backend = ps.get_backend("scipy")
    Y = np.ones((2, 64))
    for features in (ForeignArray(Y), DlpackArray(Y, (2, 0)), ForeignCsr(sp.csr_array(Y))):
        if isinstance(features, ForeignCsr):
            features.data = ForeignArray(features.data)
        with pytest.raises(ps.InputError, match=r"features: .* in a device's memory .*\.get\(\)"):
            make_plan(backend, network).run(features)
    with pytest.raises(ps.InputError, match=r"spmm: B: .*ForeignArray is in a device's memory"):
        backend.spmm(sp.csr_array(np.eye(2)), ForeignArray(Y))


# -- CuPy's side --------------------------------------------------------------------------------


def cuda_device(of_device: int = 0) -> tuple[CudaDevice, list[str]]:
    """Return a CudaDevice on stand-ins of what `adopt` calls, and the list of calls."""
    calls: list[str] = []

    def take(how: str) -> Any:
        def called(array: Any) -> Any:
            calls.append(how)
            return SimpleNamespace(device=SimpleNamespace(id=of_device), array=array)

        return called

    device = object.__new__(CudaDevice)
    device._library = SimpleNamespace(from_dlpack=take("dlpack"), asarray=take("interface"))
    device._device = SimpleNamespace(id=0)
    return device, calls


def test_the_protocol_that_orders_streams_is_taken() -> None:
    device, calls = cuda_device()
    both = ForeignArray(np.ones(3))
    assert device.adopt(both).array is both
    tensor = DlpackArray(np.ones(3), (2, 0))
    device.adopt(tensor)
    tensor.__cuda_array_interface__ = {"version": 2}  # type: ignore[attr-defined]
    device.adopt(tensor)
    tensor.__cuda_array_interface__ = {"version": 3, "stream": 7}  # type: ignore[attr-defined]
    device.adopt(tensor)
    assert calls == ["interface", "dlpack", "dlpack", "interface"]
    device, _ = cuda_device(of_device=1)
    with pytest.raises(ValueError, match="on CUDA device 1 and the backend on device 0"):
        device.adopt(both)
