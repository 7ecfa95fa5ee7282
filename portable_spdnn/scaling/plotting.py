"""Strong and weak scaling as a picture; needs the extra ``plot``."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from portable_spdnn.errors import InputError
from portable_spdnn.io.atomic_output import atomic_output
from portable_spdnn.report.run_report import rate
from portable_spdnn.scaling.prediction import BOUNDS, Model, Point

FORMATS = (".png", ".svg")
_BLUE, _GREY = "#1f5fa8", "#777777"
_PARTS = {
    "compute": "#1f5fa8", "granularity": "#e0a030", "planning": "#7b4ea3",
    "imbalance": "#c2452d", "gather": "#3a8f4f",
}  # fmt: skip


def check_plot(path: str | os.PathLike[str]) -> None:
    """Raise InputError where a picture could not be drawn, before anything is measured."""
    if Path(path).suffix.lower() not in FORMATS:
        raise InputError(f"{path}: a plot is a file that ends in {' or '.join(FORMATS)}")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise InputError(
            f"--plot needs matplotlib, which does not load ({error}); "
            "pip install 'portable-spdnn[plot]'"
        ) from error


def plot(
    model: Model,
    strong: Sequence[Point],
    weak: Sequence[Point],
    path: str | os.PathLike[str],
) -> None:
    """Draw strong scaling, its parts, and weak scaling; all modelled, and labelled so.

    Parameters
    ----------
    model : Model
    strong, weak : sequence of Point
    path : path-like
        Ends in ``.png`` or ``.svg``; appears whole or not at all.

    Raises
    ------
    InputError
        As `check_plot`, or if the file cannot be written.
    """
    check_plot(path)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    nodes = [point.nodes for point in strong]
    question, calibration = model.question, model.calibration
    alone = strong[0].seconds * strong[0].efficiency * strong[0].nodes  # of one node
    left.plot(nodes, [alone / n for n in nodes], "--", color=_GREY, label="ideal")
    left.plot(nodes, [p.seconds for p in strong], "o-", color=_BLUE, lw=2, label="modelled")
    least = min(alone / max(nodes), min(p.seconds for p in strong)) / 30
    for name in BOUNDS[1:]:
        parts = [getattr(point, name) for point in strong]
        if max(parts) > least:
            # What is nothing, or a gain, has no place on a logarithmic axis.
            shown = [part if part > 0 else float("nan") for part in parts]
            left.plot(nodes, shown, ":", marker=".", color=_PARTS[name], label=f"of it: {name}")
    left.set_ylim(bottom=least)
    left.set_ylabel("inference, seconds")
    left.set_title(f"Strong scaling: {question.inputs:,} inputs in all")
    base = weak[0].edge_rate / weak[0].efficiency / weak[0].nodes
    right.plot(nodes, [base * n for n in nodes], "--", color=_GREY, label="ideal")
    for points, kind, mark in ((weak, "weak", "o-"), (strong, "strong", "s-")):
        right.plot(
            nodes, [p.edge_rate for p in points], mark, lw=2, label=f"modelled, {kind}",
            color=_BLUE if points is weak else _PARTS["imbalance"],
        )  # fmt: skip
        last = points[-1]
        above = points is weak
        right.annotate(
            f"{rate(last.edge_rate)}\n{100 * last.efficiency:.0f} % of ideal",
            (last.nodes, last.edge_rate), xytext=(-14, 0) if above else (0, -12),
            textcoords="offset points", ha="right", va="center" if above else "top", fontsize=8,
        )  # fmt: skip
    right.set_ylabel("challenge edge rate, edges/s")
    right.set_title(f"Weak ({question.inputs:,} inputs a node) and strong")
    for axes in (left, right):
        _finish(axes, nodes)
    streamed = "" if model.costs.budget is None else ", layers streamed"
    figure.suptitle(
        f"{calibration.neurons:,} neurons x {question.layers:,} layers, {question.schedule} "
        f"schedule{streamed}: a model, calibrated on one node\n"
        f"{calibration.backend}, {calibration.device}; "
        f"assumed latency {1e6 * question.latency:.3g} us, "
        f"bandwidth {question.bandwidth / 1e9:.3g} GB/s",
        fontsize=10,
    )
    drawn = io.BytesIO()
    figure.savefig(drawn, format=Path(path).suffix.lower()[1:], dpi=120)
    with atomic_output(path) as stream:
        stream.write(drawn.getvalue())


def _finish(axes: Any, nodes: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(nodes, [str(n) for n in nodes], fontsize=8)
    axes.set_xticks([], minor=True)
    axes.set_xlabel("nodes")
    axes.grid(visible=True, which="major", color="#dddddd", lw=0.6)
    axes.legend(fontsize=8)
