"""docs/results/gpu.md from a stored run.

Usage: `python benchmarks/gpu/gpu_page.py RESULT.json`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outcome import NOT_ASKED_FOR

from portable_spdnn.errors import InputError, SpdnnError
from portable_spdnn.host import format_bytes
from portable_spdnn.report import run_report as report

PAGE = Path(__file__).resolve().parents[2] / "docs" / "results" / "gpu.md"
NOTHING = "-"
Record = dict[str, Any]


def page(record: Record, source: str) -> str:
    """Return the page of a run.

    Parameters
    ----------
    record : dict
        As `run_gpu` stores it.
    source : str
        Name of the file that holds it.

    Raises
    ------
    InputError
        If the run was not on a GPU.
    """
    facts = record["facts"]
    if not facts["gpu"]:
        raise InputError(
            f"{source}: was measured on {facts['device']}, not on a GPU; the page holds figures "
            "of GPUs alone"
        )
    versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
    driver = ", ".join(f"{name} {value}" for name, value in (facts["driver"] or {}).items())
    lines = [
        "# On a GPU",
        "",
        f"Measured by `benchmarks/gpu/run_gpu.py` on {record['datetime'][:10]}: {facts['device']}; "
        f"the record is `benchmarks/results/{source}`. Generated networks, {record['inputs']}. "
        "Categories were compared with those of a backend on the CPU before anything was timed, on "
        "as many inputs as the verdict says. Times are the least of two to five runs, from "
        "features in host memory to categories there.",
        "",
        f"- commit: {record['commit'] or 'unknown'}",
        f"- versions: {versions}",
        f"- driver: {driver or 'unknown'}",
        f"- limits: {_limits(record)}",
        "",
        *_networks(record),
        *_profiles(record),
        *_compared(record),
        *_layers(record),
        *_targets(record),
    ]
    return "\n".join(lines).rstrip() + "\n"


def write_page(record: Record, source: str, target: Path = PAGE) -> None:
    """Write the page, all or nothing; raises as `page`."""
    report.write_text(page(record, source), str(target))


def _limits(record: Record) -> str:
    limits = record["limits"]
    if limits is None:
        return f"not measured ({record['limits_error']})"
    levels = {"l1": "shared memory", "l2": "L2", "memory": "memory, read"}
    parts = [f"{limits['flops'] / 1e12:.1f} TFLOP/s in float32"]
    parts += [f"{name} {limits[level] / 1e12:.2f} TB/s" for level, name in levels.items()]
    return ", ".join(parts)


def _networks(record: Record) -> list[str]:
    columns = [
        "network", "inputs", "variant", "seconds", "challenge edge rate", "executed edge rate",
        "of the limit", "planning", "verdict", "champion of 2020, A100",
    ]  # fmt: skip
    rows = []
    for row in record["networks"]:
        name = f"{row['neurons']} x {row['layers']}"
        if "variants" not in row:
            rows.append([name, NOTHING, NOTHING, *[NOTHING] * 5, _state(row), NOTHING])
            continue
        for variant, one in row["variants"].items():
            if one.get("reason") == NOT_ASKED_FOR:
                continue
            rate = row["champion_edge_rate"]
            known = NOTHING if rate is None else report.rate(rate)
            measured = [NOTHING] * 5
            if "least_seconds" in one:
                measured = [
                    report.seconds(one["least_seconds"]),
                    report.rate(one["edge_rate"]),
                    report.rate(one["executed_edge_rate"]),
                    _part(one),
                    report.seconds(one["plan_seconds"]),
                ]
            on = f", {row['check']['inputs']} inputs" if "verdict" in one else ""
            rows.append([name, str(row["inputs"]), variant, *measured, _state(one) + on, known])
    return ["## Networks", "", *_table(columns, rows), ""]


def _profiles(record: Record) -> list[str]:
    columns = [
        "network", "variant", "kernels", "pauses in it", "copies and counts",
        "device memory", "layers of many inputs", "of their limit, median", "least",
    ]  # fmt: skip
    rows = []
    for row in record["networks"]:
        for variant, one in row.get("variants", {}).items():
            found = one.get("profile")
            if found is None:
                continue
            parts = [found["median_fraction"], found["least_fraction"]]
            rows.append([
                f"{row['neurons']} x {row['layers']}", variant,
                report.seconds(found["kernel_seconds"]), report.seconds(found["gap_seconds"]),
                report.seconds(found["copy_seconds"]), format_bytes(found["peak_memory"]),
                str(found["layers_of_many_inputs"]),
                *(NOTHING if part is None else f"{100 * part:.0f} %" for part in parts),
            ])  # fmt: skip
    if not rows:
        return []
    text = (
        "One run more with every step of the plan timed by itself, which costs some of the speed. "
        "Copies count the features on their way and what the host does with each layer's numbers. "
        "Device memory is the most that was taken at a time (in records of 2026-11-27 by networks "
        "before, too). Many inputs are 10,000 or more that are active."
    )
    return ["## Where the time goes", "", text, "", *_table(columns, rows), ""]


def _compared(record: Record) -> list[str]:
    columns = ["network", "inputs", "seconds", "cuSPARSE", "times faster", "verdict"]
    rows = []
    for row in record["networks"]:
        one = row.get("compared")
        if one is None:
            continue
        if "speed_up" not in one:
            name = f"{row['neurons']} x {one.get('layers', row['layers'])}"
            rows.append([name, *[NOTHING] * 4, _state(one)])
            continue
        times = [min(one["seconds"]), min(one["cusparse_seconds"])]
        part = "" if one["layers"] == row["layers"] else f" of {row['layers']}"
        rows.append([
            f"{row['neurons']} x {one['layers']}{part}", str(one["inputs"]),
            *map(report.seconds, times),
            f"{one['speed_up']:.1f}", _state(one),
        ])  # fmt: skip
    text = (
        "A bounded part of the work, the first layers on the first inputs, with the plan's own "
        "kernels and with every product by cuSPARSE through CuPy, in one run. cuSPARSE takes the "
        "inputs in batches of bounded memory, whose sizes the record has."
    )
    return ["## Beside cuSPARSE", "", text, "", *_table(columns, rows), ""]


def _layers(record: Record) -> list[str]:
    columns = ["neurons", "weights", "active inputs", "variant", "seconds", "reached"]
    rows = []
    for one in record["layers"]:
        weights = one.get("weights", "challenge")
        about = [str(one["neurons"]), weights, str(one["live_inputs"]), one["design"]]
        if one["state"] == "done":
            reached = one.get("text") or report.rate(one["executed_edge_rate"])
            rows.append([*about, report.seconds(one["least_seconds"]), reached])
        else:
            rows.append([*about, NOTHING, _state(one)])
    text = (
        "One layer on random features whose inputs are all active, timed by the device. What each "
        "variant has to move is told in `backends/portable_spdnn_gpu/spmm/costs.py`."
    )
    return ["## Layers", "", text, "", *_table(columns, rows), ""]


def _targets(record: Record) -> list[str]:
    rows = []
    for one in record["targets"]:
        rates = "edge rate" in one["name"]
        shown = [
            NOTHING if value is None else report.rate(value) if rates else f"{value:.3g}"
            for value in (one["target"], one["measured"])
        ]
        met = {True: "met", False: "missed", None: "not measured"}[one["met"]]
        rows.append([one["name"], *shown, met])
    return ["## Targets", "", *_table(["target", "aim", "measured", ""], rows), ""]


def _part(one: Record) -> str:
    if one["fraction_of_limit"] is None:
        return NOTHING
    return f"{100 * one['fraction_of_limit']:.0f} % ({one['bound_by']})"


def _state(one: Record) -> str:
    if one["state"] == "failed":
        return f"failed: {one['error']}"
    if one["state"] == "skipped":
        return f"skipped: {one['reason']}"
    return str(one.get("verdict", one["state"]))


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [columns, ["---"] * len(columns), *rows]
    # An error may have lines and bars of its own.
    cells = [[" ".join(text.split()).replace("|", "\\|") for text in line] for line in lines]
    return [f"| {' | '.join(line)} |" for line in cells]


def main(arguments: list[str] | None = None) -> int:
    """Write the page of a stored run; exit code 2 where it cannot be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("record", type=Path)
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args(arguments)
    try:
        record = json.loads(options.record.read_text())
        write_page(record, options.record.name, options.page)
    except (OSError, ValueError, KeyError, SpdnnError) as error:
        print(f"gpu_page: {error}", file=sys.stderr)
        return 2
    print(f"written: {options.page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
