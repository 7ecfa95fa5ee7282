"""Predictions for people and scripts: tables, pictures (with the extra ``plot``), JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from portable_spdnn.host import format_bytes
from portable_spdnn.mpi.run import POLL_SECONDS
from portable_spdnn.plans.partition import CHUNKS_EACH
from portable_spdnn.report import run_report
from portable_spdnn.report.plots import save_figure
from portable_spdnn.scaling.prediction import COLLECTIVES, RESULT_BYTES, Point, Prediction
from portable_spdnn.version import __version__


def _seconds(value: float) -> str:
    """Return a duration with three digits: 12.3 s, 4.56 ms, -7.89 us."""
    size = abs(round(value, 12))  # what is less than that comes from rounding
    text = run_report.seconds(size) if not 0 < size < 1e-3 else f"{1e6 * size:.3g} us"
    return f"-{text}" if size and value < 0 else text


# The columns of a table, and the text of a point in each.
_COLUMNS: list[tuple[str, Callable[[Point], str]]] = [
    ("nodes", lambda point: str(point.nodes)),
    ("inputs", lambda point: str(point.inputs)),
    ("inference", lambda point: _seconds(point.seconds)),
    ("challenge edge rate", lambda point: run_report.rate(point.edge_rate)),
    ("speed-up", lambda point: f"{point.speed_up:.4g}"),
    ("efficiency", lambda point: f"{100 * point.efficiency:.3g} %"),
    ("compute", lambda point: _seconds(point.compute)),
    ("granularity", lambda point: _seconds(point.granularity)),
    ("planning", lambda point: _seconds(point.planning)),
    ("waiting", lambda point: _seconds(point.imbalance)),
    ("gather", lambda point: _seconds(point.gather)),
    ("bound by", lambda point: point.bound),
]


def show(prediction: Prediction, to_stderr: bool) -> None:
    """Print what a prediction is based on, and its tables."""
    run_report.print_facts(_facts(prediction), to_stderr)
    for title, points in _titled(prediction):
        print(title, file=sys.stderr if to_stderr else sys.stdout)
        rows = [[text(point) for _, text in _COLUMNS] for point in points]
        run_report.print_table([name for name, _ in _COLUMNS], rows, to_stderr)


def _titled(prediction: Prediction) -> list[tuple[str, list[Point]]]:
    """Return the two kinds of scaling, each with a title."""
    inputs = f"{prediction.question.inputs:,} inputs"
    return [
        (f"strong scaling: {inputs} in all", prediction.strong),
        (f"weak scaling: {inputs} a node", prediction.weak),
    ]


def _facts(prediction: Prediction) -> list[tuple[str, str]]:
    """Return what was measured and what is assumed, a name and a sentence each."""
    made, asked, budget = prediction.calibration, prediction.question, prediction.budget
    dense, recorded, survivors = made.dense, made.active[0], made.active[-1]
    rate = run_report.rate(dense.inputs[-1] / max(dense.seconds[-1], 1e-300))
    memory = format_bytes(budget.memory) if budget else ""
    sizes = ", ".join(f"{size} for each {name}" for name, size in RESULT_BYTES.items())
    assumed = [
        (True, "every node is like the one that was measured, and shares nothing with another"),
        (True, f"pickled results take bytes: {sizes}"),
        (True, f"they are gathered in {COLLECTIVES} x ceil(log2 nodes) rounds with latency "
         f"{_seconds(asked.latency)} (--latency), and {asked.bandwidth / 1e9:.3g} GB/s into rank 0 "
         "(--bandwidth)"),
        (asked.layers > made.layers, f"layers beyond {made.layers} cost what those before cost, on "
         f"the inputs that are active after layer {made.layers}"),
        (True, f"every input lives as long as one drawn from the {recorded} that were run, "
         "wherever it stands in the order"),
        (asked.schedule == "dynamic", f"{CHUNKS_EACH} chunks for each node go to whichever node is "
         "free; a request takes two latencies and half of the "
         f"{_seconds(POLL_SECONDS)} between two polls of rank 0"),
        (budget is None, "the network fits in a node's memory"),
        (budget is not None, f"the network is streamed in {memory} a node: "
         f"{len(prediction.blocks)} blocks of layers are read while others run, and planned within "
         "the inference"),
    ]  # fmt: skip
    return [
        ("network", f"{made.neurons} neurons x {asked.layers} layers, {prediction.edges.sum():.6g} "
         f"edges ({made.network}); the first {made.layers} layers were run"),
        ("inputs", f"{asked.inputs}, {asked.schedule} schedule; {recorded} of {made.source_inputs} "
         f"inputs were run ({made.inputs}), and {100 * survivors / recorded:.3g} % survive"),
        ("node", f"{made.backend} ({made.device}), {made.threads} thread(s), {made.dtype}, one "
         f"rank; a later layer executes {rate} on {dense.inputs[-1]} active inputs"),
        ("setup", f"{_seconds(prediction.setup)} of loading and planning on each node before the "
         "clock starts"),
        *(("assumed", sentence) for applies, sentence in assumed if applies),
    ]  # fmt: skip


def as_json(prediction: Prediction) -> dict[str, Any]:
    """Return the JSON object of a prediction, what it is based on included."""
    return {
        "version": __version__,
        "question": asdict(prediction.question),
        "calibration": asdict(prediction.calibration),
        "assumptions": [text for name, text in _facts(prediction) if name == "assumed"],
        "streamed": prediction.budget is not None,
        "setup_seconds": prediction.setup,
        "strong": [asdict(point) for point in prediction.strong],
        "weak": [asdict(point) for point in prediction.weak],
    }


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
    for axes, (title, points) in zip(figure.subplots(1, 2), _titled(prediction), strict=True):
        _draw(axes, points, title)
    figure.suptitle(
        f"{made.neurons:,} neurons x {asked.layers:,} layers, modelled from one node: "
        f"{made.backend}, {made.device}"
    )
    save_figure(figure, path)


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
