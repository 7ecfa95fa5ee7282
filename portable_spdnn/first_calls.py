"""First calls of every operation: a backend compiles then what it keeps, and nobody waits later."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from portable_spdnn.backend import Backend
from portable_spdnn.epilogue import Epilogue
from portable_spdnn.graphchallenge.radixnet import radixnet
from portable_spdnn.layer import Layer
from portable_spdnn.network import Network
from portable_spdnn.plans.options import PlanOptions
from portable_spdnn.plans.planner import make_plan
from portable_spdnn.registry import get_backend

EXTENT = 256  # of matrices: large enough for every kernel that a handle tries
ZEROS = (0.5, 0.9, 0.98)  # parts of the weights
WIDE = 1024
COLUMNS = (*range(1, 34), 64, 300)  # few columns have kernels of their own, for each number
HEADS = (32, 64, 128)  # widths


def compile_kernels(
    backend: str | Backend = "auto", dtype: npt.DTypeLike = np.float32, threads: int | None = None
) -> dict[str, float]:
    """Call each operation of a backend on small operands, so that it compiles its kernels.

    What a backend compiles it keeps on disk: later processes of the same user on a processor of the
    same kind load it, and their first calls take milliseconds in place of seconds. To be run when a
    machine or a container is set up. Operands of unusual kinds (indices of 64 bits, heads of other
    widths, other kernels of convolutions) still compile at their first call.

    Parameters
    ----------
    backend : str or Backend, default "auto"
    dtype : numpy dtype
        float32 or float64.
    threads : int, optional
        For a backend given by name.

    Returns
    -------
    dict of str to float
        The seconds that the first calls of each operation took: some where it compiled, next to
        none where it loaded what was kept.

    Raises
    ------
    BackendUnavailable
        If the named backend cannot run here.
    InputError
        If `dtype` is neither float32 nor float64.

    Examples
    --------
    >>> import portable_spdnn as ps
    >>> sorted(ps.compile_kernels("scipy"))[:3]
    ['attention', 'convolutions', 'layer']
    """
    if not isinstance(backend, Backend):
        backend = get_backend(backend, threads)
    kind, found = np.dtype(PlanOptions(dtype).dtype), {}
    for name, call in _calls(backend):
        start = time.perf_counter()
        call(backend, kind)
        backend.synchronize()
        found[name] = time.perf_counter() - start
    return found


def _calls(backend: Backend) -> Iterator[tuple[str, Callable[..., None]]]:
    """Yield the operations that a backend has, by name."""
    yield from (("spmm", _spmm), ("layer", _layer), ("spgemm", _spgemm), ("plan", _plans))
    for name, needed, call in (
        ("attention", "sparse_attention", _attention), ("convolutions", "conv2d", _convolutions),
    ):  # fmt: skip
        if needed in backend.optional_operations:
            yield name, call


def _weights(zeros: float, dtype: np.dtype[Any], columns: int = EXTENT) -> sp.csr_array:
    rng = np.random.default_rng(0)
    return sp.random_array((EXTENT, columns), density=1 - zeros, rng=rng, dtype=dtype).tocsr()


def _spmm(backend: Backend, dtype: np.dtype[Any]) -> None:
    gelu = Epilogue(np.zeros(EXTENT), "gelu", upper=6)
    for zeros in ZEROS:
        A = _weights(zeros, dtype)
        backend.spmm(A, np.ones(EXTENT, dtype))
        for columns in COLUMNS:
            B = np.ones((EXTENT, columns), dtype)
            for operand in (B, np.asfortranarray(B)):
                for epilogue in (None, gelu):
                    for form in (A, A.tocsc()):
                        backend.spmm(form, operand, epilogue)
                    handle = backend.spmm_handle(A, epilogue=epilogue)
                    handle.multiply(operand, residual=B)
            backend.spmm_handle(A, columns=columns).multiply(B)
        for k in (EXTENT, WIDE):  # offsets of 16 bits and of 32
            B = np.ones((k, WIDE), dtype)
            for operand in (B, np.asfortranarray(B)):
                backend.spmm_handle(_weights(zeros, dtype, k), WIDE - 1).multiply(operand[:, 1:])


def _layer(backend: Backend, dtype: np.dtype[Any]) -> None:
    for zeros in ZEROS:
        layer = Layer(_weights(zeros, dtype), np.linspace(-1, 0, EXTENT))
        backend.layer(layer, sp.csr_array(np.eye(3, EXTENT, dtype=dtype)))
        for inputs in COLUMNS:
            Y = np.ones((inputs, EXTENT), dtype)
            for features in (Y, np.asfortranarray(Y)):
                backend.layer(layer, features)
            backend.layer_handle(layer, inputs=inputs).apply(Y)


def _spgemm(backend: Backend, dtype: np.dtype[Any]) -> None:
    for zeros in ZEROS:
        A = _weights(zeros, dtype)
        backend.spgemm(A, A)


def _plans(backend: Backend, dtype: np.dtype[Any]) -> None:
    pruned, dying = (
        Network(Layer(_weights(zeros, dtype), np.linspace(-1, most, EXTENT)) for zeros in ZEROS)
        for most in (1, 0)
    )
    for network in (radixnet(1024, layers=3), pruned, dying):
        plan = make_plan(backend, network, PlanOptions(dtype))
        for inputs in COLUMNS:
            Y = np.ones((inputs, network.neurons), dtype)
            for features in (Y, sp.csr_array(Y), Y > 0):
                plan.run(features)


def _attention(backend: Backend, dtype: np.dtype[Any]) -> None:
    mask = _weights(0.5, dtype)
    for width in HEADS:
        Q = np.ones((2, EXTENT, width), dtype)
        backend.sparse_softmax(backend.sddmm(mask, Q[0], Q[0]))
        backend.sparse_attention(Q, Q, Q, mask)
        backend.attention_handle(mask, d=width).attend(Q, Q, Q)


def _convolutions(backend: Backend, dtype: np.dtype[Any]) -> None:
    rng = np.random.default_rng(0)
    images = np.ones((2, 16, 15, 17), dtype)
    for extent in (1, 3, 5):
        for zeros in (0.0, *ZEROS):
            weights = rng.random((32, 16, extent, extent)).astype(dtype)
            weights[rng.random(weights.shape) < zeros] = 0
            for stride in (1, 2):
                asked: dict[str, Any] = {"stride": stride, "padding": "same"}
                for x in (images, images.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2)):
                    backend.conv2d(x, weights, **asked)
                backend.conv2d_handle(weights, images.shape, **asked).apply(images)
                backend.conv1d(images[:, :, 0], weights[:, :, 0], **asked)
        for stride in (1, 2):
            backend.depthwise_conv2d(images, weights[:16, :1], stride, "same")
