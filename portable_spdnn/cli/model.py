"""`portable-spdnn model`: strong and weak scaling, predicted from one node."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated

import typer

from portable_spdnn.cli import options as flag
from portable_spdnn.cli.progress import show_progress
from portable_spdnn.errors import InputError

# These say what is to be measured, and contradict --calibration.
_MEASURING = ("backend", "threads", "data", "inputs", "first_inputs", "seed", "bias", "y_max",
              "dtype", "sample_inputs", "sample_layers")  # fmt: skip
_TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_RATES = {"MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12, "MiB/s": 2.0**20, "GiB/s": 2.0**30,
          "Mbit/s": 125e3, "Gbit/s": 125e6, "Tbit/s": 125e9}  # fmt: skip
MAX_NODES = 1 << 20


def model(
    context: typer.Context,
    nodes: Annotated[
        str,
        typer.Option(metavar="A..B|N,...", help="Powers of two in a range with its ends; a list."),
    ] = "1..1024",
    network: Annotated[
        str | None,
        typer.Option(metavar="NxL", help="Default: 1024x120, or that of --data or --calibration."),
    ] = None,
    total_inputs: Annotated[
        int, typer.Option(metavar="K", min=1, help="In all (strong), and of each node (weak).")
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

    counts = _parse_nodes(nodes)
    wide, deep = (None, None) if network is None else _parse_network(network)
    delay = _parse_amount(latency, _TIMES, "--latency", "2us or 0.5ms")
    speed = _parse_amount(bandwidth, _RATES, "--bandwidth", "10GB/s or 100Gbit/s")
    if not speed:
        raise InputError(f"--bandwidth is {bandwidth!r}; it must be more than 0")
    limit = parse_limit(memory, "--memory")
    if plot is not None:
        plotting.check_plot(plot)
    if calibration is not None:
        sources = {name: context.get_parameter_source(name) for name in _MEASURING}
        for name, source in sources.items():
            if source is not None and source.name == "COMMANDLINE":
                option = f"--{name.replace('_', '-')}"
                raise InputError(f"{option} has no effect where --calibration is given; omit it")
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
    asked = (layers, total_inputs, counts, schedule.value, delay, speed, limit, draw_seed)
    prediction = Prediction(measured, Question(*asked))
    tables.show(prediction, to_stderr=json == "-")
    if json is not None:
        run_report.write_json(tables.as_json(prediction), json)
    if plot is not None:
        plotting.plot(prediction, plot)


def _parse_nodes(text: str) -> tuple[int, ...]:
    """Return the numbers of nodes of ``1..1024`` or ``1,2,3``, rising."""
    span = re.fullmatch(r"\s*(\d{1,7})\s*\.\.\s*(\d{1,7})\s*", text)
    numbers: set[int] = set()
    if span:
        first, last = int(span[1]), int(span[2])
        numbers = {n for n in (first, last, *(1 << n for n in range(21))) if first <= n <= last}
    elif re.fullmatch(r"\s*\d{1,7}\s*(,\s*\d{1,7}\s*)*", text):
        numbers = set(map(int, text.split(",")))
    if not numbers or min(numbers) < 1 or max(numbers) > MAX_NODES:
        raise InputError(
            f"--nodes is {text!r}; give a rising range such as 1..1024 or a list such as 1,2,4, "
            f"of numbers from 1 to {MAX_NODES}"
        )
    return tuple(sorted(numbers))


def _parse_network(text: str) -> tuple[int, int]:
    """Return neurons and layers of ``65536x1920``."""
    match = re.fullmatch(r"\s*([1-9]\d{0,9})\s*[xX×]\s*([1-9]\d{0,9})\s*", text)
    if not match:
        raise InputError(
            f"--network is {text!r}; give neurons and layers, both from 1, such as 65536x1920"
        )
    return int(match[1]), int(match[2])


def _parse_amount(text: str, units: dict[str, float], option: str, examples: str) -> float:
    """Return a number with one of the units, in seconds or bytes a second."""
    match = re.fullmatch(r"\s*(\d+\.?\d*(?:e[+-]?\d+)?)\s*(\S+)\s*", text)
    amount = float(match[1]) * units.get(match[2], math.nan) if match else math.nan
    if not amount < math.inf:
        raise InputError(
            f"{option} is {text!r}; give a number and a unit, such as {examples}; "
            f"units are {', '.join(units)}"
        )
    return amount
