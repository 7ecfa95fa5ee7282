"""Targets on one H200: challenge edge rates in float32."""

from __future__ import annotations

from typing import Any

from portable_spdnn.challenge_table.published import COLUMNS, fastest

# Challenge edge rates, edges/s, by neurons and layers.
EDGE_RATES = {
    (1024, 1920): 300e12,
    (4096, 1920): 450e12,
    (16384, 1920): 280e12,
    (65536, 120): 110e12,
    (65536, 1920): 300e12,
}
# With exact passes.
EXACT_EDGE_RATES = {(65536, 1920): 5000e12}
CUSPARSE_SPEED_UP = 50  # at least
FRACTION_OF_LIMIT = 0.6  # at least, in layers with
ACTIVE_INPUTS = 10_000  # or more

Record = dict[str, Any]


def champion(neurons: int, layers: int) -> float | None:
    """Return the champion's published rate on one A100, edges/s; None where there is none."""
    (column,) = (series for label, series in COLUMNS.items() if "A100" in label)
    return fastest(column, neurons, layers)


def judged(record: Record) -> list[Record]:
    """Return every target with what was measured; `measured` and `met` None where nothing was.

    Parameters
    ----------
    record : dict
        As `run_gpu` stores it.
    """
    rates = (
        ("challenge edge rate", "auto", EDGE_RATES),
        ("challenge edge rate with exact passes", "exact passes", EXACT_EDGE_RATES),
    )
    found = [
        _one(f"{key[0]} x {key[1]}, {what}", target, _edge_rate(record, key, variant))
        for what, variant, targets in rates
        for key, target in targets.items()
    ]
    ratios = [row["compared"].get("speed_up") for row in record["networks"] if "compared" in row]
    measured = [ratio for ratio in ratios if ratio is not None]
    found.append(_one("times cuSPARSE, least", CUSPARSE_SPEED_UP, min(measured, default=None)))
    # Of each layer that counts, the variant that does best: plans choose it.
    best: dict[int, float] = {}
    for row in record["layers"]:
        reached = row.get("fraction_of_limit")
        pruned = row.get("weights") == "pruned"
        if reached is not None and row["live_inputs"] >= ACTIVE_INPUTS and not pruned:
            best[row["neurons"]] = max(reached, best.get(row["neurons"], 0.0))
    least = min(best.values(), default=None)
    found.append(_one("part of the binding limit, least", FRACTION_OF_LIMIT, least))
    return found


def _one(name: str, target: float, measured: float | None) -> Record:
    met = None if measured is None else measured >= target
    return {"name": name, "target": target, "measured": measured, "met": met}


def _edge_rate(record: Record, key: tuple[int, int], variant: str) -> float | None:
    """Return the rate of a network in a variant, if its answer is right."""
    rates = [
        row["variants"][variant]["edge_rate"]
        for row in record["networks"]
        if (row["neurons"], row["layers"]) == key
        and row.get("variants", {}).get(variant, {}).get("verdict") == "PASSED"
    ]
    return max(rates, default=None)
