"""Results as tables for people and as JSON for scripts."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from portable_spdnn import __version__
from portable_spdnn.errors import InputError
from portable_spdnn.graphchallenge.categories import Verdict, categories_sha256
from portable_spdnn.host import format_bytes
from portable_spdnn.io.atomic_output import atomic_output
from portable_spdnn.kernel_model import LayerSpeed, Limits, speed, speed_text
from portable_spdnn.plans.base import NetworkPlan
from portable_spdnn.plans.device_report import DeviceReport
from portable_spdnn.plans.result import Result
from portable_spdnn.workloads.loading import Workload

SLOWEST = 12  # layers of a table: those that matter


def rate(edges_per_second: float) -> str:
    """Return an edge rate with the unit that fits: 1.23 TeraEdges/s."""
    for unit, scale in (("Tera", 1e12), ("Giga", 1e9), ("Mega", 1e6)):
        if edges_per_second >= scale:
            return f"{edges_per_second / scale:.3g} {unit}Edges/s"
    return f"{edges_per_second:.3g} Edges/s"


def seconds(value: float) -> str:
    """Return a duration with three digits: 12.3 s, 4.56 ms."""
    return f"{value:.3g} s" if value >= 1 else f"{value * 1e3:.3g} ms"


def versions(backend_versions: Mapping[str, str]) -> dict[str, str]:
    """Return the versions that a result depends on."""
    return {
        "portable_spdnn": __version__,
        "python": platform.python_version(),
        "numpy": version("numpy"),
        **backend_versions,
    }


def run_record(
    work: Workload,
    result: Result,
    verdict: Verdict | None,
    backend_versions: Mapping[str, str],
    extra: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the JSON object of one run.

    `seconds_per_layer` is null where the plan does not run layer by layer.
    """
    per_layer = [record.seconds for record in result.records]
    report = result.device_report
    return {
        "backend": result.backend,
        "device": result.device,
        "execution_space": result.execution_space,
        "neurons": result.neurons,
        "layers": result.layers,
        "inputs": result.inputs,
        "edges": result.edges,
        "network": work.source.network.name,
        "inputs_source": work.source.inputs.name,
        "load_seconds": work.load_seconds,
        "plan_seconds": result.plan_seconds,
        "inference_seconds": result.inference_seconds,
        "edge_rate": result.edge_rate,
        "executed_edges": result.executed_edges,
        "executed_edge_rate": result.executed_edge_rate,
        "exact_passes": list(result.exact_passes),
        "categories_count": int(result.categories.size),
        "categories_sha256": categories_sha256(result.categories),
        "verdict": None if verdict is None else "PASSED" if verdict.passed else "FAILED",
        "verdict_against": None if verdict is None else verdict.source,
        "alive_inputs_per_layer": [record.alive_inputs for record in result.records],
        "seconds_per_layer": None if None in per_layer else per_layer,
        "device_report": None
        if report is None
        else {**asdict(report), "hidden_copies": report.hidden_copies},
        "resumed_inputs": result.resumed_inputs,
        "replicas": [asdict(record) for record in result.replicas] or None,
        "imbalance": result.imbalance if result.replicas else None,
        "parallel_efficiency": result.parallel_efficiency if result.replicas else None,
        "versions": versions(backend_versions),
        **extra,
    }


def run_facts(
    work: Workload, plan: NetworkPlan, result: Result, peak_memory: int
) -> list[tuple[str, str]]:
    """Return what a run was and how fast, a name and a text each."""
    network, options = plan.network, plan.options
    ranks = _ranks(result)
    facts = [
        (
            "network",
            f"{network.neurons} neurons x {len(network)} layers, {network.edges} edges "
            f"({work.source.network.name})",
        ),
        ("inputs", f"{result.inputs} ({work.source.inputs.name})"),
        ("backend", f"{result.backend} ({result.device}), {options.dtype}"),
        ("plan", plan.describe()),
        ("load", seconds(work.load_seconds)),
        ("planning", seconds(result.plan_seconds)),
        ("inference", seconds(result.inference_seconds)),
        ("challenge edge rate", rate(result.edge_rate)),
        ("executed edge rate", rate(result.executed_edge_rate)),
        ("exact passes", ", ".join(result.exact_passes) or "none"),
        ("survivors", str(result.categories.size)),
    ]
    if result.device_report is not None:
        facts.append(("device", device_text(result.device_report)))
    if options.memory is not None:
        each = " a rank" if ranks else ""
        allowed = f"{format_bytes(options.memory)} allowed{each}"
        facts.append(("peak memory", f"{format_bytes(peak_memory)} of {allowed}"))
    if result.resumed_inputs:
        facts.append(("checkpoint", f"{result.resumed_inputs} inputs were finished before"))
    if result.replicas:
        one = "rank" if ranks == len(result.replicas) else "device"
        facts += [
            *([("ranks", str(ranks))] if ranks else []),
            *([("devices", str(len(result.replicas)))] if one == "device" else []),
            ("imbalance", f"{result.imbalance:.3g} (busiest {one} over the mean)"),
            ("parallel efficiency", f"{100 * result.parallel_efficiency:.3g} % of the time busy"),
        ]
    return facts


