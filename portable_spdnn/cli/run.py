"""`portable-spdnn run`: one network on one backend, judged."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from portable_spdnn.cli import options as flag
from portable_spdnn.cli.progress import show_progress

WRONG_CATEGORIES = 1


def run(
    backend: flag.BackendName = "auto",
    data: flag.Data = None,
    neurons: flag.Neurons = None,
    layers: flag.Layers = None,
    inputs: flag.Inputs = None,
    truth: flag.TruthFile = None,
    first_inputs: flag.FirstInputs = None,
    batch_size: flag.BatchSize = None,
    threads: flag.Threads = None,
    dtype: flag.DtypeOption = flag.Dtype.float32,
    path: flag.PathOption = flag.FeaturePath.auto,
    seed: flag.Seed = 0,
    bias: flag.Bias = None,
    y_max: flag.YMax = None,
    keep_dead_inputs: Annotated[
        bool, typer.Option("--keep-dead-inputs", help="Compute inputs to the end, dead or not.")
    ] = False,
    exact_passes: flag.ExactPasses = "none",
    memory: flag.Memory = None,
    checkpoint: flag.CheckpointDir = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Run the serial reference as well, and judge by it where there is no truth. "
            "Always on for the generated network with the bundled digits, unless --memory is "
            "given: the reference has no limit.",
        ),
    ] = False,
    json: flag.Json = None,
    save_categories: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the categories found, as the challenge does."),
    ] = None,
    no_progress: flag.NoProgress = False,
) -> None:
    """Run a network on inputs, print times, rates and the verdict.

    Exit code 0: done, and the categories are right where there is a truth; 1: they are wrong;
    2: usage or input error.
    """
    from portable_spdnn import report
    from portable_spdnn.engine import infer
    from portable_spdnn.graphchallenge import Truth, judge, write_categories
    from portable_spdnn.memory import format_bytes, parse_bytes, peak_resident_bytes
    from portable_spdnn.passes import parse_passes
    from portable_spdnn.plan import PlanOptions
    from portable_spdnn.registry import get_backend
    from portable_spdnn.workload import Request, load_workload

    progress = not no_progress
    chosen = get_backend(backend, threads)
    plan_options = PlanOptions(
        dtype.value,
        path.value,
        batch_size,
        keep_dead_inputs,
        parse_passes(exact_passes),
        None if memory is None else parse_bytes(memory, "--memory"),
    )
    streamed = memory is not None
    request = Request(
        data, neurons, layers, inputs, truth, first_inputs, seed, bias, y_max, streamed
    )
    with show_progress("loading", progress) as step:
        work = load_workload(request, step)
    with show_progress(f"planning on {chosen.name}", progress):
        plan = chosen.plan(work.network, plan_options)
    with show_progress(f"inference on {chosen.name}", progress) as step:
        result = plan.run(work.features, step, checkpoint)
    peak = peak_resident_bytes()
    known, reference = work.truth, None
    if verify or (work.embedded and known is None and not streamed):
        with show_progress("verifying with the serial reference", progress) as step:
            # Faithful: every input through every layer, in a code path of its own.
            reference = infer(
                work.network,
                work.features,
                "scipy",
                dtype=dtype.value,
                keep_dead_inputs=True,
                progress=step,
            )
        by_reference = Truth(reference.categories, 0, "the serial scipy reference")
        known = known or by_reference
    verdict = None if known is None else judge(result.categories, known)
    agrees = None if reference is None else judge(result.categories, by_reference).passed

    extra = {
        "dtype": dtype.value,
        "threads": chosen.threads,
        "plan": plan.describe().splitlines(),
        "memory": plan_options.memory,
        "peak_memory": peak,
        "resumed_inputs": result.resumed_inputs,
        "truth_beyond_inputs": 0 if known is None else known.beyond,
        "reference_agrees": agrees,
        "reference_seconds": None if reference is None else reference.inference_seconds,
    }
    record = report.run_record(work, result, verdict, type(chosen).availability().versions, extra)
    network = work.network
    facts = [
        (
            "network",
            f"{network.neurons} neurons x {len(network)} layers, {network.edges} edges "
            f"({work.network_source})",
        ),
        ("inputs", f"{result.inputs} ({work.inputs_source})"),
        ("backend", f"{result.backend} ({result.device}), {dtype.value}"),
        ("plan", plan.describe()),
        ("load", report.seconds(work.load_seconds)),
        ("planning", report.seconds(result.plan_seconds)),
        ("inference", report.seconds(result.inference_seconds)),
        ("challenge edge rate", report.rate(result.edge_rate)),
        ("executed edge rate", report.rate(result.executed_edge_rate)),
        ("exact passes", ", ".join(result.exact_passes) or "none"),
        ("survivors", str(result.categories.size)),
    ]
    if plan_options.memory is not None:
        allowed = format_bytes(plan_options.memory)
        facts.append(("peak memory", f"{format_bytes(peak)} of {allowed} allowed"))
    if result.resumed_inputs:
        facts.append(("checkpoint", f"{result.resumed_inputs} inputs were finished before"))
    if known is not None and known.beyond:
        facts.append(("truth", f"{known.beyond} categories beyond the inputs at hand left out"))
    if agrees is not None and work.truth is not None:
        facts.append(("serial reference", "agrees" if agrees else "DISAGREES"))
    facts.append(("verdict", "none: no truth is known" if verdict is None else str(verdict)))
    report.print_facts(facts, to_stderr=json == "-")
    if save_categories is not None:
        write_categories(save_categories, result.categories)
    if json is not None:
        report.write_json(record, json)
    if verdict is not None and not verdict.passed:
        raise typer.Exit(WRONG_CATEGORIES)
