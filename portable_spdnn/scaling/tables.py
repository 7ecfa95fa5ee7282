"""Predictions for people and scripts: tables, what they are based on, JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from portable_spdnn.host import format_bytes
from portable_spdnn.mpi.run import POLL_SECONDS
from portable_spdnn.plans.partition import CHUNKS_EACH
from portable_spdnn.report import run_report
from portable_spdnn.scaling.prediction import COLLECTIVES, Point, Prediction
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
    ("imbalance", lambda point: f"{point.load_imbalance:.3g}"),
    ("compute", lambda point: _seconds(point.compute)),
    ("granularity", lambda point: _seconds(point.granularity)),
    ("planning", lambda point: _seconds(point.planning)),
    ("waiting", lambda point: _seconds(point.imbalance)),
    ("gather", lambda point: _seconds(point.gather)),
    ("bound by", lambda point: point.bound),
]


def show(prediction: Prediction, to_stderr: bool) -> None:
    """Print what a prediction is based on, and its tables."""
    based_on = {"measured": _measurements(prediction), "assumed": _assumptions(prediction)}
    facts = [(name, "\n".join(sentences)) for name, sentences in based_on.items()]
    run_report.print_facts(facts, to_stderr)
    inputs, names = prediction.question.inputs, [name for name, _ in _COLUMNS]
    for title, points in (
        (f"strong scaling: {inputs} inputs in all", prediction.strong),
        (f"weak scaling: {inputs} inputs a node", prediction.weak),
    ):
        print(title, file=sys.stderr if to_stderr else sys.stdout)
        rows = [[text(point) for _, text in _COLUMNS] for point in points]
        run_report.print_table(names, rows, to_stderr)


def _measurements(prediction: Prediction) -> list[str]:
    """Return what was measured, a sentence each."""
    made, asked, dense = prediction.calibration, prediction.question, prediction.calibration.dense
    recorded = made.lifetimes.active_after
    survivors = recorded.count(made.layers) / len(recorded)
    rate = run_report.rate(dense.inputs[-1] / max(dense.seconds[-1], 1e-300))
    return [
        f"network: {made.neurons} neurons x {asked.layers} layers, {prediction.edges.sum():.6g} "
        f"edges ({made.network}); the first {made.layers} layers were run",
        f"inputs: {asked.inputs}, {asked.schedule} schedule; the lifetimes of {len(recorded)} of "
        f"{made.lifetimes.source_inputs} inputs were recorded ({made.inputs}), and "
        f"{100 * survivors:.3g} % survive",
        f"node: {made.backend} ({made.device}), {made.threads} thread(s), {made.dtype}, one rank",
        f"a later layer executes {rate} on {dense.inputs[-1]} active inputs, and its seconds are "
        f"multiplied by {made.depth_factor:.3g}, as measured in depth (1 where noise hides it)",
        f"loading and planning take {_seconds(prediction.setup)} on each node before the clock "
        "starts",
    ]


def _assumptions(prediction: Prediction) -> list[str]:
    """Return what is assumed, a sentence each."""
    made, asked, budget = prediction.calibration, prediction.question, prediction.budget
    lifetimes, said = made.lifetimes, []
    if asked.layers > made.layers:
        said.append(
            f"layers beyond {made.layers} cost what those before cost, on the inputs that are "
            f"active after layer {made.layers}"
        )
    if lifetimes.stride > 1 or asked.inputs > lifetimes.source_inputs:
        said.append(
            f"an input that was not recorded has the lifetime of one drawn (seed {asked.seed}) "
            f"from the {lifetimes.neighbours} recorded ones around its position in the order"
        )
    if asked.schedule == "dynamic":
        said.append(
            f"{CHUNKS_EACH} chunks for each node go to whichever node is free; a request takes two "
            f"latencies and half of the {_seconds(POLL_SECONDS)} between two polls of rank 0"
        )
    return [
        "every node is like the one that was measured, and shares nothing with another",
        f"the results need {COLLECTIVES} x ceil(log2 nodes) messages, one after the other, with "
        f"latency {_seconds(asked.latency)} (--latency), and {asked.bandwidth / 1e9:.3g} GB/s into "
        "rank 0 (--bandwidth)",
        *said,
        "the network fits in a node's memory"
        if budget is None
        else f"the network is streamed in {format_bytes(budget.memory)} a node: "
        f"{len(prediction.blocks)} blocks of layers are read while others run, and planned within "
        "the inference",
    ]


def as_json(prediction: Prediction) -> dict[str, Any]:
    """Return the JSON object of a prediction, what it is based on included."""
    return {
        "version": __version__,
        "question": asdict(prediction.question),
        "calibration": asdict(prediction.calibration),
        "assumptions": _assumptions(prediction),
        "streamed": prediction.budget is not None,
        "setup_seconds": prediction.setup,
        "strong": [asdict(point) for point in prediction.strong],
        "weak": [asdict(point) for point in prediction.weak],
    }
