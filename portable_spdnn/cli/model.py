"""`portable-spdnn model`: strong and weak scaling, predicted from one node."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from portable_spdnn.cli import options as flag
from portable_spdnn.cli.progress import show_progress

# What a calibration is measured with: no flags for one that is at hand.
_MEASURING = ("backend", "threads", "data", "inputs", "first_inputs", "seed", "bias", "y_max",
              "dtype", "sample_inputs", "sample_layers")  # fmt: skip


def model(
    context: typer.Context,
    nodes: Annotated[
        str,
        typer.Option(
            metavar="A..B|N,...",
            help="Numbers of nodes: the powers of two in a range with both ends, or a list.",
        ),
    ] = "1..1024",
    network: Annotated[
        str | None,
        typer.Option(
            metavar="NxL",
            help="Neurons and layers. Default: 1024x120, or those of --data or --calibration.",
        ),
    ] = None,
    total_inputs: Annotated[
        int,
        typer.Option(
            metavar="K", min=1, help="Inputs in all (strong scaling), and of each node (weak)."
        ),
    ] = 60000,
    schedule: flag.ScheduleOption = flag.Schedule.static,
    latency: Annotated[
        str, typer.Option(metavar="TIME", help="Of a message between nodes; assumed.")
    ] = "2us",
    bandwidth: Annotated[
        str, typer.Option(metavar="RATE", help="Into a node; assumed: 10GB/s, 100Gbit/s.")
    ] = "10GB/s",
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Stream the network within SIZE on each node, such as 4GiB. Default: stream it "
            "where it would not fit in three quarters of what the measured node has available.",
        ),
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Predict from this calibration; measure nothing."),
    ] = None,
    save_calibration: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keep what was measured.")
    ] = None,
    sample_inputs: Annotated[
        int, typer.Option(metavar="K", min=1, help="Inputs to run, from all over the inputs.")
    ] = 2000,
    sample_layers: Annotated[
        int, typer.Option(metavar="L", min=1, help="First layers to run.")
    ] = 120,
    backend: flag.BackendName = "auto",
    threads: flag.Threads = None,
    data: flag.Data = None,
    inputs: flag.Inputs = None,
    first_inputs: flag.FirstInputs = None,
    seed: flag.Seed = 0,
    bias: flag.Bias = None,
    y_max: flag.YMax = None,
    dtype: flag.DtypeOption = flag.Dtype.float32,
    draw_seed: Annotated[
        int, typer.Option(metavar="S", min=0, help="Seed of the draw of inputs not recorded.")
    ] = 0,
    json: flag.Json = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw it: .png or .svg; needs the extra plot."),
    ] = None,
    no_progress: flag.NoProgress = False,
) -> None:
    """Predict how data-parallel inference scales over nodes like this one, one rank each.

    Costs are measured here, on a sample of the inputs and the first layers; what is assumed is
    printed. Exit code 0: done; 2: usage or input error.
    """
    from portable_spdnn.errors import InputError
    from portable_spdnn.host import parse_limit
    from portable_spdnn.plans.options import PlanOptions
    from portable_spdnn.registry import get_backend
    from portable_spdnn.report import run_report
    from portable_spdnn.scaling import (
        Model,
        Question,
        Sample,
        calibrate,
        load_calibration,
        quantities,
        tables,
    )
    from portable_spdnn.scaling import save_calibration as save
    from portable_spdnn.workloads.request import Request

    counts = quantities.parse_nodes(nodes, "--nodes")
    size = None if network is None else quantities.parse_network(network, "--network")
    delay = quantities.parse_latency(latency, "--latency")
    speed = quantities.parse_bandwidth(bandwidth, "--bandwidth")
    limit = parse_limit(memory, "--memory")
    if plot is not None:
        from portable_spdnn.scaling.plotting import check_plot
        from portable_spdnn.scaling.plotting import plot as draw

        check_plot(plot)
    if calibration is not None:
        for name in _MEASURING:
            source = context.get_parameter_source(name)
            if source is not None and source.name == "COMMANDLINE":
                raise InputError(
                    f"--{name.replace('_', '-')} has no say where --calibration gives what was "
                    "measured; leave one of them out"
                )
        measured = load_calibration(calibration)
    else:
        wide, deep = size or (None, None)
        measured = calibrate(
            get_backend(backend, threads),
            Sample(
                Request(data, wide, deep, inputs, None, first_inputs, seed, bias, y_max),
                sample_inputs,
                sample_layers,
            ),
            PlanOptions(dtype.value),
            lambda what: show_progress(what, not no_progress),
        )
    if size is not None and size[0] != measured.neurons:
        raise InputError(
            f"{calibration}: was measured with {measured.neurons} neurons, --network has {size[0]}"
        )
    if save_calibration is not None:
        save(measured, save_calibration)
    layers = measured.network_layers if size is None else size[1]
    predicted = Model(
        measured,
        Question(layers, total_inputs, counts, schedule.value, delay, speed, limit, draw_seed),
    )
    strong, weak = predicted.strong(), predicted.weak()
    aside = json == "-"
    run_report.print_facts(tables.facts(predicted), aside)
    for title, points in (
        (f"strong scaling: {total_inputs} inputs in all", strong),
        (f"weak scaling: {total_inputs} inputs a node", weak),
    ):
        typer.echo(title, err=aside)
        run_report.print_table(tables.COLUMNS, [tables.cells(point) for point in points], aside)
    for line in tables.chart(strong, weak):
        typer.echo(line, err=aside)
    if json is not None:
        run_report.write_json(tables.as_json(predicted, strong, weak), json)
    if plot is not None:
        draw(predicted, strong, weak, plot)
