"""The table for people: cells, the facts beside it, and Markdown with published figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from portable_spdnn.backend import OPTIONAL_PLAN_OPTIONS
from portable_spdnn.challenge_table.memory_guard import SHARE
from portable_spdnn.challenge_table.published import REFERENCES, REMARKS, SERIES, Source
from portable_spdnn.challenge_table.rows import Row
from portable_spdnn.challenge_table.series import Series
from portable_spdnn.challenge_table.sources import GENERATED, STORE, TEXT
from portable_spdnn.graphchallenge.configurations import INPUTS
from portable_spdnn.memory import format_bytes, peak_resident_bytes
from portable_spdnn.report import run_report
from portable_spdnn.report.comparison import REFERENCE_NAME

NOTHING = "-"
COLUMNS = (
    "neurons", "layers", "edges", "network", "inputs", "seconds", "challenge edge rate",
    "executed edge rate", "verdict", "notes",
)  # fmt: skip


def cells(row: Row) -> tuple[str, ...]:
    """Return the cells of a row, in the order of `COLUMNS`."""
    record = row.record
    names = (str(row.configuration.neurons), str(row.configuration.layers))
    if record is None:
        inputs = row.inputs_kind or NOTHING
        measured = (str(row.configuration.edges), row.network_kind, inputs, *(NOTHING,) * 3)
        return (*names, *measured, "skipped", row.skipped)
    return (
        *names,
        str(record["edges"]),
        row.network_kind,
        f"{record['inputs']} ({row.inputs_kind})",
        seconds(record["inference_seconds"]),
        run_report.rate(record["edge_rate"]),
        run_report.rate(record["executed_edge_rate"]),
        _verdict(record),
        _notes(row, record) or NOTHING,
    )


def seconds(value: float) -> str:
    """Return seconds with three digits, or whole ones: 0.0123, 4.56, 3743."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def facts(series: Series, rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Return what holds for all rows, as (name, text)."""
    identity = series.identity
    versions = ", ".join(f"{name} {number}" for name, number in identity["versions"].items())
    found = [
        ("backend", f"{identity['backend']} ({identity['device']}), {identity['dtype']}"),
        ("threads", str(identity["threads"])),
        ("exact passes", ", ".join(identity["exact_passes"]) or "none"),
        *((name, str(identity[name])) for name in OPTIONAL_PLAN_OPTIONS if name in identity),
        ("versions", versions),
    ]
    if any(_streamed_automatically(row) for row in rows):
        found.append(
            (
                "streamed",
                f"networks that would not fit in {100 * SHARE:.0f} % of the available memory; "
                "that share was their budget",
            )
        )
    if series.warm_up_seconds is not None:
        found.append(
            ("warm-up", f"{run_report.seconds(series.warm_up_seconds)}, apart from every network")
        )
    found.append(("peak memory", format_bytes(peak_resident_bytes())))
    skipped = sum(row.record is None for row in rows)
    failed = sum(row.failed for row in rows)
    kept = sum(row.from_checkpoint for row in rows)
    counts = [f"{len(rows) - skipped} of {len(series.options.configurations)} networks done"]
    counts += [f"{kept} of them taken from the checkpoint"] * bool(kept)
    counts += [f"{skipped} skipped"] * bool(skipped)
    counts += [f"{failed} WRONG"] * bool(failed)
    return [*found, ("networks", ", ".join(counts))]


def as_json(series: Series, rows: Sequence[Row]) -> dict[str, Any]:
    """Return the whole table, and the published figures, for scripts."""
    return {
        **series.identity,
        "time_budget": series.options.time_budget,
        "seed": series.options.seed,
        "warm_up_seconds": series.warm_up_seconds,
        "peak_memory": peak_resident_bytes(),
        "networks": [_row_json(row) for row in rows],
        "published": [
            {
                "source": one.source.citation,
                "hardware": one.source.hardware,
                "program": one.program,
                "where": one.where,
                "threads": one.threads,
                "figures": [
                    {
                        "neurons": neurons,
                        "layers": layers,
                        "edge_rate": rate,
                        "seconds": one.seconds.get((neurons, layers)),
                    }
                    for (neurons, layers), rate in one.edge_rates.items()
                ],
            }
            for one in SERIES
        ],
    }


