"""Fit the constants of `portable_spdnn_cpu.spmm.costs` to the processor at hand.

Run it from the root, if possible on a machine that does nothing else, on one core:
``taskset -c 0 python benchmarks/fit_costs.py [minutes]``, six by default. Random products of two or
more columns are timed, by turns by the stream in several variants, with A and B as they are, and by
BLAS. The constants that come nearest, by the sum of squares of logarithms where outliers count
less, are printed as they stand in the file, and how near they come before and after. `cycle` is to
be set before; those that FITTED does not list, or on which no timing depends, stay as they are.

A core that others use too is slower for some seconds. So, of logarithms of the stream's timings,
most of their mean within a product is taken off before they are squared: the variants of a product
are timed by turns, and are to be chosen by their ratios. Kernels with one timing of a product count
as they are.
"""

from __future__ import annotations

import functools
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, NamedTuple

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy is imported

import numpy as np
import scipy.sparse as sp
from scipy.optimize import least_squares

import portable_spdnn as ps
from portable_spdnn.arrays import Array
from portable_spdnn_cpu.machine.thread_pool import ALONE
from portable_spdnn_cpu.spmm import cost_model, tuning
from portable_spdnn_cpu.spmm.costs import Costs, Cycles, PackingSeconds
from portable_spdnn_cpu.spmm.dense import DenseProduct
from portable_spdnn_cpu.spmm.dense_layout import empty_result, layout_of, with_aligned_rows
from portable_spdnn_cpu.spmm.direct import product as direct
from portable_spdnn_cpu.spmm.stream.product import StreamProduct

MOST_ITEMS, MOST_WORK = 1 << 22, 3e8  # of B and C; multiply-adds of a product that is timed
# Turns of each call; what a turn has at least, in seconds and in calls.
ROUNDS, SECONDS, LEAST_REPEATS = 3, 0.0015, 2
VARIANTS = 6  # of the stream that are timed for a product, at most
NEAR_VARIANTS = 12  # the fastest by the model, from which a third of these are drawn
COMMON_SHARE = 0.6  # of the mean of a product's logarithms: what is taken off
TIMINGS_EACH = 20  # for a constant, at least; kernels are compiled in the first minutes
SCALES = 0.03, 30.0  # constants are looked for between so many times those that stand
SMALL_START = 0.1  # cycles, or a share: what stands in for 0 there

# What is fitted to the times of each kernel.
FITTED = {
    "stream": (
        "stream.l1", "stream.l2", "stream.memory", "stream.copy", "stream.transpose",
        "stream.write", "stream.write_far", "stream.write_fortran", "stream.row", "stream.entry",
        "l1_share", "start", "wait", "write_rows", "memory_to_l1", "memory_to_l2", "piece",
        "memory_entry", "unpaired_entry", "unpaired_row", "written_piece",
    ),
    "direct": (
        "direct.l1", "direct.l2", "direct.memory", "across", "direct.copy",
        "direct.transpose", "direct.write", "direct.write_far", "direct.write_fortran",
        "direct.row", "direct.entry", "direct_call",
    ),
    "dense": ("dense", "dense_vector", "dense_weight", "memory_weight", "dense_call"),
}  # fmt: skip


class Timing(NamedTuple):
    """Seconds of a kernel, what gives the model's, and which product it was."""

    kernel: str
    seconds: float
    model: Callable[[], float]
    product: int


def seconds_by_turns(runs: Sequence[Callable[[], Any]]) -> list[float]:
    """Return the least time of each of some functions, called by turns.

    All are timed in each round, unlike those of a trial: slow variants are to be fitted too.
    """
    least = [math.inf] * len(runs)
    for turn in range(ROUNDS):
        for number, run in enumerate(runs):
            if turn == 0:
                run()
            times, end = 0, time.perf_counter() + SECONDS
            while times < LEAST_REPEATS or time.perf_counter() < end:
                begin = time.perf_counter()
                run()
                least[number] = min(least[number], time.perf_counter() - begin)
                times += 1
    return least


