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


def check_plot(path: Path) -> None:
    """Check, before anything is measured, that a picture can be drawn.

    Raises
    ------
    InputError
        If the name ends in none of `FORMATS`, or matplotlib is missing.
    """
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"{path}: a plot is a file that ends in {' or '.join(FORMATS)}")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise InputError(
            f"a plot needs matplotlib, which does not load ({error}); "
            "pip install 'portable-spdnn[plot]'"
        ) from error


def plot(prediction: Prediction, path: Path) -> None:
    """Draw the seconds of strong scaling with their parts, and the rates of both.

    Raises
    ------
    InputError
        If the file, which appears whole or not at all, cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    question, calibration = prediction.question, prediction.calibration
    strong, weak = prediction.strong, prediction.weak
    nodes = np.array(question.nodes)

    seconds = np.array([point.seconds for point in strong])
    ideal = seconds[0] * strong[0].speed_up / nodes
    lowest = min(ideal.min(), seconds.min()) / 30
    left.plot(nodes, ideal, "k--", label="ideal")
    left.plot(nodes, seconds, "o-", label="modelled")
    for name in ("granularity", "planning", "imbalance", "gather"):
        part = np.array([getattr(point, name) for point in strong])
        if part.max() > lowest:  # a logarithmic axis has no place for zeros and gains
            left.plot(nodes, np.where(part > 0, part, np.nan), ".:", label=f"of it: {name}")
    left.set_ylim(bottom=lowest)
    left.set_ylabel("inference, seconds")
    left.set_title(f"Strong scaling: {question.inputs:,} inputs in all")

    right.plot(nodes, weak[0].edge_rate / weak[0].speed_up * nodes, "k--", label="ideal")
    for points, kind, mark in ((weak, "weak", "o-"), (strong, "strong", "s-")):
        rates = [point.edge_rate for point in points]
        last = f"{rate(rates[-1])}, {100 * points[-1].efficiency:.0f} % of ideal"
        right.plot(nodes, rates, mark, label=f"modelled, {kind}: {last} on {nodes[-1]}")
    right.set_ylabel("challenge edge rate, edges/s")
    right.set_title(f"Weak ({question.inputs:,} inputs a node) and strong scaling")

    for axes in (left, right):
        axes.set(xscale="log", yscale="log", xlabel="nodes")
        axes.set_xticks(nodes, [str(n) for n in nodes], fontsize=8)
        axes.set_xticks([], minor=True)
        axes.grid(color="#dddddd")
        axes.legend(fontsize=8)
    figure.suptitle(
        f"{calibration.neurons:,} neurons x {question.layers:,} layers, {question.schedule} "
        f"schedule{', layers streamed' if prediction.budget else ''}: a model, calibrated on one "
        f"node\n{calibration.backend}, {calibration.device}; assumed latency "
        f"{1e6 * question.latency:.3g} us, bandwidth {question.bandwidth / 1e9:.3g} GB/s",
        fontsize=10,
    )
    drawn = io.BytesIO()
    figure.savefig(drawn, format=path.suffix.lower()[1:], dpi=120)
    with atomic_output(path) as stream:
        stream.write(drawn.getvalue())