def device_text(report: DeviceReport) -> str:
    """Return where a device's time went, in words."""
    parts = [
        f"{seconds(report.kernel_seconds)} in the layers' kernels",
        f"{seconds(report.copy_seconds)} in copies of features",
    ]
    if report.gap_seconds is not None:
        parts[0] += f", {seconds(report.gap_seconds)} of it between them"
    if report.hidden_copies is not None:
        parts.append(
            f"{seconds(report.weight_copy_seconds)} in copies of weights, "
            f"{100 * report.hidden_copies:.0f} % of it hidden"
        )
    return f"{'; '.join(parts)}; {format_bytes(report.peak_memory)} of its memory at most"


def layer_speeds(plan: NetworkPlan, result: Result, limits: Limits) -> list[LayerSpeed] | None:
    """Return how fast each layer was beside the machine's limits; None where not timed."""
    timed = [(record.computed_inputs, record.seconds) for record in result.records]
    computed = [inputs for inputs, _ in timed if inputs is not None]
    models = plan.layer_models(computed) if len(computed) == len(timed) else None
    if models is None or any(not spent for _, spent in timed):
        return None
    edges = (layer.nnz for layer in plan.network)
    return [
        speed(model, limits, nnz * inputs, spent or 0.0)
        for model, nnz, inputs, (_, spent) in zip(models, edges, computed, timed, strict=True)
    ]


def layer_table(
    speeds: Sequence[LayerSpeed], result: Result, limits: Limits
) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Return columns and rows of the layers that took longest."""
    order = sorted(range(len(speeds)), key=lambda layer: -speeds[layer].seconds)[:SLOWEST]
    columns = ["slowest layers", "inputs", "time", "executed", "beside the limits"]
    rows = []
    for layer in sorted(order):
        found = speeds[layer]
        computed = str(result.records[layer].computed_inputs)
        executed, beside = rate(found.edge_rate), speed_text(found, limits)
        rows.append([str(layer + 1), computed, seconds(found.seconds), executed, beside])
    return columns, rows


def replica_table(result: Result) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Return columns and rows of what each rank or device did."""
    columns = ["rank", "host", "device", "inputs", "load", "planning", "busy", "executed edges"]
    rows = [
        [
            str(record.rank),
            record.host,
            record.device,
            str(record.inputs),
            "" if record.load_seconds is None else seconds(record.load_seconds),
            seconds(record.plan_seconds),
            seconds(record.busy_seconds),
            f"{record.executed_edges:.4g}",
        ]
        for record in result.replicas
    ]
    if _ranks(result):
        return columns, rows
    kept = [n for n, name in enumerate(columns) if name not in ("rank", "host", "load")]
    return [columns[n] for n in kept], [[row[n] for n in kept] for row in rows]


def _ranks(result: Result) -> int:
    """Return how many ranks of a job shared the inputs; 0 where there was no job."""
    return len({one.rank for one in result.replicas if one.load_seconds is not None})


def write_json(record: Any, target: str) -> None:
    """Write JSON to a file, all or nothing, or to standard output where `target` is "-"."""
    write_text(json.dumps(record, indent=2) + "\n", target)


def write_text(text: str, target: str) -> None:
    """Write text to a file, all or nothing, or to standard output where `target` is "-"."""
    if target == "-":
        if getattr(sys.stdout, "name", "") == os.devnull:  # the caller has closed it
            raise InputError("the standard output is closed; name a file in place of -")
        sys.stdout.write(text)
    else:
        with atomic_output(Path(target)) as stream:
            stream.write(text.encode())


def print_facts(rows: Sequence[tuple[str, str]], to_stderr: bool) -> None:
    """Print one fact a line, names aligned."""
    table = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    _console(to_stderr).print(table)


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], to_stderr: bool = False
) -> None:
    """Print a table with a header."""
    table = Table(*columns, box=box.SIMPLE, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    _console(to_stderr).print(table)


def _console(to_stderr: bool) -> Any:
    stream = sys.stderr if to_stderr else sys.stdout
    # A file or pipe has no width: lines stay whole there, so that scripts can read them.
    width = None if stream.isatty() else 200
    return Console(file=stream, width=width, highlight=False, markup=False)
