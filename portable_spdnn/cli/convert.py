"""`portable-spdnn convert`: a folder of text files to a packed store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from portable_spdnn.cli import options as flag
from portable_spdnn.cli.progress import show_progress


def convert(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Graph Challenge folder.")],
    out: Annotated[Path, typer.Option(metavar="STORE", help="The packed store to write.")],
    neurons: flag.Neurons = None,
    layers: flag.Layers = None,
    bias: flag.Bias = None,
    no_progress: flag.NoProgress = False,
) -> None:
    """Pack a network, its inputs and its truth: every command takes the store for the folder."""
    from portable_spdnn.io.packed_store import PackedStore
    from portable_spdnn.workloads.loading import convert as pack

    with show_progress("converting", not no_progress) as step:
        pack(directory, out, neurons, layers, bias, step)
    store = PackedStore(out)
    inputs = "no" if store.input_shape is None else str(store.input_shape[0])
    typer.echo(
        f"{out}: {store.neurons} neurons x {store.layers} layers, {inputs} inputs, truth for "
        f"{', '.join(map(str, store.truth_layers)) or 'no'} layers, {out.stat().st_size} bytes"
    )
