"""Lines for people: what came of each network, and what went wrong."""

from __future__ import annotations

from typing import Any

from portable_spdnn.report import run_report as report

Record = dict[str, Any]
NOT_ASKED_FOR = "not asked for"  # why a variant was skipped that the command line leaves out


def problems(record: Record) -> list[str]:
    """Return what failed and what is wrong, a line each."""
    found = []

    def look(name: str, one: Record) -> None:
        if one.get("state") == "failed":
            found.append(f"{name} failed: {one['error']}")
        if one.get("verdict") == "WRONG":
            found.append(f"{name}: categories are WRONG")

    if record["limits_error"] is not None:
        found.append(f"limits: {record['limits_error']}")
    for row in record["networks"]:
        name = f"{row['neurons']} x {row['layers']}"
        look(name, row)
        for variant, one in row.get("variants", {}).items():
            look(f"{name}, {variant}", one)
        look(f"{name}, cuSPARSE", row.get("compared", {}))
    for one in record["layers"]:
        look(f"layer of {one['neurons']}, {one['design']}", one)
    return found


def print_row(row: Record) -> None:
    """Print what came of a network."""
    name = f"{row['neurons']} x {row['layers']}"
    if "variants" not in row:
        print(f"{name}: {row['state']}: {row.get('error') or row.get('reason')}", flush=True)
        return
    for variant, one in row["variants"].items():
        text = one.get("error") or one.get("reason") or one.get("verdict")
        if "edge_rate" in one:
            text = (
                f"{report.seconds(one['least_seconds'])}, challenge {report.rate(one['edge_rate'])}"
                f", executed {report.rate(one['executed_edge_rate'])}, {text}"
            )
        print(f"{name}, {variant}: {text}", flush=True)
    compared = row["compared"]
    if "speed_up" in compared:
        print(f"{name}: {compared['speed_up']:.1f} times cuSPARSE", flush=True)
