"""CuPy and cuSPARSE without a GPU: NumPy, SciPy, and pointers to host memory."""

from __future__ import annotations

import ctypes
import itertools
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

ROW, COLUMN = 2, 1  # cusparseOrder_t, as CuPy gives them
TYPES = {0: np.float32, 1: np.float64}  # cudaDataType: CUDA_R_32F and CUDA_R_64F


class PointedArray(np.ndarray):
    """An ndarray with CuPy's way to its address."""

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.ctypes.data)


class HostDevice:
    """Memory of the host where the launch code has a device."""

    description = "host"

    def __init__(self) -> None:
        self.uploads = 0

    def empty(self, shape: tuple[int, ...], dtype: Any, order: str = "C") -> Any:
        array = np.empty(shape, dtype, order).view(PointedArray)
        array.view(np.ndarray).reshape(-1).view(np.uint8)[:] = 0xFF  # NaN, where it is a float
        return array

    def upload(self, array: Any) -> Any:
        self.uploads += 1
        return np.array(array).view(PointedArray)

    def download(self, array: Any) -> Any:
        return np.array(array)

    def synchronize(self) -> None:
        return None


class CuSparseError(RuntimeError):
    pass


class HostCusparse(ModuleType):
    """The part of `cupy_backends.cuda.libs.cusparse` that a product takes, on host memory.

    Signatures and constants are CuPy's. Descriptors hold what they are made of, and the
    product reads its operands through them.
    """

    CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO = 2, 0
    CUSPARSE_OPERATION_NON_TRANSPOSE = 0
    CUSPARSE_ORDER_ROW, CUSPARSE_ORDER_COL = ROW, COLUMN
    CuSparseError = CuSparseError

    def __init__(self) -> None:
        super().__init__("cusparse")
        self._numbers = itertools.count(1)
        self.made: dict[int, Any] = {}
        self.products: list[tuple[int, int]] = []  # algorithm, order

    def _make(self, what: Any) -> int:
        number = next(self._numbers)
        self.made[number] = what
        return number

    def createCsr(  # noqa: N802
        self, rows: int, cols: int, nnz: int, offsets: int, indices: int, values: int,
        offsets_type: int, indices_type: int, base: int, value_type: int,
    ) -> int:  # fmt: skip
        assert (offsets_type, indices_type, base) == (2, 2, 0)
        parts = (
            read(values, nnz, TYPES[value_type]),
            read(indices, nnz, np.int32),
            read(offsets, rows + 1, np.int32),
        )
        return self._make(sp.csr_array(parts, shape=(rows, cols)))

    def createDnMat(  # noqa: N802
        self, rows: int, cols: int, ld: int, values: int, value_type: int, order: int
    ) -> int:
        assert rows > 0
        assert cols > 0
        outer, inner = (rows, cols) if order == ROW else (cols, rows)
        assert ld >= inner
        whole = read(values, outer * ld, TYPES[value_type]).reshape(outer, ld)[:, :inner]
        return self._make((whole if order == ROW else whole.T, order))

    def destroySpMat(self, number: int) -> None:  # noqa: N802
        del self.made[number]

    destroyDnMat = destroySpMat  # noqa: N815

    def csrGet(self, number: int) -> Any:  # noqa: N802
        return self.made[number]

    dnMatGet = csrGet  # noqa: N815

    def spMM_bufferSize(self, handle: int, *call: Any) -> int:  # noqa: N802
        assert len(call) == 9
        return 7

    def spMM(  # noqa: N802
        self, handle: int, op_a: int, op_b: int, alpha: int, a: int, b: int, beta: int, c: int,
        compute_type: int, algorithm: int, buffer: int,
    ) -> None:  # fmt: skip
        assert (op_a, op_b) == (0, 0)
        assert buffer
        A, (B, order), (C, c_order) = (self.made[number] for number in (a, b, c))
        scalars = [read(scalar, 1, TYPES[compute_type])[0] for scalar in (alpha, beta)]
        if c_order != order or A.dtype != TYPES[compute_type]:
            raise CuSparseError("CUSPARSE_STATUS_INVALID_VALUE")
        # As the worst library would: what C holds takes part, with the factor beta.
        C[...] = scalars[0] * (A @ B) + scalars[1] * C
        self.products.append((algorithm, order))


class Descriptor:
    """As `cupyx.cusparse.BaseDescriptor`."""

    def __init__(self, descriptor: int, get: Any, destroy: Any) -> None:
        self.desc, self._destroy = descriptor, destroy

    def __del__(self) -> None:
        self._destroy(self.desc)


class ActivationKernel:
    """As `cupy.ElementwiseKernel`, of the one operation that there is."""

    def __init__(self, inputs: str, outputs: str, operation: str, name: str) -> None:
        assert (inputs, outputs) == ("T z, T bias, T limit", "T y")
        self.name = name

    def __call__(self, z: Any, bias: Any, limit: Any, y: Any) -> None:
        assert z.dtype == bias.dtype == limit.dtype == y.dtype
        v = z + bias
        v = np.where(v < 0, 0, v)
        y[...] = np.where(v > limit, limit, v)


def read(address: int, size: int, dtype: Any) -> Any:
    """Return memory at an address as an array."""
    nbytes = size * np.dtype(dtype).itemsize
    if not nbytes:
        return np.empty(0, dtype)
    return np.frombuffer((ctypes.c_char * nbytes).from_address(address), dtype)


def install(monkeypatch: pytest.MonkeyPatch) -> HostCusparse:
    """Put the stand-ins where CuPy's modules are imported from; returns that of cuSPARSE."""
    cusparse = HostCusparse()
    cupy = ModuleType("cupy")
    for name in ("any", "arange", "count_nonzero", "expand_dims", "flatnonzero", "unpackbits"):
        setattr(cupy, name, pointed(getattr(np, name)))
    cupy.take = np.take  # type: ignore[attr-defined]
    cupy.ElementwiseKernel = ActivationKernel  # type: ignore[attr-defined]
    cupy.cuda = SimpleNamespace(  # type: ignore[attr-defined]
        runtime=SimpleNamespace(CUDA_R_32F=0, CUDA_R_64F=1),
        device=SimpleNamespace(get_cusparse_handle=lambda: 1),
    )
    libraries, wrappers = ModuleType("libs"), ModuleType("cupyx.cusparse")
    libraries.cusparse = cusparse  # type: ignore[attr-defined]
    wrappers.DnMatDescriptor = Descriptor  # type: ignore[attr-defined]
    wrappers.SpMatDescriptor = Descriptor  # type: ignore[attr-defined]
    for name, module in {
        "cupy": cupy,
        "cupyx": ModuleType("cupyx"),
        "cupyx.cusparse": wrappers,
        "cupy_backends": ModuleType("cupy_backends"),
        "cupy_backends.cuda": ModuleType("cupy_backends.cuda"),
        "cupy_backends.cuda.libs": libraries,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    return cusparse


def pointed(function: Any) -> Any:
    """Return a function of NumPy that gives arrays with CuPy's way to their address."""

    def call(*arguments: Any, **options: Any) -> Any:
        result = function(*arguments, **options)
        return result.view(PointedArray) if isinstance(result, np.ndarray) else result

    return call
