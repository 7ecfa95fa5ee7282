"""Strong and weak scaling as a picture; needs the extra ``plot``."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from portable_spdnn.errors import InputError
from portable_spdnn.io.atomic_output import atomic_output
from portable_spdnn.report.run_report import rate
from portable_spdnn.scaling.prediction import Prediction

FORMATS = (".png", ".svg")
_BLUE, _RED, _GREY = "#1f5fa8", "#c2452d", "#777777"
_PARTS = {
    "granularity": "#e0a030", "planning": "#7b4ea3", "imbalance": _RED, "gather": "#3a8f4f",
}  # fmt: skip


def check_plot(path: Path) -> None:
    """Raise InputError where a picture could not be drawn, before anything is measured."""
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"{path}: a plot is a file that ends in {' or '.join(FORMATS)}")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise InputError(
            f"a plot needs matplotlib, which does not load ({error}); "
            "pip install 'portable-spdnn[plot]'"
        ) from error


def plot(answer: Prediction, path: Path) -> None:
    """Draw strong scaling, its parts, and weak scaling; all modelled, and labelled so.

    The file appears whole or not at all; raises InputError if it cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    question, calibration = answer.question, answer.calibration
    strong, weak = answer.strong, answer.weak
    nodes = np.array(question.nodes)

    seconds = np.array([point.seconds for point in strong])
    ideal = strong[0].seconds * strong[0].speed_up / nodes
    left.plot(nodes, ideal, "--", color=_GREY, label="ideal")
    left.plot(nodes, seconds, "o-", color=_BLUE, lw=2, label="modelled")
    least = min(ideal.min(), seconds.min()) / 30
    for name, colour in _PARTS.items():
        part = np.array([getattr(point, name) for point in strong])
        if part.max() > least:
            # What is nothing, or a gain, has no place on a logarithmic axis.
            part = np.where(part > 0, part, np.nan)
            left.plot(nodes, part, ":", marker=".", color=colour, label=f"of it: {name}")
    left.set_ylim(bottom=least)
    left.set_ylabel("inference, seconds")
    left.set_title(f"Strong scaling: {question.inputs:,} inputs in all")

    ideal = weak[0].edge_rate / weak[0].speed_up * nodes
    right.plot(nodes, ideal, "--", color=_GREY, label="ideal")
    for points, kind, mark, colour, place, align in (
        (weak, "weak", "o-", _BLUE, (-14, 0), "center"),
        (strong, "strong", "s-", _RED, (0, -12), "top"),
    ):
        rates = [point.edge_rate for point in points]
        right.plot(nodes, rates, mark, lw=2, label=f"modelled, {kind}", color=colour)
        right.annotate(
            f"{rate(rates[-1])}\n{100 * points[-1].efficiency:.0f} % of ideal",
            (nodes[-1], rates[-1]), xytext=place, textcoords="offset points", ha="right",
            va=align, fontsize=8,
        )  # fmt: skip
    right.set_ylabel("challenge edge rate, edges/s")
    right.set_title(f"Weak ({question.inputs:,} inputs a node) and strong")

    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(nodes, [str(n) for n in nodes], fontsize=8)
        axes.set_xticks([], minor=True)
        axes.set_xlabel("nodes")
        axes.grid(visible=True, which="major", color="#dddddd", lw=0.6)
        axes.legend(fontsize=8)
    figure.suptitle(
        f"{calibration.neurons:,} neurons x {question.layers:,} layers, {question.schedule} "
        f"schedule{', layers streamed' if answer.budget else ''}: a model, calibrated on one node\n"
        f"{calibration.backend}, {calibration.device}; assumed latency "
        f"{1e6 * question.latency:.3g} us, bandwidth {question.bandwidth / 1e9:.3g} GB/s",
        fontsize=10,
    )
    drawn = io.BytesIO()
    figure.savefig(drawn, format=path.suffix.lower()[1:], dpi=120)
    with atomic_output(path) as stream:
        stream.write(drawn.getvalue())
