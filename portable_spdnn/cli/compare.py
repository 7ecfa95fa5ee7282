"""`portable-spdnn compare`: the same network on several backends."""

from __future__ import annotations

from typing import Annotated

import typer

from portable_spdnn.cli import options as flag
from portable_spdnn.cli.progress import show_progress
from portable_spdnn.cli.run import WRONG_CATEGORIES


def compare(
    backends: Annotated[
        str, typer.Option(metavar="NAMES", help="Names of backends, separated by commas.")
    ],
    data: flag.Data = None,
    neurons: flag.Neurons = None,
    layers: flag.Layers = None,
    inputs: flag.Inputs = None,
    truth: flag.TruthFile = None,
    first_inputs: flag.FirstInputs = None,
    batch_size: flag.BatchSize = None,
    threads: flag.Threads = None,
    dtype: flag.Dtype = "float32",
    path: flag.FeaturePath = "auto",
    seed: flag.Seed = 0,
    bias: flag.Bias = None,
    y_max: flag.YMax = None,
    exact_passes: flag.ExactPasses = "none",
    repeat: Annotated[
        int, typer.Option(metavar="R", min=1, help="Runs of each; times are medians.")
    ] = 3,
    json: flag.Json = None,
    no_progress: flag.NoProgress = False,
) -> None:
    """Compare backends with the serial reference (scipy): categories, scores, speed.

    Exit code 1 where categories differ from the reference's, or from the truth where known.
    """
    from portable_spdnn.errors import InputError
    from portable_spdnn.graphchallenge.categories import judge
    from portable_spdnn.io.atomic_output import check_outputs
    from portable_spdnn.plans.options import PlanOptions
    from portable_spdnn.registry import get_backend
    from portable_spdnn.report import comparison, run_report
    from portable_spdnn.workloads.loading import load_workload
    from portable_spdnn.workloads.sources import Request

    check_outputs(json)
    names = [name.strip() for name in backends.split(",") if name.strip()]
    if not names:
        raise InputError("--backends names no backend; give some, separated by commas")
    for name in names:  # before minutes are spent on loading
        get_backend(name, threads)
    options = PlanOptions(dtype, path, batch_size, exact_passes=exact_passes)
    progress = not no_progress
    request = Request(data, neurons, layers, inputs, truth, first_inputs, seed, bias, y_max)
    with show_progress("loading", progress) as step:
        work = load_workload(request, step)
    compared = comparison.compare(
        work.network,
        work.features,
        names,
        options,
        threads=threads,
        repeat=repeat,
        show_progress=lambda what: show_progress(what, progress),
    )
    verdicts = [
        None if work.truth is None else judge(one.result.categories, work.truth) for one in compared
    ]
    records = []
    rows = []
    for one, verdict in zip(compared, verdicts, strict=True):
        record = run_report.run_record(work, one.result, verdict, one.versions, {})
        measured = (
            "speed_up", "categories_agree", "largest_absolute_difference",
            "largest_relative_difference",
        )  # fmt: skip
        record |= {name: getattr(one, name) for name in measured} | {"repeat": repeat}
        records.append(record)
        rows.append(
            (
                one.result.backend,
                one.result.device,
                run_report.seconds(one.result.inference_seconds),
                f"{one.speed_up:.3g} x",
                run_report.rate(one.result.edge_rate),
                run_report.rate(one.result.executed_edge_rate),
                str(one.result.categories.size),
                "yes" if one.categories_agree else "NO",
                f"{one.largest_absolute_difference:.2g}",
                f"{one.largest_relative_difference:.2g}",
                record["verdict"] or "-",
            )
        )
    columns = (
        "backend", "device", "median", "speed-up", "challenge edge rate", "executed edge rate",
        "survivors", "same categories", "abs. diff.", "rel. diff.", "verdict",
    )  # fmt: skip
    title = (
        f"{work.network.neurons} neurons x {len(work.network)} layers "
        f"({work.source.network.name}), {work.features.shape[0]} inputs "
        f"({work.source.inputs.name}), {dtype}, "
        f"exact passes (not on the reference): {', '.join(options.exact_passes) or 'none'}"
    )
    typer.echo(title, err=json == "-")
    run_report.print_table(columns, rows, to_stderr=json == "-")
    if json is not None:
        run_report.write_json(records, json)
    wrong = any(verdict is not None and not verdict.passed for verdict in verdicts)
    if wrong or not all(one.categories_agree for one in compared):
        raise typer.Exit(WRONG_CATEGORIES)
