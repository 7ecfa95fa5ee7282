"""`portable-spdnn dlmc`: products with pruned matrices, beside dense ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from portable_spdnn.cli import options as flag
from portable_spdnn.cli.progress import show_progress
from portable_spdnn.errors import InputError

WRONG_PRODUCT = 1


def dlmc(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="Folder of .smtx, .mtx and .npz files, searched to its ends."
        ),
    ],
    columns: Annotated[
        list[str] | None,
        typer.Option(
            metavar="N,...",
            help="Columns of the dense matrix; may be repeated. Default: what rn50_batchsizes.txt "
            "says in DIR or above, else 256.",
        ),
    ] = None,
    backend: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="May be repeated, to compare. Default: auto."),
    ] = None,
    masks: Annotated[
        str,
        typer.Option(
            metavar="PERCENT,...",
            help="Add random masks with so many per cent of zeros, for each shape: 50,70,90,98 "
            "shows where the dense product is overtaken.",
        ),
    ] = "",
    threads: flag.Threads = None,
    seed: Annotated[int, typer.Option(metavar="S", min=0, help="Seed of values and masks.")] = 0,
    json: flag.Json = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw it: .png or .svg; needs the extra plot."),
    ] = None,
    no_progress: flag.NoProgress = False,
) -> None:
    """Measure sparse x dense products with the pruned matrices of a folder, as of DLMC.

    Each is checked, then timed by turns with the dense product (on as many threads) and SciPy's
    (on one). Exit code 0: all are right; 1: one is wrong, and named; 2: usage or input error.
    """
    from threadpoolctl import ThreadpoolController

    from portable_spdnn.dlmc import tables
    from portable_spdnn.dlmc.collection import collect
    from portable_spdnn.dlmc.timing import Measurement, measure
    from portable_spdnn.io.atomic_output import check_outputs
    from portable_spdnn.registry import get_backend
    from portable_spdnn.report import run_report
    from portable_spdnn.report.plots import check_plot

    check_outputs(json, plot)
    if plot is not None:
        check_plot(plot)
    counts = [
        int(x) for x in _numbers("--columns", ",".join(columns or ()), 1, 1 << 20, whole=True)
    ]
    shares = [x / 100 for x in _numbers("--masks", masks, 1, 99.99)]
    backends = {
        one.name: one for one in (get_backend(name, threads) for name in backend or ["auto"])
    }
    cases = collect(directory, counts, shares)
    found: list[Measurement] = []
    wrong: list[str] = []
    with show_progress("measuring", not no_progress) as step:
        blas = ThreadpoolController()
        for done, case in enumerate(cases):
            if step is not None:
                step(done, len(cases))
            for result in measure(case, list(backends.values()), seed, blas):
                if isinstance(result, Measurement):
                    found.append(result)
                else:
                    wrong.append(result)
                    typer.echo(f"WRONG: {result}", err=True)
    peaks = {
        name: max((one.peak for one in found if one.backend == name and one.peak), default=None)
        for name in backends
    }
    to_stderr = json == "-"
    facts = [
        ("backend", f"{name} ({one.device}); peak: {_peak(peaks[name])}")
        for name, one in backends.items()
    ]
    run_report.print_facts(facts, to_stderr)
    if found:
        tables.show(found, to_stderr)
    if json is not None:
        about = {
            "versions": {
                name: run_report.versions(one.availability().versions)
                for name, one in backends.items()
            },
            "devices": {name: one.device for name, one in backends.items()},
            "threads": {name: one.threads for name, one in backends.items()},
            "blas": [
                {name: one.get(name) for name in ("internal_api", "version", "architecture")}
                for one in blas.select(user_api="blas").info()
            ],
            "peak_flops": peaks,
            "seed": seed,
        }
        run_report.write_json(tables.as_json(about, found, wrong), json)
    if plot is not None and found:
        tables.plot(found, plot)
    if wrong:
        raise typer.Exit(WRONG_PRODUCT)


def _peak(flops: float | None) -> str:
    return "not measured" if flops is None else f"{flops / 1e9:.4g} GFLOP/s of multiply-adds"


def _numbers(option: str, text: str, least: float, most: float, whole: bool = False) -> list[float]:
    """Return the numbers of a list such as ``64,256``, each once; none of an empty one."""
    numbers = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        plain = part.replace(".", "", 0 if whole else 1)
        number = float(part) if plain.isdecimal() and len(part) < 12 else -1.0
        if not least <= number <= most:
            kind = "whole numbers" if whole else "numbers"
            raise InputError(
                f"{option} holds {part!r:.40}; {kind} from {least} to {most}, separated by commas, "
                "are expected"
            )
        numbers.append(number)
    return list(dict.fromkeys(numbers))
