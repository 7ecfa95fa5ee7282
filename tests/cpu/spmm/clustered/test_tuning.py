"""Which variant runs a product: what the model says, what a trial finds, and when."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from portable_spdnn.epilogue import Epilogue
from portable_spdnn.testing import oracle
from portable_spdnn_cpu.machine.thread_pool import ThreadPool
from portable_spdnn_cpu.spmm.clustered import product, tuning
from portable_spdnn_cpu.spmm.clustered.product import ClusteredProduct
from portable_spdnn_cpu.spmm.clustered.tuning import (
    WIDTHS,
    ProductSize,
    Variant,
    fastest,
    predict,
    variants,
)

CHALLENGE = ProductSize(1024, 1024, 1024 * 32, 1024 * 8, 4, threads=2)
SCATTERED = ProductSize(4096, 4096, 4096 * 32, 4096 * 32, 4, threads=2)


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "cache_bytes", lambda level: 1 << 20)


@pytest.mark.parametrize(
    ("product", "inputs", "fortran", "aligned", "expected"),
    [
        (CHALLENGE, 64, True, False, Variant(1, True, 64)),
        (CHALLENGE, 4096, True, False, Variant(2, False, 128)),  # far apart: copied, streamed
        (CHALLENGE, 4096, False, True, Variant(2, False, 64)),
        (SCATTERED, 4096, False, True, Variant(2, False, 32)),  # more would leave the cache
        (CHALLENGE, 1000, False, True, Variant(2, False, 32)),  # eight panels for each thread
        (SCATTERED, 64, True, True, Variant(2, True, 32)),
        (SCATTERED, 64, True, False, Variant(2, False, 32)),  # loads would cross cache lines
        (SCATTERED, 4096, True, True, Variant(2, False, 64)),
        (SCATTERED, 17, False, True, Variant(1, False, 32)),
        (SCATTERED, 0, False, True, Variant(1, False, 16)),
        (ProductSize(0, 5, 0, 0, 8, threads=3), 1, False, True, Variant(1, False, 8)),
    ],
)
def test_the_model_weighs_copies_against_loads_and_work_against_waking(
    product: ProductSize, inputs: int, fortran: bool, aligned: bool, expected: Variant
) -> None:
    assert predict(product, inputs, fortran, aligned) == expected


def test_every_thread_has_a_panel_and_no_variant_comes_twice() -> None:
    few = variants(CHALLENGE, 48, fortran=True)
    assert len(set(few)) == len(few)
    assert {(each.threads, each.width) for each in few} == {(2, 32), (1, 32)}
    assert not any(each.in_place for each in variants(CHALLENGE, 4096, fortran=False))
    assert not any(each.in_place for each in variants(CHALLENGE, 4095, fortran=True))
    assert {each.width for each in variants(CHALLENGE, 4096, fortran=True)} == set(WIDTHS)


def test_a_trial_keeps_the_fastest_though_its_first_run_was_slow() -> None:
    slow_once = {16}

    def run(variant: Variant) -> None:
        compiles = variant.width in slow_once
        slow_once.discard(variant.width)
        time.sleep(0.05 if compiles else 0.001 * variant.width / 16)

    choices = [Variant(1, False, width) for width in (64, 16, 32)]
    assert fastest(choices, run) == choices[1]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("inputs", [16, 60, 320])
@pytest.mark.parametrize("alike", [1, 5])
def test_every_variant_of_a_prepared_layer_gives_the_same_bits(
    alike: int, inputs: int, order: Any
) -> None:
    """Where outputs are alike, tiles hold the inputs in an order of their own."""
    rng = np.random.default_rng(inputs)
    few = sp.random_array((70 // alike, 90), density=0.2, rng=rng, dtype=np.float32)
    W = sp.csr_array(np.repeat(few.toarray(), alike, axis=0)[rng.permutation(70)])
    Y = np.array(rng.random((inputs, 90), np.float32), order=order)
    epilogue = Epilogue(-0.5, "relu", upper=2.0).prepared("layer", 70, W.dtype)
    layer = ClusteredProduct(ThreadPool(2), W, epilogue)
    layer.prepare(32, order == "F")
    first = layer(Y)
    moved = bool((np.diff(layer.packed[False][1].input_rows) < 0).any())
    assert moved == (alike > 1)
    fortran = order == "F"
    choices = variants(layer.product, inputs, fortran)
    may_stay = fortran and inputs != 60
    assert {each.in_place for each in choices} == ({True, False} if may_stay else {False})
    for choice in choices:
        layer._variants[inputs, fortran] = choice
        np.testing.assert_array_equal(layer(Y), first)
    expected = oracle.layer(W.T, Y, np.full(70, -0.5), 2.0)
    np.testing.assert_allclose(first, expected, rtol=1e-5, atol=1e-5)


def test_calls_never_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    trials: list[list[Variant]] = []

    def noted(choices: list[Variant], run: Any) -> Variant:
        trials.append(choices)
        return fastest(choices, run)

    monkeypatch.setattr(product, "fastest", noted)
    W = sp.random_array((40, 50), density=0.2, rng=np.random.default_rng(0), format="csr")
    layer = ClusteredProduct(ThreadPool(2), W, Epilogue(activation="relu"))
    for fortran in (False, True, False):
        layer.prepare(64, fortran)
    assert len(trials) == 2
    before = dict(layer._variants)
    for inputs in (64, 7, 64):
        for order in "CF":
            layer(np.ones((inputs, 50), order=order))
    assert len(trials) == 2
    assert layer._variants.items() >= before.items()
    assert layer._variants.keys() - before.keys() == {(7, False), (7, True)}
