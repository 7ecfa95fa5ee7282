"""`portable-spdnn generate`: networks to files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from portable_spdnn.cli import options as flag
from portable_spdnn.cli.progress import show_progress

generate = typer.Typer(help="Write generated networks.", no_args_is_help=True)


@generate.callback()
def _group() -> None:
    """Write generated networks."""


@generate.command()
def radixnet(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write; with --store, file.")],
    neurons: Annotated[int, typer.Option(metavar="N", help="Neurons per layer: 16 * 2^s.")] = 1024,
    layers: Annotated[int, typer.Option(metavar="L", min=1)] = 120,
    seed: flag.Seed = 0,
    inputs: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Inputs to write along. Default: the bundled digits."),
    ] = None,
    first_inputs: flag.FirstInputs = None,
    no_inputs: Annotated[
        bool, typer.Option("--no-inputs", help="Write the network alone.")
    ] = False,
    store: Annotated[bool, typer.Option("--store", help="Write a packed store.")] = False,
    no_progress: flag.NoProgress = False,
) -> None:
    """Write a RadiX-Net with the structure of the Graph Challenge, and inputs for it."""
    from portable_spdnn.workloads.generation import generate_radixnet
    from portable_spdnn.workloads.sources import Request, resolve

    features = None
    if not no_inputs:
        request = Request(neurons=neurons, inputs=inputs, first_inputs=first_inputs)
        features = resolve(request).load_inputs()[0]
    with show_progress("generating", not no_progress) as step:
        generate_radixnet(out, neurons, layers, seed, features=features, store=store, progress=step)
    shown = "no inputs" if features is None else f"{features.shape[0]} inputs"
    typer.echo(f"{out}: {neurons} neurons x {layers} layers, seed {seed}, {shown}")
