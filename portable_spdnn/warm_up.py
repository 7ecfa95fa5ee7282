"""Warm-up: each operation called once or more, so that its kernels are compiled and kept."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from portable_spdnn.backend import Backend
from portable_spdnn.epilogue import ACTIVATIONS, Epilogue
from portable_spdnn.graphchallenge.radixnet import radixnet
from portable_spdnn.layer import Layer
from portable_spdnn.network import Network
from portable_spdnn.plans.options import PlanOptions
from portable_spdnn.plans.planner import make_plan
from portable_spdnn.registry import get_backend

SIZE, WIDE = 256, 1024  # of matrices: large enough for every kernel that a handle tries
ZEROS = (0.5, 0.9, 0.98)  # parts of the weights
COLUMNS = (*range(1, 34), 64, 300)  # few columns have kernels of their own, for each number
WIDER = 40, 48, 56, 80, 96, 112, 128  # a backend may have code for panels of one vector more
HEAD_WIDTHS = (32, 64, 128)


def compile_kernels(
    backend: str | Backend = "auto",
    dtype: npt.DTypeLike = np.float32,
    report: Callable[[str, float], None] | None = None,
) -> dict[str, float]:
    """Call each operation of a backend on small operands, so that it compiles its kernels.

    What a backend compiles it keeps on disk: later processes of the same user on a processor of the
    same kind load it, and first calls take milliseconds in place of seconds. To be run when a
    machine or a container is set up, for each type of values in use. Operands of other kinds still
    compile at their first call: indices of 64 bits, heads and kernels of convolutions of other
    widths, some numbers of columns beyond 33.

    Parameters
    ----------
    backend : str or Backend, default "auto"
    dtype : numpy dtype
        float32 or float64.
    report : callable, optional
        Called with the name of each operation and its seconds when it is done.

    Returns
    -------
    dict of str to float
        Seconds by operation: less than ten in all where everything had been kept.

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
        backend = get_backend(backend)
    dtype = np.dtype(PlanOptions(dtype).dtype)
    calls: dict[str, Callable[[Backend, np.dtype[Any]], None]] = {
        "spmm": _spmm, "layer": _layer, "spgemm": _spgemm, "plan": _plans
    }  # fmt: skip
    if "sparse_attention" in backend.optional_operations:
        calls["attention"] = _attention
    if "conv2d" in backend.optional_operations:
        calls["convolutions"] = _convolutions
    seconds = {}
    for name, call in calls.items():
        start = time.perf_counter()
        call(backend, dtype)
        backend.synchronize()
        seconds[name] = time.perf_counter() - start
        if report is not None:
            report(name, seconds[name])
    return seconds


def _weights(zeros: float, dtype: np.dtype[Any], columns: int = SIZE) -> sp.csr_array:
    rng = np.random.default_rng(0)
    return sp.random_array((SIZE, columns), density=1 - zeros, rng=rng, dtype=dtype).tocsr()


def _alike(dtype: np.dtype[Any]) -> sp.csr_array:
    """Return weights of which each four neighbouring columns have entries in the same rows."""
    four = np.array([[1, 2, 3, 4]], dtype)
    return sp.csr_array(sp.kron(_weights(0.9, dtype, SIZE // 4), four))


def _spmm(backend: Backend, dtype: np.dtype[Any]) -> None:
    gelu = Epilogue(np.zeros(SIZE), "gelu", upper=6)
    A, B = _weights(0.9, dtype), np.ones((SIZE, 3), dtype)
    for name in ACTIVATIONS:  # backends may compile code for each
        backend.spmm(A, B, Epilogue(activation=name))
    # So many entries that threads share them, though B is a vector.
    backend.spmm(_weights(0.0, dtype, 2 * WIDE), np.ones(2 * WIDE, dtype))
    for zeros in ZEROS:
        A = _weights(zeros, dtype)
        for form in (A, A.tocsc()):
            for epilogue in (None, gelu):
                backend.spmm(form, np.ones(SIZE, dtype), epilogue)
        for columns in (*COLUMNS, *WIDER):
            B = np.ones((SIZE, columns), dtype)
            for operand in (B, np.asfortranarray(B)):
                for epilogue in (None, gelu):
                    for form in (A, A.tocsc()):
                        backend.spmm(form, operand, epilogue)
                    if columns in WIDER:
                        continue
                    handle = backend.spmm_handle(A, epilogue=epilogue)
                    handle.multiply(operand, residual=B)
            if columns in COLUMNS:
                backend.spmm_handle(A, columns=columns).multiply(B)
        for k in (SIZE, WIDE):  # offsets of 16 bits and of 32
            A, B = _weights(zeros, dtype, k), np.ones((k, WIDE), dtype)
            for operand in (B, np.asfortranarray(B)):
                backend.spmm(A, operand)
                backend.spmm_handle(A, columns=WIDE - 1).multiply(operand[:, 1:])
    # Rows that share columns, which go in clusters.
    shared, B = sp.csr_array(_alike(dtype).T), np.ones((SIZE, WIDE), dtype)
    backend.spmm_handle(shared, columns=WIDE).multiply(B)


def _layer(backend: Backend, dtype: np.dtype[Any]) -> None:
    for zeros in ZEROS:
        layer = Layer(_weights(zeros, dtype), np.linspace(-1, 0, SIZE))
        backend.layer(layer, sp.csr_array(np.eye(3, SIZE, dtype=dtype)))
        for inputs in COLUMNS:
            Y = np.ones((inputs, SIZE), dtype)
            for features in (Y, np.asfortranarray(Y)):
                backend.layer(layer, features)
            backend.layer_handle(layer, inputs=inputs).apply(Y)
    alike, Y = Layer(_alike(dtype)), np.ones((WIDE, SIZE), dtype)
    backend.layer_handle(alike, inputs=WIDE).apply(Y)


def _spgemm(backend: Backend, dtype: np.dtype[Any]) -> None:
    for zeros in ZEROS:
        A = _weights(zeros, dtype)
        backend.spgemm(A, A)
        backend.spgemm_handle(A, A).numeric()  # a single product may go another way


def _plans(backend: Backend, dtype: np.dtype[Any]) -> None:
    pruned, dying = (
        Network(
            Layer(_weights(zeros, dtype), np.linspace(-1, highest_bias, SIZE)) for zeros in ZEROS
        )
        for highest_bias in (1, 0)
    )
    sharing = Network([Layer(_alike(dtype), 0.5)] * 2)
    for network in (radixnet(1024, layers=3), pruned, dying, sharing):
        plan = make_plan(backend, network, PlanOptions(dtype))
        for inputs in COLUMNS:
            Y = np.ones((inputs, network.neurons), dtype)
            for features in (Y, sp.csr_array(Y), Y > 0):
                plan.run(features)
                plan.scores(features)


def _attention(backend: Backend, dtype: np.dtype[Any]) -> None:
    mask = _weights(0.5, dtype)
    for width in HEAD_WIDTHS:
        Q = np.ones((2, SIZE, width), dtype)
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
    # A backend may have a kernel for each number of vectors that the last pixels of an image take.
    pruned = np.where(rng.random((32, 16, 3)) < 0.1, rng.random((32, 16, 3)), 0).astype(dtype)
    for length in range(4, 116, 4):
        backend.conv1d_handle(pruned, (2, 16, length), padding="same")