def timings(rng: np.random.Generator, product: int) -> list[Timing]:
    """Return the timings of a random product, which has this number."""
    rows, inner = (round(math.exp(rng.uniform(math.log(8), math.log(4096)))) for _ in range(2))
    columns = round(math.exp(rng.uniform(math.log(2), math.log(800))))
    density = math.exp(rng.uniform(math.log(0.004), math.log(0.6)))
    dtype = rng.choice([np.float32, np.float64])
    if columns * max(rows, inner) > MOST_ITEMS or rows * inner * columns * density > MOST_WORK:
        return []
    A: Any = sp.random_array((rows, inner), density=density, rng=rng, dtype=dtype, format="csr")
    if not A.nnz:
        return []
    A.sort_indices()
    A.indptr, A.indices = A.indptr.astype(np.int32), A.indices.astype(np.int32)
    B: Array = rng.uniform(-1, 1, (inner, columns)).astype(dtype)
    form = rng.integers(3)
    B = [np.asfortranarray, with_aligned_rows, np.ascontiguousarray][form](B)
    size = cost_model.size_of(
        A.shape, A.nnz, B.itemsize, columns, layout_of(B), ALONE, keeps_order=bool(rng.integers(2))
    )
    out = empty_result((rows, columns), A.dtype, size.out_fortran)
    variants = tuning.all_variants(size)
    # The fastest by the model, a few of the next, and half of them from all.
    near = rng.integers(min(NEAR_VARIANTS, len(variants)), size=VARIANTS // 2 - 1)
    chosen = {0, *map(int, near), *map(int, rng.integers(len(variants), size=VARIANTS // 2))}
    runs: list[Callable[[], Any]] = []
    models: list[tuple[str, Callable[[], float]]] = []
    for variant in [variants[number] for number in sorted(chosen)]:
        stream = StreamProduct(A, ps.Epilogue(), variant)
        runs.append(functools.partial(stream.multiply, B, out, None, ALONE))
        model = functools.partial(cost_model.stream_seconds, size, variant)
        models.append(("stream", model))
    parts, order = (A.indptr, A.indices, A.data), size.out_fortran
    runs.append(
        functools.partial(direct.multiply, ALONE, "csr", A.shape, parts, B, None, None, order)
    )
    models.append(("direct", functools.partial(cost_model.direct_seconds, size)))
    if rows * inner * columns < MOST_WORK:
        dense = DenseProduct(A, ps.Epilogue())
        runs.append(functools.partial(dense.multiply, B, out, None, ALONE))
        models.append(("dense", functools.partial(cost_model.dense_seconds, size)))
    return [
        Timing(kernel, seconds, model, product)
        for seconds, (kernel, model) in zip(seconds_by_turns(runs), models, strict=True)
    ]


def constant(costs: Costs, name: str) -> float:
    """Return a constant by its name in FITTED."""
    value: Any = costs
    for part in name.split("."):
        value = getattr(value, part)
    return float(value)


def with_constant(costs: Costs, name: str, value: float) -> Costs:
    """Return the constants with another value of one."""
    *outer, last = name.split(".")
    if not outer:
        return replace(costs, **{last: value})
    return replace(costs, **{outer[0]: replace(getattr(costs, outer[0]), **{last: value})})


def log_ratios(costs: Costs, found: list[Timing]) -> Array:
    """Return the logarithms of the model's times over those measured."""
    cost_model.COSTS = costs
    return np.array([math.log(timing.model() / timing.seconds) for timing in found])


def _changed(costs: Costs, name: str) -> float:
    """Return another value of a constant."""
    return 2 * constant(costs, name) + SMALL_START


def fitted(costs: Costs, kernel: str, found: list[Timing]) -> Costs:
    """Return constants that come nearest to the times of a kernel."""
    before = log_ratios(costs, found)
    names = [
        name
        for name in FITTED[kernel]
        if (log_ratios(with_constant(costs, name, _changed(costs, name)), found) != before).any()
    ]

    def scaled(scales: Array) -> Costs:
        changed = costs
        for name, scale in zip(names, scales, strict=True):
            start = constant(costs, name) or SMALL_START  # zero cannot be scaled
            changed = with_constant(changed, name, start * math.exp(scale))
        return changed

    _, products = np.unique([timing.product for timing in found], return_inverse=True)
    numbers = np.bincount(products)

    def distances(scales: Array) -> Array:
        ratios = log_ratios(scaled(scales), found)
        means = np.bincount(products, ratios) / numbers
        common = np.where(numbers > 1, COMMON_SHARE * means, 0)
        return ratios - common[products]

    low, high = map(math.log, SCALES)
    result = least_squares(
        distances, np.zeros(len(names)), loss="soft_l1", f_scale=0.2, bounds=(low, high),
        diff_step=1e-3,
    )  # fmt: skip
    return scaled(result.x)


def nearness(costs: Costs, found: list[Timing]) -> str:
    """Return the middle two thirds of measured times over the model's."""
    ratios = np.exp(-log_ratios(costs, found))
    low, high = np.quantile(ratios, [1 / 6, 5 / 6])
    return f"two thirds take {low:.2f} to {high:.2f} times what the model says"


def printed(costs: Costs | Cycles | PackingSeconds) -> str:
    """Return constants as they are written in the file."""
    parts = []
    for field in fields(costs):
        value = getattr(costs, field.name)
        text = f"{value:.3g}" if not is_dataclass(value) else printed(value)
        parts.append(f"{field.name}={text}")
    return f"{type(costs).__name__}({', '.join(parts)})"


def main() -> None:
    """Measure, fit and print."""
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 6.0
    rng, found, product = np.random.default_rng(1), list[Timing](), 0
    end = time.perf_counter() + 60 * minutes
    while time.perf_counter() < end:
        found += timings(rng, product)
        product += 1
    costs = cost_model.COSTS
    for kernel in FITTED:
        some = [timing for timing in found if timing.kernel == kernel]
        if len(some) < TIMINGS_EACH * len(FITTED[kernel]):
            sys.exit(f"{len(some)} timings of {kernel} are too few for a fit; give more minutes")
        print(f"{kernel}: {len(some)} timings; before, {nearness(costs, some)}")
        costs = fitted(costs, kernel, some)
        print(f"{kernel}: after, {nearness(costs, some)}", flush=True)
    print(printed(costs))


if __name__ == "__main__":
    main()
