"""Predictions for people and scripts: tables, a chart, assumptions, JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from portable_spdnn import __version__
from portable_spdnn.host import format_bytes
from portable_spdnn.mpi.run import POLL_SECONDS
from portable_spdnn.plans.partition import CHUNKS_EACH
from portable_spdnn.report.run_report import rate
from portable_spdnn.report.run_report import seconds as milliseconds
from portable_spdnn.scaling.calibration import Calibration
from portable_spdnn.scaling.prediction import COLLECTIVES, Model, Point

COLUMNS = (
    "nodes", "inputs", "inference", "challenge edge rate", "speed-up", "efficiency", "imbalance",
    "compute", "granularity", "planning", "waiting", "gather", "bound by",
)  # fmt: skip
BAR = 40


def seconds(value: float) -> str:
    """Return a duration with three digits: 12.3 s, 4.56 ms, 7.89 us."""
    if value < 0:
        return f"-{seconds(-value)}"
    return milliseconds(value) if value >= 1e-3 or not value else f"{1e6 * value:.3g} us"


def cells(point: Point) -> tuple[str, ...]:
    """Return one row of the table."""
    return (
        str(point.nodes),
        str(point.inputs),
        seconds(point.seconds),
        rate(point.edge_rate),
        f"{point.speed_up:.4g}",
        f"{100 * point.efficiency:.3g} %",
        f"{point.load_imbalance:.3g}",
        seconds(point.compute),
        seconds(point.granularity),
        seconds(point.planning) if point.planning else "-",
        seconds(max(0.0, point.imbalance)),
        seconds(point.gather),
        point.bound,
    )


def chart(strong: Sequence[Point], weak: Sequence[Point]) -> list[str]:
    """Return parallel efficiency as bars, a line for each number of nodes and kind."""
    width = max(len(str(point.nodes)) for point in strong)
    lines = [f"parallel efficiency, {BAR} characters are 100 %"]
    for one, other in zip(strong, weak, strict=True):
        for label, point in (
            (f"{one.nodes:>{width}} strong", one),
            (" " * width + " weak  ", other),
        ):
            length = min(BAR + 5, max(0, round(BAR * point.efficiency)))
            lines.append(f"{label} {'#' * length} {100 * point.efficiency:.3g} %")
    return lines


def facts(model: Model) -> list[tuple[str, str]]:
    """Return what the prediction stands on, a name and a text each: measured, then assumed."""
    calibration, question = model.calibration, model.question
    lives, messages = calibration.lives, calibration.messages
    return [
        (
            "network",
            f"{calibration.neurons} neurons x {question.layers} layers, "
            f"{model.costs.total_edges:.6g} edges ({calibration.network}); the first "
            f"{calibration.layers} layers were run",
        ),
        (
            "inputs",
            f"{question.inputs}, {question.schedule} schedule; lives of {len(lives.alive_after)} "
            f"of {lives.source_inputs} recorded ({calibration.inputs}), of which "
            f"{100 * lives.survival:.3g} % live on",
        ),
        (
            "node",
            f"{calibration.backend} ({calibration.device}), {calibration.threads} thread(s), "
            f"{calibration.dtype}, one rank",
        ),
        ("measured", _costs(calibration)),
        (
            "setup",
            f"{seconds(model.costs.setup)} of loading and planning on each node before the clock "
            f"starts: {_edges(calibration.load_seconds_edge)} and "
            f"{_edges(calibration.plan_seconds_edge)}",
        ),
        (
            "gather",
            f"measured: {seconds(messages.unpickle_seconds + messages.unpickle_seconds_batch)} to "
            f"unpickle a rank of one batch; assumed: latency {seconds(question.latency)} "
            f"(--latency) in {COLLECTIVES} x ceil(log2 nodes) rounds, "
            f"{question.bandwidth / 1e9:.3g} GB/s into rank 0 (--bandwidth)",
        ),
        ("assumed", "\n".join(assumptions(model))),
    ]


def _costs(calibration: Calibration) -> str:
    dense = calibration.dense
    full = dense.inputs[-1] / dense.seconds[-1] / 1e9 if dense.seconds[-1] else float("inf")
    one = dense.inputs[0] / dense.seconds[0] / 1e9 if dense.seconds[0] else float("inf")
    how = "measured" if calibration.depth_factor_measured else "not told from noise: taken as 1"
    most = calibration.start.inputs[-1]
    return (
        f"a layer runs at {full:.3g} G edges/s on {dense.inputs[-1]} live inputs, "
        f"{one:.3g} on {dense.inputs[0]}\n"
        f"first {calibration.start_layers} layer(s), in which inputs die: "
        f"{seconds(float(calibration.start(most)))} for {most} real inputs\n"
        f"calibration factor of the layers after them: {calibration.depth_factor:.3g} ({how})\n"
        f"memory touched for the first time: {1e6 * calibration.first_batch_seconds:.3g} us an "
        f"input of a node's first batch; batches of up to {calibration.batch_size} inputs"
    )


def _edges(per_edge: float) -> str:
    return f"{1e9 * per_edge:.3g} ns an edge"


def assumptions(model: Model) -> list[str]:
    """Return what is taken for granted, a sentence each."""
    calibration, question = model.calibration, model.question
    lives = calibration.lives
    said = ["every node is like the one that was measured, and shares nothing with another"]
    if question.layers > calibration.layers:
        said.append(
            f"layers beyond {calibration.layers} cost what those before cost, on the inputs that "
            f"are alive after layer {calibration.layers}"
        )
    if not lives.complete or question.inputs > lives.source_inputs:
        said.append(
            f"an input that was not recorded lives as one drawn (seed {question.seed}) of the "
            f"{lives.neighbours} recorded ones around its place in the order"
        )
    said.append("first layers cost by the number of inputs, whichever these are")
    if question.schedule == "dynamic":
        said.append(
            f"{CHUNKS_EACH} chunks a node go to whoever is free; asking takes two latencies and "
            f"half of the {seconds(POLL_SECONDS)} between two looks of rank 0"
        )
    budget = model.costs.budget
    if budget is None:
        said.append("the network fits in a node's memory")
    else:
        said.append(
            f"the network is streamed in {format_bytes(budget.memory)} a node, "
            f"{len(model.costs.blocks)} blocks of layers read, while others run, and planned "
            "within the inference"
        )
    return said


def as_json(model: Model, strong: Sequence[Point], weak: Sequence[Point]) -> dict[str, Any]:
    """Return the JSON object of a prediction."""
    return {
        "version": __version__,
        "question": asdict(model.question),
        "calibration": asdict(model.calibration),
        "assumptions": assumptions(model),
        "streamed": model.costs.budget is not None,
        "setup_seconds": model.costs.setup,
        "strong": [asdict(point) for point in strong],
        "weak": [asdict(point) for point in weak],
    }
