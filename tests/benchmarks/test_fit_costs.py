"""Fitting the constants of the model of products."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from benchmark_scripts import load_script

from portable_spdnn_cpu.spmm import cost_model, tuning
from portable_spdnn_cpu.spmm.cost_model import ProductSize
from portable_spdnn_cpu.spmm.costs import INTEL, ZEN_3, ZEN_4, ZEN_5, Costs, Cycles, PackingSeconds
from portable_spdnn_cpu.spmm.dense_layout import Layout


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("fit_costs")


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(cost_model, "COSTS", cost_model.COSTS)  # what a fit changes
    # Caches of a Zen 4, whatever this processor has: which constants a product tells depends on
    # them.
    monkeypatch.setattr(cost_model, "L1", 1 << 15)
    for module in (cost_model, tuning):
        monkeypatch.setattr(module, "L2", 1 << 20)
    tuning._ordered_variants.cache_clear()
    yield
    tuning._ordered_variants.cache_clear()


def made_up(
    script: ModuleType, costs: Costs, kernel: str, noise: float = 0.0, products: int = 60
) -> list[Any]:
    """Return timings that a processor of these constants would take."""
    cost_model.COSTS = costs
    rng, found = np.random.default_rng(1), []
    for product in range(products):
        rows, inner, columns = map(int, rng.integers(16, 2000, 3))
        entries = int(rows * inner * rng.uniform(0.01, 0.4))
        fortran, out_fortran = map(bool, rng.integers(2, size=2))
        layout = Layout.FORTRAN if fortran else Layout.UNALIGNED
        size = ProductSize(rows, inner, columns, entries, 4, layout, out_fortran, 1)
        models = {
            "stream": [
                functools.partial(cost_model.stream_seconds, size, variant)
                for variant in tuning.stream_variants(size)[:3]
            ],
            "direct": [functools.partial(cost_model.direct_seconds, size)],
            "dense": [functools.partial(cost_model.dense_seconds, size)],
        }[kernel]
        slower = math.exp(rng.uniform(-noise, noise))  # as where others use the core
        found += [script.Timing(kernel, slower * model(), model, product) for model in models]
    return found


@pytest.mark.parametrize("kernel", ["stream", "direct", "dense"])
def test_times_of_another_processor_are_met(script: ModuleType, kernel: str) -> None:
    found = made_up(script, ZEN_4, kernel)
    before = np.abs(script.log_ratios(ZEN_5, found)).mean()
    after = np.abs(script.log_ratios(script.fitted(ZEN_5, kernel, found), found)).mean()
    assert after < min(0.05, 0.3 * before)


def test_what_slows_all_timings_of_a_product_hardly_counts(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spread() -> float:
        """Return how far a fit leads ratios of a product's variants away from what they are.

        It begins with the constants that are right: what else it ends in would count as well.
        """
        found = made_up(script, ZEN_4, "stream", noise=0.1, products=200)
        ratios = script.log_ratios(script.fitted(ZEN_4, "stream", found), found)
        products = np.array([timing.product for timing in found])
        means = np.bincount(products, ratios) / np.bincount(products)
        return float(np.abs(ratios - means[products]).mean())

    without = spread()
    monkeypatch.setattr(script, "COMMON_SHARE", 0.0)
    assert without < 0.5 * spread()


@pytest.mark.parametrize("costs", [INTEL, ZEN_3, ZEN_4, ZEN_5])
def test_what_is_printed_are_the_constants(script: ModuleType, costs: Costs) -> None:
    names = {each.__name__: each for each in (Costs, Cycles, PackingSeconds)}
    assert eval(script.printed(costs), names) == costs


def test_all_kernels_of_a_product_are_timed(script: ModuleType) -> None:
    rng, kernels = np.random.default_rng(2), set()
    for product in range(4):
        found = script.timings(rng, product)
        numbers = Counter(timing.kernel for timing in found)
        kernels |= set(numbers)
        if found:  # some are too large
            assert 1 <= numbers["stream"] <= script.VARIANTS
            assert numbers["direct"] == 1 >= numbers["dense"]
        assert all(timing.seconds > 0 < timing.model() for timing in found)
        assert all(timing.product == product for timing in found)
    assert kernels == {"stream", "direct", "dense"}
