"""Strong and weak scaling as a picture; needs the extra ``plot``."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from portable_spdnn.errors import InputError
from portable_spdnn.io.atomic_output import atomic_output
from portable_spdnn.scaling.prediction import Point, Prediction


def check_plot(path: Path) -> None:
    """Check, before anything is measured, that a picture can be drawn.

    Raises
    ------
    InputError
        If the name ends neither in .png nor in .svg, or matplotlib is missing.
    """
    if path.suffix.lower() not in (".png", ".svg"):
        raise InputError(f"{path}: a plot is a file that ends in .png or .svg")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise InputError(
            f"a plot needs matplotlib, which does not load ({error}); "
            "pip install 'portable-spdnn[plot]'"
        ) from error


def plot(prediction: Prediction, path: Path) -> None:
    """Draw the seconds of strong and of weak scaling, with the ideal and their parts.

    Raises
    ------
    InputError
        If the file, which appears whole or not at all, cannot be written.
    """
    from matplotlib.figure import Figure

    asked, made = prediction.question, prediction.calibration
    figure = Figure(figsize=(11, 4.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw(left, prediction.strong, f"strong scaling: {asked.inputs:,} inputs in all")
    _draw(right, prediction.weak, f"weak scaling: {asked.inputs:,} inputs a node")
    figure.suptitle(
        f"{made.neurons:,} neurons x {asked.layers:,} layers, modelled from one node: "
        f"{made.backend}, {made.device}"
    )
    drawn = io.BytesIO()
    figure.savefig(drawn, format=path.suffix.lower()[1:], dpi=120)
    with atomic_output(path) as stream:
        stream.write(drawn.getvalue())


def _draw(axes: Any, points: Sequence[Point], title: str) -> None:
    """Draw the seconds of one kind of scaling by the number of nodes."""
    nodes, seconds = [one.nodes for one in points], [one.seconds for one in points]
    ideal = [one.seconds * one.efficiency for one in points]
    axes.plot(nodes, ideal, "k--", label="ideal")
    axes.plot(nodes, seconds, "o-", label="modelled")
    for name in ("granularity", "planning", "imbalance", "gather"):
        part = [getattr(one, name) for one in points]
        if max(part) > 0:
            axes.plot(nodes, part, ".:", label=f"of it: {name}")
    # A logarithmic axis shows no zeros and no gains.
    axes.set(xscale="log", ylim=(min(ideal + seconds) / 100, None))
    axes.set_yscale("log", nonpositive="mask")
    axes.set(xlabel="nodes", ylabel="inference, seconds", title=title)
    axes.set_xticks(nodes, [str(n) for n in nodes])
    axes.legend()
