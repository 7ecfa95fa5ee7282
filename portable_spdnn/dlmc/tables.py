"""What was measured: each matrix, geometric means, the crossover with dense, a plot, JSON."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from portable_spdnn.dlmc.timing import Measurement
from portable_spdnn.report import run_report
from portable_spdnn.report.plots import save_figure

LEVELS = (50, 60, 70, 80, 90, 95, 98)  # per cent of zeros that pruned matrices are counted to
NOTHING = "-"
Table = tuple[Sequence[str], list[Sequence[str]]]


def by_matrix(found: Sequence[Measurement]) -> Table:
    """Return a row for each matrix and backend."""
    numbers = choices(found)
    columns = (
        "model", "layer", "M x K x N", "zeros", "backend", "µs", "one-shot µs", "x dense",
        "x scipy", "GFLOP/s", "of peak", "chose",
    )  # fmt: skip
    rows: list[Sequence[str]] = []
    for one in found:
        case, form = one.case, f" ({one.dense_form})" * (one.dense_form != "mm")
        once = NOTHING if one.one_shot is None else f"{1e6 * one.one_shot:.4g}"
        rows.append((
            case.model, case.layer.removeprefix("body_").removesuffix("_fully_connected"),
            " x ".join(map(str, (*case.shape, case.columns))), f"{100 * case.zeros:.1f} %",
            one.backend, f"{1e6 * one.prepared:.4g}", once, f"{one.over_dense:.2f}{form}",
            f"{one.over_scipy:.2f}", f"{one.flops / 1e9:.3g}",
            _share(one.of_peak), numbers.get(one.choice, NOTHING),
        ))  # fmt: skip
    return columns, rows


def choices(found: Sequence[Measurement]) -> dict[str, str]:
    """Return a number for each text that handles gave of their choice."""
    texts = dict.fromkeys(one.choice for one in found if one.choice)
    return {text: str(number) for number, text in enumerate(texts, start=1)}


def means(found: Sequence[Measurement]) -> list[dict[str, Any]]:
    """Return geometric means by backend, model, random or pruned, size and zeros."""
    groups: dict[tuple[Any, ...], list[Measurement]] = defaultdict(list)
    for one in found:
        case = one.case
        zeros = 100 * case.zeros
        level = min(LEVELS, key=lambda level: abs(level - zeros))
        if case.path is None:  # a random mask has as many as were asked for
            level = round(zeros)
        key = one.backend, case.model, case.path is None, case.size, level
        groups[key].append(one)
    names = "backend", "model", "random", "size", "zeros"
    order = list(dict.fromkeys(one.case.model for one in found))
    return [
        {
            **dict(zip(names, key, strict=True)),
            "matrices": len(group),
            "over_dense": geometric_mean(one.over_dense for one in group),
            "over_scipy": geometric_mean(one.over_scipy for one in group),
            "flops": geometric_mean(one.flops for one in group),
            "of_peak": _mean_share(group),
        }
        for key, group in sorted(
            groups.items(), key=lambda item: (item[0][0], order.index(item[0][1]), item[0][2:])
        )
    ]


def means_table(found: Sequence[Measurement]) -> Table:
    """Return `means` as text."""
    columns = ("geometric means", "model", "products", "zeros", "matrices", "x dense", "x scipy",
               "GFLOP/s", "of peak")  # fmt: skip
    return columns, [
        (
            one["backend"], one["model"] + ", random masks" * one["random"],
            one["size"], f"{one['zeros']} %",
            str(one["matrices"]), f"{one['over_dense']:.2f}", f"{one['over_scipy']:.2f}",
            f"{one['flops'] / 1e9:.3g}", _share(one["of_peak"]),
        )
        for one in means(found)
    ]  # fmt: skip


def crossovers(found: Sequence[Measurement]) -> list[dict[str, Any]]:
    """Return by backend and shape the least share of zeros from which the sparse product wins.

    Of the shares that were measured, on the pruned matrix and on random masks; None where the
    dense product is faster at the largest.
    """
    shapes: dict[tuple[Any, ...], list[tuple[float, float]]] = defaultdict(list)
    for one in found:
        key = one.backend, one.case.model, one.case.shape, one.case.columns
        shapes[key].append((one.case.zeros, one.over_dense))
    rows = []
    for (backend, model, shape, columns), points in shapes.items():
        least = None
        for zeros, ratio in sorted(points, reverse=True):
            if ratio <= 1:
                break
            least = zeros
        rows.append({
            "backend": backend, "model": model, "shape": shape, "columns": columns,
            "wins_from": least, "measured_from": min(points)[0],
        })  # fmt: skip
    return rows


def crossover_table(found: Sequence[Measurement]) -> Table:
    """Return `crossovers` by backend and model: least, median and most of its shapes."""
    columns = ("crossover with dense", "model", "shapes", "measured from", "wins from, least",
               "median", "most")  # fmt: skip
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for one in crossovers(found):
        groups[one["backend"], one["model"]].append(one)
    rows: list[Sequence[str]] = []
    for (backend, model), shapes in groups.items():
        wins = sorted(2.0 if one["wins_from"] is None else one["wins_from"] for one in shapes)
        shown = (f"{100 * at:.0f} %" if at <= 1 else "never" for at in
                 (wins[0], wins[len(wins) // 2], wins[-1]))  # fmt: skip
        first = min(one["measured_from"] for one in shapes)
        rows.append((backend, model, str(len(shapes)), f"{100 * first:.0f} %", *shown))
    return columns, rows


def as_json(
    about: dict[str, Any], found: Sequence[Measurement], wrong: Sequence[str]
) -> dict[str, Any]:
    """Return everything; `about` is what holds for all."""
    ratios = "over_dense", "over_scipy", "flops", "of_peak"
    products = []
    for one in found:
        record = asdict(one)
        case = record.pop("case")
        file = case["path"] and "/".join(case["path"].parts[-4:])
        case |= {"path": file, "zeros": one.case.zeros}
        products.append({**case, **record, **{name: getattr(one, name) for name in ratios}})
    return {
        **about,
        "products": products,
        "means": means(found),
        "crossovers": crossovers(found),
        "wrong": list(wrong),
    }


def show(found: Sequence[Measurement], to_stderr: bool) -> None:
    """Print the tables."""
    for columns, rows in (
        by_matrix(found), means_table(found), crossover_table(found),
    ):  # fmt: skip
        run_report.print_table(columns, rows, to_stderr)
    chosen = [(number, text) for text, number in choices(found).items()]
    if chosen:
        run_report.print_facts([("chose", ""), *chosen], to_stderr)


def plot(found: Sequence[Measurement], path: Path) -> None:
    """Draw how many times faster than dense, by the share of zeros, both axes logarithmic.

    Raises
    ------
    InputError
        If the file, which appears whole or not at all, cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5.5), layout="constrained")
    axes = figure.subplots()
    series: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for one in found:
        masks = ", random masks" * (one.case.path is None)
        series[f"{one.backend}: {one.case.model}{masks}"].append(
            (1 - one.case.zeros, one.over_dense)
        )
    for marker, (label, points) in zip("osD^v<>Pp*hX" * len(series), series.items(), strict=False):
        axes.plot(*zip(*points, strict=True), marker, label=label, alpha=0.6, markersize=5)
    shares = [1 - level / 100 for level in LEVELS]
    axes.plot(shares, [1 / share for share in shares], "k--", label="fewer multiply-adds")
    axes.axhline(1, color="k", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="zeros", ylabel="times faster than dense")
    axes.invert_xaxis()
    axes.set_xticks(shares, [f"{level} %" for level in LEVELS])
    axes.set_xticks([], minor=True)
    axes.legend(fontsize=8)
    save_figure(figure, path)


def _mean_share(group: Sequence[Measurement]) -> float | None:
    """Return the geometric mean of parts of the peak, None where a backend measures none."""
    shares = [one.of_peak for one in group if one.of_peak is not None]
    return geometric_mean(shares) if shares else None


def _share(part: float | None) -> str:
    return NOTHING if part is None else f"{100 * part:.0f} %"
