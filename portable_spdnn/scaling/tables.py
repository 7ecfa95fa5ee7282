"""Predictions for people and scripts: tables, a chart, assumptions, JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from portable_spdnn import __version__
from portable_spdnn.host import format_bytes
from portable_spdnn.mpi.run import POLL_SECONDS
from portable_spdnn.plans.partition import CHUNKS_EACH
from portable_spdnn.report import run_report
from portable_spdnn.scaling.prediction import COLLECTIVES, Point, Prediction

BAR = 40


def seconds(value: float) -> str:
    """Return a duration with three digits: 12.3 s, 4.56 ms, 7.89 us."""
    if value < 0:
        return f"-{seconds(-value)}"
    return run_report.seconds(value) if value >= 1e-3 or not value else f"{1e6 * value:.3g} us"


COLUMNS: dict[str, Callable[[Point], str]] = {
    "nodes": lambda point: str(point.nodes),
    "inputs": lambda point: str(point.inputs),
    "inference": lambda point: seconds(point.seconds),
    "challenge edge rate": lambda point: run_report.rate(point.edge_rate),
    "speed-up": lambda point: f"{point.speed_up:.4g}",
    "efficiency": lambda point: f"{100 * point.efficiency:.3g} %",
    "imbalance": lambda point: f"{point.load_imbalance:.3g}",
    "compute": lambda point: seconds(point.compute),
    "granularity": lambda point: seconds(round(point.granularity, 12)),  # less is rounding
    "planning": lambda point: seconds(point.planning) if point.planning else "-",
    "waiting": lambda point: seconds(max(0.0, round(point.imbalance, 12))),
    "gather": lambda point: seconds(point.gather),
    "bound by": lambda point: point.bound,
}


def chart(answer: Prediction) -> list[str]:
    """Return parallel efficiency as bars, a line for each number of nodes and kind."""
    width = len(f"{max(answer.question.nodes)} strong")
    lines = [f"parallel efficiency, {BAR} characters are 100 %"]
    for pair in zip(answer.strong, answer.weak, strict=True):
        for point, label in zip(pair, (f"{pair[0].nodes} strong", "weak  "), strict=True):
            bar = "#" * min(BAR + 5, round(BAR * point.efficiency))
            lines.append(f"{label:>{width}} {bar} {100 * point.efficiency:.3g} %")
    return lines


def facts(answer: Prediction) -> dict[str, str]:
    """Return what the prediction stands on by name: measured, then assumed."""
    made, asked = answer.calibration, answer.question
    lives, dense, messages = made.lives, made.dense, made.messages
    one, full = (
        f"{dense.inputs[n] / dense.seconds[n] / 1e9 if dense.seconds[n] else float('inf'):.3g}"
        for n in (0, -1)
    )
    how = "measured" if made.depth_factor_measured else "not told from noise: taken as 1"
    return {
        "network": f"{made.neurons} neurons x {asked.layers} layers, {answer.edges.sum():.6g} "
        f"edges ({made.network}); the first {made.layers} layers were run",
        "inputs": f"{asked.inputs}, {asked.schedule} schedule; lives of {len(lives.active_after)} "
        f"of {lives.source_inputs} recorded ({made.inputs}), of which "
        f"{100 * lives.active_after.count(lives.layers) / len(lives.active_after):.3g} % live on",
        "node": f"{made.backend} ({made.device}), {made.threads} thread(s), {made.dtype}, one rank",
        "measured": f"a layer runs at {full} G edges/s on {dense.inputs[-1]} live inputs, "
        f"{one} on {dense.inputs[0]}\n"
        f"first {made.start_layers} layer(s), in which inputs die: "
        f"{seconds(made.start.seconds[-1])} for {made.start.inputs[-1]} real inputs\n"
        f"calibration factor of the layers after them: {made.depth_factor:.3g} ({how})\n"
        f"memory touched for the first time: {1e6 * made.first_batch_seconds:.3g} us an "
        f"input of a node's first batch; batches of up to {made.batch_size} inputs",
        "setup": f"{seconds(answer.setup)} of loading and planning on each node before the clock "
        f"starts: {1e9 * made.load_seconds_edge:.3g} ns an edge and "
        f"{1e9 * made.plan_seconds_edge:.3g} ns an edge",
        "gather": "measured: "
        f"{seconds(messages.unpickle_seconds + messages.unpickle_seconds_batch)} to unpickle a "
        f"rank of one batch; assumed: latency {seconds(asked.latency)} (--latency) in "
        f"{COLLECTIVES} x ceil(log2 nodes) rounds, {asked.bandwidth / 1e9:.3g} GB/s into rank 0 "
        "(--bandwidth)",
        "assumed": "\n".join(assumptions(answer)),
    }


def assumptions(answer: Prediction) -> list[str]:
    """Return what is taken for granted, a sentence each."""
    made, asked, budget = answer.calibration, answer.question, answer.budget
    said = ["every node is like the one that was measured, and shares nothing with another"]
    if asked.layers > made.layers:
        said.append(
            f"layers beyond {made.layers} cost what those before cost, on the inputs that are "
            f"alive after layer {made.layers}"
        )
    if made.lives.stride > 1 or asked.inputs > made.lives.source_inputs:
        said.append(
            f"an input that was not recorded lives as one drawn (seed {asked.seed}) of the "
            f"{made.lives.neighbours} recorded ones around its place in the order"
        )
    said.append("first layers cost by the number of inputs, whichever these are")
    if asked.schedule == "dynamic":
        said.append(
            f"{CHUNKS_EACH} chunks a node go to whoever is free; asking takes two latencies and "
            f"half of the {seconds(POLL_SECONDS)} between two looks of rank 0"
        )
    if budget is None:
        said.append("the network fits in a node's memory")
    else:
        said.append(
            f"the network is streamed in {format_bytes(budget.memory)} a node, "
            f"{len(answer.blocks)} blocks of layers read, while others run, and planned within "
            "the inference"
        )
    return said


def as_json(answer: Prediction) -> dict[str, Any]:
    """Return the JSON object of a prediction."""
    return {
        "version": __version__,
        "question": asdict(answer.question),
        "calibration": asdict(answer.calibration),
        "assumptions": assumptions(answer),
        "streamed": answer.budget is not None,
        "setup_seconds": answer.setup,
        "strong": [asdict(point) for point in answer.strong],
        "weak": [asdict(point) for point in answer.weak],
    }
