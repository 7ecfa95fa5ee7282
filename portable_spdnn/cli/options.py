"""Flags that several commands share, each with one name, one type and one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

BackendName = Annotated[
    str, typer.Option(metavar="NAME", help="auto, scipy, numba, cupy, or another registered.")
]
Data = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Folder in the Graph Challenge layout, or packed store. Default: a generated network.",
    ),
]
Neurons = Annotated[int | None, typer.Option(metavar="N", help="Neurons per layer.")]
Layers = Annotated[
    int | None,
    typer.Option(
        metavar="L", min=1, help="First layers; default: all that there are, 120 if generated."
    ),
]
Inputs = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Inputs: Graph Challenge TSV, MNIST IDX (both also gzip) or a packed store. "
        "Default: those of --data; without --data the bundled digits.",
    ),
]
TruthFile = Annotated[
    Path | None,
    typer.Option("--truth", metavar="FILE", help="True categories. Default: those of --data."),
]
FirstInputs = Annotated[
    int | None, typer.Option(metavar="K", min=1, help="Use the first K inputs only.")
]
BatchSize = Annotated[
    int | None,
    typer.Option(metavar="B", min=1, help="Inputs that go through the network together."),
]
Threads = Annotated[
    int | None,
    typer.Option(metavar="T", min=1, help="Threads. Default: NUMBA_NUM_THREADS, or all cores."),
]
Dtype = Annotated[Literal["float32", "float64"], typer.Option(help="Type of weights and features.")]
FeaturePath = Annotated[
    Literal["auto", "spmm", "spgemm"],
    typer.Option(help="Dense (spmm) or sparse (spgemm) features."),
]
Json = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE|-", help="Write the result as JSON; - for stdout."),
]
NoProgress = Annotated[bool, typer.Option("--no-progress", help="Show no progress.")]
Seed = Annotated[int, typer.Option(metavar="S", min=0, help="Seed of the generated network.")]
Bias = Annotated[
    float | None,
    typer.Option(
        help="Bias of every neuron of every layer, in place of what a store has. Default: a "
        "store's own, else the challenge's for this width."
    ),
]
YMax = Annotated[
    float | None,
    typer.Option(
        help="Upper bound after ReLU layers, beside bounds of their own; inf for none. Default: a "
        "store's own, else 32."
    ),
]
ExactPasses = Annotated[
    str,
    typer.Option(
        metavar="none|merge-neurons|merge-inputs|fixed-point|all",
        help="Exact rewrites of the work, some or all, separated by commas.",
    ),
]
Memory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Memory that the process may take, such as 4GiB: layers are then read, or generated, "
        "while others run, and inputs go in batches that fit. Networks come from packed stores "
        "or are generated.",
    ),
]
Kernel = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Design of the kernels of all layers, for backends that have several: of cupy csr, "
        "clustered, staged or resident. Default: by layer.",
    ),
]
Storage = Annotated[
    Literal["same", "float16"],
    typer.Option(help="Type in which cupy keeps features and weights; sums are in --dtype."),
]
DeviceMemory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Memory of the GPU that weights and features may take, such as 2GiB: weights that "
        "do not fit are copied while others are used, and inputs go in batches that fit.",
    ),
]
Devices = Annotated[
    str,
    typer.Option(
        metavar="all|0,1,...", help="GPUs that share the inputs. Default: the current one."
    ),
]
Profile = Annotated[
    bool, typer.Option("--profile", help="Time every layer by itself, for backends that can.")
]
CheckpointDir = Annotated[
    Path | None,
    typer.Option(
        "--checkpoint",
        metavar="DIR",
        help="Keep every finished batch there; an interrupted run goes on from the last.",
    ),
]
Schedule = Annotated[
    Literal["static", "dynamic"],
    typer.Option(
        help="Under mpiexec: as many inputs to each rank, or chunks as ranks ask for them."
    ),
]