def as_markdown(series: Series, rows: Sequence[Row]) -> str:
    """Return the table with published figures beside it, and their sources below."""
    sources: list[Source] = []
    for source in (*(one.source for one in REFERENCES), *(one.source for one in REMARKS)):
        if source not in sources:
            sources.append(source)
    references = [f"{one.label} [^{1 + sources.index(one.source)}]" for one in REFERENCES]
    lines = [
        "# Sparse DNN Graph Challenge",
        "",
        _table_line([*COLUMNS, *references]),
        _table_line(["---:", "---:", "---:", "---", "---", *["---:"] * 3, "---", "---"]
                    + ["---:"] * len(references)),
    ]  # fmt: skip
    for row in rows:
        published = [one.edge_rate(row.configuration) for one in REFERENCES]
        shown = [NOTHING if rate is None else run_report.rate(rate) for rate in published]
        lines.append(_table_line([*cells(row), *shown]))
    lines += [
        "",
        "Seconds run from features on the host to categories on the host; loading, planning and "
        "compiling are not in them. The challenge edge rate is inputs x edges / seconds and "
        "counts work that dropping dead inputs and exact passes avoid; the executed edge rate "
        "counts the multiply-adds really done.",
        "",
        *(f"- {name}: {text}" for name, text in facts(series, rows)),
        "",
        *_caveats(rows),
        "The last columns and the remarks are published figures of others: challenge edge rates "
        f"with the {INPUTS} official inputs on the machines named, not measured here. Where a "
        "source prints several versions of one program, the fastest stands here.",
        "",
    ]
    lines += [f"- {one.source.label}: {one.text} [^{1 + sources.index(one.source)}]"
              for one in REMARKS]  # fmt: skip
    lines.append("")
    for number, source in enumerate(sources, start=1):
        lines.append(f"[^{number}]: {source.citation}. Hardware: {source.hardware}.")
    return "\n".join(lines) + "\n"


def _caveats(rows: Sequence[Row]) -> list[str]:
    """Return, in Markdown, why rows are not those of the official challenge."""
    done = [(row, row.record["inputs"]) for row in rows if row.record is not None]
    reasons = []
    if any(inputs != INPUTS for _, inputs in done):
        reasons.append(f"inputs are not {INPUTS}")
    if any(row.network_kind == GENERATED for row, _ in done):
        reasons.append("a network is generated (its structure is that of the official one)")
    if any(row.inputs_kind not in (TEXT, STORE) for row, _ in done):
        reasons.append("inputs do not lie beside the network as official files")
    if not reasons:
        return []
    return [f"Rows differ from the official challenge where {', or '.join(reasons)}.", ""]


def _table_line(texts: Sequence[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"


def _verdict(record: dict[str, Any]) -> str:
    if record["verdict"] is None:
        return "no truth"
    by_truth = record["verdict_against"] != REFERENCE_NAME
    verdict = f"{record['verdict']} ({'truth' if by_truth else 'serial reference'})"
    if by_truth and record["reference_agrees"] is not None:
        verdict += ", reference agrees" if record["reference_agrees"] else ", reference DISAGREES"
    return verdict


def _notes(row: Row, record: dict[str, Any]) -> str:
    notes = []
    if record["memory"] is not None:
        notes.append(f"streamed in {format_bytes(record['memory'])}")
    if row.from_checkpoint:
        notes.append("from the checkpoint")
    elif record["resumed_inputs"]:
        notes.append(f"{record['resumed_inputs']} inputs from the checkpoint")
    return ", ".join(notes)


def _streamed_automatically(row: Row) -> bool:
    record = row.record
    return record is not None and record["memory"] is not None and record["memory_automatic"]


def _row_json(row: Row) -> dict[str, Any]:
    shared = {
        "neurons": row.configuration.neurons,
        "layers": row.configuration.layers,
        "edges": row.configuration.edges,
        "network_kind": row.network_kind,
        "inputs_kind": row.inputs_kind or None,
        "state": "skipped" if row.record is None else "done",
        "skipped_because": row.skipped or None,
        "predicted_seconds": row.predicted_seconds,
        "from_checkpoint": row.from_checkpoint,
    }
    return {**shared, **(row.record or {})}
