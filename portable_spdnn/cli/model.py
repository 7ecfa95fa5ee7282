"""`portable-spdnn model`: strong and weak scaling, predicted from one node."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from portable_spdnn.cli import options as flag
from portable_spdnn.cli.progress import show_progress
from portable_spdnn.errors import InputError

# What a calibration is measured with: no flags for one that is at hand.
_MEASURING = ("backend", "threads", "data", "inputs", "first_inputs", "seed", "bias", "y_max",
              "dtype", "sample_inputs", "sample_layers")  # fmt: skip
_TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_PREFIXES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "ki": 2.0**10,
             "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}  # fmt: skip
_RATES = {
    prefix + unit + per: scale / bits
    for prefix, scale in _PREFIXES.items()
    for unit, bits in (("B", 1), ("bit", 8), ("b", 8))
    for per in ("/s", "ps")
}


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
        typer.Option(metavar="K", min=1, help="Inputs in all (strong), and of each node (weak)."),
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
    from portable_spdnn.host import parse_limit
    from portable_spdnn.registry import get_backend
    from portable_spdnn.report import run_report
    from portable_spdnn.scaling import measuring, plotting, tables
    from portable_spdnn.scaling.calibration import load_calibration
    from portable_spdnn.scaling.calibration import save_calibration as save
    from portable_spdnn.scaling.prediction import Prediction, Question
    from portable_spdnn.workloads.sources import Request

    counts = parse_nodes(nodes)
    wide, deep = (None, None) if network is None else parse_network(network)
    delay, speed = parse_latency(latency), parse_bandwidth(bandwidth)
    limit = parse_limit(memory, "--memory")
    if plot is not None:
        plotting.check_plot(plot)
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
        measured = measuring.calibrate(
            get_backend(backend, threads),
            Request(data, wide, deep, inputs, None, first_inputs, seed, bias, y_max),
            sample_inputs,
            sample_layers,
            dtype.value,
            lambda what: show_progress(what, not no_progress),
        )
    if wide not in (None, measured.neurons):
        raise InputError(
            f"{calibration}: was measured with {measured.neurons} neurons, --network has {wide}"
        )
    if save_calibration is not None:
        save(measured, save_calibration)
    layers = deep or measured.network_layers
    question = Question(
        layers, total_inputs, counts, schedule.value, delay, speed, limit, draw_seed
    )
    answer = Prediction(measured, question)
    aside = json == "-"
    run_report.print_facts(list(tables.facts(answer).items()), aside)
    for kind, points in (("strong", answer.strong), ("weak", answer.weak)):
        share = "in all" if kind == "strong" else "a node"
        typer.echo(f"{kind} scaling: {total_inputs} inputs {share}", err=aside)
        rows = [[text(point) for text in tables.COLUMNS.values()] for point in points]
        run_report.print_table(list(tables.COLUMNS), rows, aside)
    for line in tables.chart(answer):
        typer.echo(line, err=aside)
    if json is not None:
        run_report.write_json(tables.as_json(answer), json)
    if plot is not None:
        plotting.plot(answer, plot)


def parse_nodes(text: str) -> tuple[int, ...]:
    """Return the numbers of nodes of ``1..1024`` or ``1,2,3``, rising; raises InputError."""
    span = re.fullmatch(r"\s*(\d{1,9})\s*\.\.\s*(\d{1,9})\s*", text)
    if span:
        first, last = int(span[1]), int(span[2])
        if first > last:
            raise InputError(f"--nodes is {text!r}: the range ends before it begins")
        numbers = {first, last, *(1 << n for n in range(21) if first <= 1 << n <= last)}
    elif re.fullmatch(r"\s*\d{1,9}\s*(,\s*\d{1,9}\s*)*", text):
        numbers = set(map(int, text.split(",")))
    else:
        raise InputError(
            f"--nodes is {text!r}; give a range such as 1..1024 or a list such as 1,2,4"
        )
    if min(numbers) < 1 or max(numbers) > 1 << 20:
        raise InputError(f"--nodes is {text!r}: numbers of nodes are 1 to {1 << 20}")
    return tuple(sorted(numbers))


def parse_network(text: str) -> tuple[int, int]:
    """Return neurons and layers of ``65536x1920``; raises InputError if it is not two numbers."""
    match = re.fullmatch(r"\s*([1-9]\d{0,9})\s*[xX×]\s*([1-9]\d{0,9})\s*", text)
    if not match:
        raise InputError(
            f"--network is {text!r}; give neurons and layers, both from 1, such as 65536x1920"
        )
    return int(match[1]), int(match[2])


def parse_latency(text: str) -> float:
    """Return seconds of ``2us``, ``0.5ms`` or ``1s``; raises InputError if it is no such time."""
    seconds = _amount(text.lower(), _TIMES)
    if not seconds < math.inf:
        raise InputError(f"--latency is {text!r}; give a time with its unit, such as 2us or 0.5ms")
    return seconds


def parse_bandwidth(text: str) -> float:
    """Return bytes a second of ``10GB/s``, ``1GiB/s`` or ``100Gbit/s``, more than 0.

    Raises InputError if it is no such rate.
    """
    rate = _amount(text, _RATES)
    if not 0 < rate < math.inf:
        raise InputError(
            f"--bandwidth is {text!r}; give a rate with its unit, such as 10GB/s or 100Gbit/s"
        )
    return rate


def _amount(text: str, units: Mapping[str, float]) -> float:
    """Return a number with one of the units in base units, NaN where it is none."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?(?:e[+-]?\d+)?|\.\d+)\s*(\S+)\s*", text)
    return float(match[1]) * units.get(match[2], math.nan) if match else math.nan
