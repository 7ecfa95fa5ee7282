"""Sparse attention: softmax(scale Q K^T at a mask's entries) V, its parts, and all of it fused.

The mask is that of Sputnik's Transformer (Gale et al., SC 2020): a band of 256 keys, and 5 % of the
other entries at random. *Prepared* is a handle, made beforehand, with the result's memory reused.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import portable_spdnn as ps

from .agreement import assert_agree

HEADS, D, BAND, OFF_BAND = 8, 64, 256, 0.95
SEQUENCES = 16  # of a batch
SPREAD = "random, mask seed 1"


def attention_case(length: int) -> tuple[Any, Any, Any, Any]:
    """Return the mask, and Q, K and V of all heads."""
    mask = ps.masks.union(ps.masks.band(length, BAND), ps.masks.random(length, OFF_BAND, seed=1))
    rng = np.random.default_rng(0)
    Q, K, V = rng.standard_normal((3, HEADS, length, D), dtype=np.float32)
    return mask, Q, K, V


def needs(backend: ps.Backend, operation: str) -> None:
    if operation not in backend.optional_operations:
        pytest.skip(f"backend {backend.name} has no {operation}")


@pytest.mark.cases(
    "1024", "4096", "1024-prepared", "4096-prepared", one_thread=("1024-prepared", "4096-prepared")
)
def test_attention(case, backend, reference, prepared, measure):
    needs(backend, "sparse_attention")
    length = int(case.removesuffix("-prepared"))

    def build():
        mask, Q, K, V = attention_case(length)
        return mask, Q, K, V, reference.sparse_attention(Q, K, V, mask)

    mask, Q, K, V, expected = prepared(build)
    operation = lambda: backend.sparse_attention(Q, K, V, mask)  # noqa: E731
    if case.endswith("-prepared"):
        handle, out = backend.attention_handle(mask, d=D), np.empty_like(V)
        operation = lambda: handle.attend(Q, K, V, out)  # noqa: E731
    # Two multiply-adds for each entry and column: of the score, and of the sum over V.
    work = 2 * HEADS * mask.nnz * D
    measure(operation, lambda found: assert_agree(found, expected), edges=work, inputs=SPREAD)


@pytest.mark.cases("64")
def test_attention_of_a_batch(case, backend, reference, prepared, measure):
    """Short sequences, as views of what one product with fused weights gives."""
    needs(backend, "sparse_attention")
    tokens = int(case)

    def build():
        mask, rng = ps.masks.causal(tokens), np.random.default_rng(0)
        projected = rng.standard_normal((SEQUENCES, tokens, 3, HEADS, D), dtype=np.float32)
        Q, K, V = projected.transpose(2, 0, 3, 1, 4)
        return mask, Q, K, V, reference.sparse_attention(Q, K, V, mask)

    mask, Q, K, V, expected = prepared(build)
    handle = backend.attention_handle(mask, d=D)
    out = np.empty((SEQUENCES, HEADS, tokens, D), np.float32)
    measure(
        lambda: handle.attend(Q, K, V, out),
        lambda found: assert_agree(found, expected),
        edges=2 * SEQUENCES * HEADS * mask.nnz * D,
        inputs="random",
    )


@pytest.mark.cases("1024", "4096")
def test_sddmm(case, backend, reference, prepared, measure):
    needs(backend, "sddmm")

    def build():
        mask, Q, K, _ = attention_case(int(case))
        return mask, Q[0], K[0], reference.sddmm(mask, Q[0], K[0])

    mask, Q, K, expected = prepared(build)
    measure(
        lambda: backend.sddmm(mask, Q, K),
        lambda found: assert_agree(found, expected),
        edges=mask.nnz * D,
        inputs=SPREAD,
    )


@pytest.mark.cases("4096")
def test_sparse_softmax(case, backend, reference, prepared, measure):
    needs(backend, "sparse_softmax")

    def build():
        mask, Q, K, _ = attention_case(int(case))
        scores = reference.sddmm(mask, Q[0], K[0], D**-0.5)
        return scores, reference.sparse_softmax(scores)

    scores, expected = prepared(build)
    measure(
        lambda: backend.sparse_softmax(scores),
        lambda found: assert_agree(found, expected),
        edges=scores.nnz,
        inputs=SPREAD,
    )
