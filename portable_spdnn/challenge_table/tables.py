"""The table for people: cells, the facts beside it, and Markdown with published figures."""

from __future__ import annotations

from collections.abc import Sequence

from portable_spdnn.challenge_table import published
from portable_spdnn.challenge_table.records import Json
from portable_spdnn.challenge_table.run import TableRun
from portable_spdnn.graphchallenge.configurations import INPUTS
from portable_spdnn.host import format_bytes, peak_resident_bytes
from portable_spdnn.plans.memory_budget import SHARE
from portable_spdnn.plans.options import OPTIONAL_PLAN_OPTIONS
from portable_spdnn.report import run_report
from portable_spdnn.report.comparison import REFERENCE_NAME
from portable_spdnn.workloads.networks import GENERATED, STORE, TEXT

NOTHING = "-"
COLUMNS = (
    "neurons", "layers", "edges", "network", "inputs", "seconds", "challenge edge rate",
    "executed edge rate", "verdict", "notes",
)  # fmt: skip


def failed(row: Json) -> bool:
    """Tell whether the categories are wrong, by the truth or by the serial reference."""
    return row.get("verdict") == "FAILED" or row.get("reference_agrees") is False


def cells(row: Json) -> tuple[str, ...]:
    """Return the cells of a row, in the order of `COLUMNS`."""
    names = tuple(str(row[name]) for name in ("neurons", "layers", "edges", "network_kind"))
    if row["state"] == "skipped":
        inputs = row["inputs_kind"] or NOTHING
        return (*names, inputs, *(NOTHING,) * 3, "skipped", row["skipped_because"])
    spent = row["inference_seconds"]
    return (
        *names,
        f"{row['inputs']} ({row['inputs_kind']})",
        f"{spent:.0f}" if spent >= 1000 else f"{spent:.3g}",
        run_report.rate(row["edge_rate"]),
        run_report.rate(row["executed_edge_rate"]),
        _verdict(row),
        _notes(row) or NOTHING,
    )


def facts(run: TableRun, rows: Sequence[Json]) -> list[tuple[str, str]]:
    """Return what holds for all rows, as (name, text)."""
    identity = run.identity
    found = [
        ("backend", f"{identity['backend']} ({identity['device']}), {identity['dtype']}"),
        ("threads", str(identity["threads"])),
        ("exact passes", ", ".join(identity["exact_passes"]) or "none"),
        *((name, str(identity[name])) for name in OPTIONAL_PLAN_OPTIONS if name in identity),
        ("versions", ", ".join(f"{name} {version}" for name, version in
                               identity["versions"].items())),
    ]  # fmt: skip
    done = [row for row in rows if row["state"] == "done"]
    if any(one["memory"] is not None and one["memory_automatic"] for one in done):
        share = f"{100 * SHARE:.0f} % of the available memory"
        text = f"networks that would not fit in {share}; that share was their budget"
        found.append(("streamed", text))
    if run.warm_up_seconds is not None:
        text = f"{run_report.seconds(run.warm_up_seconds)}, apart from every network"
        found.append(("warm-up", text))
    found.append(("peak memory", format_bytes(peak_resident_bytes())))
    counts = [f"{len(done)} of {len(run.options.configurations)} networks done"]
    for count, what in (
        (sum(row["from_checkpoint"] for row in rows), "of them taken from the checkpoint"),
        (len(rows) - len(done), "skipped"),
        (sum(map(failed, rows)), "WRONG"),
    ):
        counts += [f"{count} {what}"] * bool(count)
    return [*found, ("networks", ", ".join(counts))]


