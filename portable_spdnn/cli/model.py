"""`portable-spdnn model`: strong and weak scaling, predicted from one node."""

from __future__ import annotations

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
_NODES = r"[1-9]\d{0,5}"  # a number of nodes


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
    schedule: flag.Schedule = "static",
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
    dtype: flag.Dtype = "float32",
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
    from portable_spdnn.host import parse_limit, require_memory
    from portable_spdnn.io.atomic_output import check_outputs
    from portable_spdnn.registry import get_backend
    from portable_spdnn.report import run_report
    from portable_spdnn.report.plots import check_plot
    from portable_spdnn.scaling import calibration as calibrations
    from portable_spdnn.scaling import measuring, output
    from portable_spdnn.scaling.prediction import Prediction, Question
    from portable_spdnn.workloads.sources import Request

    counts = _parse_nodes(nodes)
    wide = deep = None
    if network is not None:
        example = "neurons and layers, both from 1, such as 65536x1920"
        pattern = r"([1-9]\d{0,9})\s*[xX×]\s*([1-9]\d{0,9})"
        wide, deep = map(int, _parse("--network", network, pattern, example))
    delay = _parse_amount("--latency", latency, _TIMES, "2us or 0.5ms")
    speed = _parse_amount("--bandwidth", bandwidth, _RATES, "10GB/s or 100Gbit/s")
    if not speed:
        raise InputError(f"--bandwidth is {bandwidth!r}; it must be more than 0")
    limit = parse_limit(memory, "--memory")
    require_memory(64 * total_inputs, f"--total-inputs {total_inputs}: to model them")
    check_outputs(save_calibration, plot, json)
    if plot is not None:
        check_plot(plot)
    if calibration is not None:
        for name in _MEASURING:
            source = context.get_parameter_source(name)
            if source is not None and source.name == "COMMANDLINE":
                option = f"--{name.replace('_', '-')}"
                raise InputError(f"{option} has no effect where --calibration is given; omit it")
        measured = calibrations.load_calibration(calibration)
    else:
        request = Request(data, wide, deep, inputs, None, first_inputs, seed, bias, y_max)
        measured = measuring.calibrate(
            get_backend(backend, threads), request, sample_inputs, sample_layers, dtype,
            lambda what: show_progress(what, not no_progress),
        )  # fmt: skip
    if wide not in (None, measured.neurons):
        raise InputError(
            f"{calibration}: was measured with {measured.neurons} neurons, --network has {wide}"
        )
    if save_calibration is not None:
        calibrations.save_calibration(measured, save_calibration)
    layers = deep or measured.network_layers
    question = Question(layers, total_inputs, counts, schedule, delay, speed, limit)
    prediction = Prediction(measured, question)
    output.show(prediction, to_stderr=json == "-")
    if json is not None:
        run_report.write_json(output.as_json(prediction), json)
    if plot is not None:
        output.plot(prediction, plot)


def _parse(option: str, text: str, pattern: str, expected: str) -> tuple[str, ...]:
    """Return the groups of a pattern that the whole text of a flag has to match."""
    match = re.fullmatch(pattern, text.strip())
    if match is None:
        raise InputError(f"{option} is {text!r}; give {expected}")
    return match.groups()


def _parse_nodes(text: str) -> tuple[int, ...]:
    """Return the numbers of nodes of ``1..1024`` or ``1,2,3``, rising."""
    pattern = rf"{_NODES}(\s*\.\.\s*{_NODES}|(\s*,\s*{_NODES})*)"
    expected = "a range such as 1..1024 or a list such as 1,2,4, of numbers from 1 to 999999"
    _parse("--nodes", text, pattern, expected)
    numbers = set(map(int, re.findall(r"\d+", text)))
    if ".." in text:
        numbers |= {1 << n for n in range(20) if min(numbers) < 1 << n < max(numbers)}
    return tuple(sorted(numbers))


def _parse_amount(option: str, text: str, units: dict[str, float], examples: str) -> float:
    """Return a number with one of the units, in seconds or bytes a second."""
    pattern = rf"(\d{{1,15}}(?:\.\d*)?(?:e[+-]?\d\d?)?)\s*({'|'.join(units)})"
    expected = f"a number and a unit, such as {examples}; units are {', '.join(units)}"
    number, unit = _parse(option, text, pattern, expected)
    return float(number) * units[unit]
