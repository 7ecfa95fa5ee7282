"""`portable-spdnn compile`: a backend's kernels, before a first call needs them."""

from __future__ import annotations

import typer

from portable_spdnn.cli import options as flag


def compile_(backend: flag.BackendName = "auto", dtype: flag.Dtype = "float32") -> None:
    """Compile the kernels of a backend, and keep them on disk for later processes.

    Once for each type of values and kind of processor, where a machine or a container is set up:
    two to three minutes of a core. Without it the first call of each operation takes seconds.
    """
    from portable_spdnn.registry import get_backend
    from portable_spdnn.warm_up import compile_kernels

    chosen = get_backend(backend)
    typer.echo(f"backend {chosen.name} ({chosen.device}), {dtype}")
    compile_kernels(chosen, dtype, lambda name, seconds: typer.echo(f"{name}: {seconds:.1f} s"))