def as_json(run: TableRun, rows: Sequence[Json]) -> Json:
    """Return the whole table, and the published figures, for scripts."""
    return {
        **run.identity,
        "time_budget": run.options.time_budget,
        "seed": run.options.seed,
        "warm_up_seconds": run.warm_up_seconds,
        "peak_memory": peak_resident_bytes(),
        "networks": list(rows),
        "published": [
            {
                "source": one.source.citation,
                "hardware": one.source.hardware,
                "program": one.program,
                "where": one.where,
                "threads": one.threads,
                "figures": [
                    {"neurons": neurons, "layers": layers, "edge_rate": rate, "seconds": seconds}
                    for (neurons, layers), (rate, seconds) in one.figures.items()
                ],
            }
            for one in published.SERIES
        ],
    }


def as_markdown(run: TableRun, rows: Sequence[Json]) -> str:
    """Return the table with published figures beside it, and their sources below."""
    sources = [column[0].source for column in published.COLUMNS.values()]
    cited = dict.fromkeys([*sources, *(source for source, _ in published.REMARKS)])
    marks = {source: f"[^{number}]" for number, source in enumerate(cited, start=1)}
    beside = zip(published.COLUMNS, sources, strict=True)
    align = ["---:"] * 3 + ["---"] * 2 + ["---:"] * 3 + ["---"] * 2 + ["---:"] * len(sources)
    lines = [
        "# Sparse DNN Graph Challenge",
        "",
        _table_line([*COLUMNS, *(f"{label} {marks[source]}" for label, source in beside)]),
        _table_line(align),
    ]
    for row in rows:
        network = row["neurons"], row["layers"]
        found = [published.fastest(column, *network) for column in published.COLUMNS.values()]
        shown = [NOTHING if rate is None else run_report.rate(rate) for rate in found]
        lines.append(_table_line([*cells(row), *shown]))
    lines += [
        "",
        "Seconds run from features on the host to categories on the host; loading, planning and "
        "compiling are not in them, but where a network is streamed: there layers are read and "
        "planned while the clock runs. The challenge edge rate is inputs x edges / seconds and "
        "counts work that dropping inactive inputs and exact passes avoid; the executed edge rate "
        "counts the multiply-adds really done.",
        "",
        *(f"- {name}: {text}" for name, text in facts(run, rows)),
        "",
        *_caveats(rows),
        "The last columns and the remarks are published figures of others: challenge edge rates "
        f"with the {INPUTS} official inputs on the machines named, not measured here. Where a "
        "source prints several versions of one program, the fastest stands here.",
        "",
        *(f"- {text} {marks[source]}" for source, text in published.REMARKS),
        "",
        *(f"{mark}: {one.citation}. Hardware: {one.hardware}." for one, mark in marks.items()),
    ]
    return "\n".join(lines) + "\n"


def _caveats(rows: Sequence[Json]) -> list[str]:
    """Return, in Markdown, why rows are not those of the official challenge."""
    done = [row for row in rows if row["state"] == "done"]
    reasons = []
    if any(one["inputs"] != INPUTS for one in done):
        reasons.append(f"inputs are not {INPUTS}")
    if any(one["network_kind"] == GENERATED for one in done):
        reasons.append("a network is generated (its structure is that of the official one)")
    if any(one["inputs_kind"] not in (TEXT, STORE) for one in done):
        reasons.append("inputs do not lie beside the network as official files")
    text = f"Rows differ from the official challenge where {', or '.join(reasons)}."
    return [text, ""] if reasons else []


def _table_line(texts: Sequence[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"


def _verdict(row: Json) -> str:
    if row["verdict"] is None:
        return "no truth"
    if row["verdict_against"] == REFERENCE_NAME:
        return f"{row['verdict']} (serial reference)"
    agrees = {None: "", True: ", reference agrees", False: ", reference DISAGREES"}
    return f"{row['verdict']} (truth){agrees[row['reference_agrees']]}"


def _notes(row: Json) -> str:
    notes = []
    if row["memory"] is not None:
        notes.append(f"streamed in {format_bytes(row['memory'])}")
    if row["from_checkpoint"]:
        notes.append("from the checkpoint")
    elif row["resumed_inputs"]:
        notes.append(f"{row['resumed_inputs']} inputs from the checkpoint")
    return ", ".join(notes)
