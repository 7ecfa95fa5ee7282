"""`portable-spdnn challenge`: the whole official table on one backend."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from portable_spdnn.cli import options as flag
from portable_spdnn.cli.progress import show_progress
from portable_spdnn.cli.run import WRONG_CATEGORIES

if TYPE_CHECKING:
    from portable_spdnn.graphchallenge.configurations import Configuration


def challenge(
    sizes: Annotated[
        str, typer.Option(metavar="N,...", help="Neurons per layer, from the official table.")
    ] = "1024,4096,16384,65536",
    layers: Annotated[
        str, typer.Option(metavar="L,...", help="Layers, from the official table.")
    ] = "120,480,1920",
    backend: flag.BackendName = "auto",
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder with networks, inputs and truth, as Graph Challenge files or packed "
            "stores, or one store. What is not there is generated.",
        ),
    ] = None,
    inputs: flag.Inputs = None,
    first_inputs: flag.FirstInputs = None,
    batch_size: flag.BatchSize = None,
    threads: flag.Threads = None,
    dtype: flag.Dtype = "float32",
    path: flag.FeaturePath = "auto",
    seed: flag.Seed = 0,
    exact_passes: flag.ExactPasses = "none",
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Stream every network within SIZE, such as 4GiB. Default: stream those that "
            "would not fit in three quarters of the available memory, within that.",
        ),
    ] = None,
    kernel: flag.Kernel = "auto",
    storage: flag.Storage = "same",
    device_memory: flag.DeviceMemory = None,
    devices: flag.Devices = "",
    time_budget: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Skip a network that is predicted to take longer than is left of TIME: 90, 90s, "
            "10m, 2h.",
        ),
    ] = None,
    checkpoint: flag.CheckpointDir = None,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Run the serial reference on every network as well; slow."),
    ] = False,
    json: flag.Json = None,
    markdown: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|-",
            help="Write the table as Markdown, with published figures beside; - for stdout.",
        ),
    ] = None,
    no_progress: flag.NoProgress = False,
) -> None:
    """Run the twelve official networks one after the other and print their table.

    Exit code 0: all that ran are right, as far as there is a truth; 1: categories of one are
    wrong; 2: usage or input error.
    """
    from portable_spdnn.challenge_table import tables
    from portable_spdnn.challenge_table.run import ChallengeOptions, TableRun
    from portable_spdnn.challenge_table.time_budget import parse_duration
    from portable_spdnn.errors import InputError
    from portable_spdnn.host import parse_limit
    from portable_spdnn.io.atomic_output import check_outputs
    from portable_spdnn.plans.options import PlanOptions
    from portable_spdnn.registry import get_backend
    from portable_spdnn.report import run_report

    check_outputs(json, markdown)
    if json == markdown == "-":
        raise InputError("--json and --markdown both name standard output; give one a file")
    configurations = choose_configurations(sizes, layers)
    plan = PlanOptions(
        dtype=dtype,
        path=path,
        batch_size=batch_size,
        exact_passes=exact_passes,
        memory=parse_limit(memory, "--memory"),
        kernel=kernel,
        storage=storage,
        device_memory=parse_limit(device_memory, "--device-memory"),
        devices=devices,
    )
    limit = None if time_budget is None else parse_duration(time_budget, "--time-budget")
    options = ChallengeOptions(
        configurations, data, inputs, first_inputs, seed, plan, verify, limit, checkpoint
    )
    chosen = get_backend(backend, threads)
    table = TableRun(chosen, options, lambda what: show_progress(what, not no_progress))
    rows: list[dict[str, Any]] = []

    def write(last: bool) -> None:
        """Write what is done so far: files always, standard output at the end alone."""
        if json is not None and (last or json != "-"):
            run_report.write_json(tables.as_json(table, rows), json)
        if markdown is not None and (last or markdown != "-"):
            run_report.write_text(tables.as_markdown(table, rows), markdown)

    try:
        for row in table.rows():
            rows.append(row)
            write(last=False)
    finally:
        # Where a network cannot be run the table of those before it is not lost.
        if rows:
            to_stderr = "-" in (json, markdown)
            shown = [tables.cells(row) for row in rows]
            run_report.print_table(tables.COLUMNS, shown, to_stderr)
            run_report.print_facts(tables.facts(table, rows), to_stderr)
    write(last=True)
    if any(map(tables.failed, rows)):
        raise typer.Exit(WRONG_CATEGORIES)


def choose_configurations(sizes: str, layers: str) -> tuple[Configuration, ...]:
    """Return the official networks, in order, that lists such as ``1024,4096`` choose.

    Raises InputError if a list is empty or holds a value that is not in the official table.
    """
    from portable_spdnn.errors import InputError
    from portable_spdnn.graphchallenge.configurations import CONFIGURATIONS

    def chosen(text: str, option: str, values: list[int]) -> list[int]:
        official = {str(value): value for value in values}
        parts = [part.strip() for part in text.split(",") if part.strip()] or [text]
        for part in parts:
            if part not in official:
                raise InputError(
                    f"{option}: {part!r} is not in the official table; choose from "
                    f"{', '.join(official)}"
                )
        return [official[part] for part in parts]

    neurons = chosen(sizes, "--sizes", [one.neurons for one in CONFIGURATIONS])
    depths = chosen(layers, "--layers", [one.layers for one in CONFIGURATIONS])
    return tuple(one for one in CONFIGURATIONS if one.neurons in neurons and one.layers in depths)
