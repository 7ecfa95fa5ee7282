"""`portable-spdnn compile`: what first calls would wait for, done before."""

from __future__ import annotations

from portable_spdnn.cli import options as flag


def compile_(
    backend: flag.BackendName = "auto",
    dtype: flag.Dtype = "float32",
    threads: flag.Threads = None,
) -> None:
    """Compile the kernels of a backend, and keep them on disk for later processes.

    A minute or two, once for each type of values and kind of processor: where a machine or a
    container is set up. Without it the first call of each operation takes seconds.
    """
    from portable_spdnn.first_calls import compile_kernels
    from portable_spdnn.registry import get_backend
    from portable_spdnn.report import run_report

    chosen = get_backend(backend, threads)
    seconds = compile_kernels(chosen, dtype)
    facts = [("backend", f"{chosen.name} ({chosen.device}), {dtype}")]
    facts += [(name, f"{taken:.1f} s") for name, taken in seconds.items()]
    run_report.print_facts(facts, to_stderr=False)
