"""`portable-spdnn generate`: networks to files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from portable_spdnn.cli import options as flag
from portable_spdnn.cli.progress import show_progress
from portable_spdnn.workloads.request import DEFAULT_LAYERS, DEFAULT_NEURONS

generate = typer.Typer(help="Write generated networks.", no_args_is_help=True)


@generate.callback()
def _group() -> None:
    """Write generated networks."""


@generate.command()
def radixnet(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write; with --store, file.")],
    neurons: Annotated[
        int, typer.Option(metavar="N", help="Neurons per layer: 16 * 2^s.")
    ] = DEFAULT_NEURONS,
    layers: Annotated[int, typer.Option(metavar="L", min=1)] = DEFAULT_LAYERS,
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
    from portable_spdnn.workloads.request import Request, load_inputs_of

    features = None
    if not no_inputs:
        features = load_inputs_of(Request(inputs=inputs, first_inputs=first_inputs), neurons)[0]
    with show_progress("generating", not no_progress) as step:
        generate_radixnet(out, neurons, layers, seed, features=features, store=store, progress=step)
    shown = "no inputs" if features is None else f"{features.shape[0]} inputs"
    typer.echo(f"{out}: {neurons} neurons x {layers} layers, seed {seed}, {shown}")
