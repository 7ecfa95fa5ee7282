"""`portable-spdnn run`: one network on one backend, judged."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from portable_spdnn.cli import options as flag
from portable_spdnn.cli.progress import show_progress

if TYPE_CHECKING:
    from portable_spdnn.mpi.ranks import Ranks
    from portable_spdnn.plans.base import NetworkPlan
    from portable_spdnn.plans.options import PlanOptions
    from portable_spdnn.plans.result import Result
    from portable_spdnn.workloads.loading import Workload
    from portable_spdnn.workloads.sources import Request

WRONG_CATEGORIES = 1


def run(
    context: typer.Context,
    backend: flag.BackendName = "auto",
    data: flag.Data = None,
    neurons: flag.Neurons = None,
    layers: flag.Layers = None,
    inputs: flag.Inputs = None,
    truth: flag.TruthFile = None,
    first_inputs: flag.FirstInputs = None,
    batch_size: flag.BatchSize = None,
    threads: flag.Threads = None,
    dtype: flag.Dtype = "float32",
    path: flag.FeaturePath = "auto",
    seed: flag.Seed = 0,
    bias: flag.Bias = None,
    y_max: flag.YMax = None,
    keep_dead_inputs: Annotated[
        bool, typer.Option("--keep-dead-inputs", help="Compute inputs to the end, active or not.")
    ] = False,
    exact_passes: flag.ExactPasses = "none",
    memory: flag.Memory = None,
    kernel: flag.Kernel = "auto",
    storage: flag.Storage = "same",
    device_memory: flag.DeviceMemory = None,
    devices: flag.Devices = "",
    profile: flag.Profile = False,
    checkpoint: flag.CheckpointDir = None,
    schedule: flag.Schedule = "static",
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

    Started by an MPI launcher (mpiexec -n 4 portable-spdnn run ...), the ranks share the inputs
    out, and the first of them reports.

    Exit code 0: done, and the categories are right where there is a truth; 1: they are wrong;
    2: usage or input error.
    """
    from portable_spdnn.host import parse_limit
    from portable_spdnn.io.atomic_output import check_outputs
    from portable_spdnn.mpi.ranks import Ranks, launched_ranks
    from portable_spdnn.plans.options import PlanOptions
    from portable_spdnn.workloads.sources import Request

    check_outputs(save_categories, json)
    options = PlanOptions(
        dtype=dtype,
        path=path,
        batch_size=batch_size,
        keep_dead_inputs=keep_dead_inputs,
        exact_passes=exact_passes,
        memory=parse_limit(memory, "--memory"),
        kernel=kernel,
        storage=storage,
        device_memory=parse_limit(device_memory, "--device-memory"),
        devices=devices,
        profile=profile,
    )
    request = Request(
        data, neurons, layers, inputs, truth, first_inputs, seed, bias, y_max, memory is not None
    )
    ranks = Ranks() if launched_ranks() else None
    if ranks is not None:
        ranks.require_equal(
            {
                f"--{name.replace('_', '-')}": value if value is None else str(value)
                for name, value in context.params.items()
            }
        )
    leads = ranks is None or ranks.rank == 0
    progress = leads and not no_progress
    done = _execute(backend, threads, request, options, ranks, schedule, checkpoint, progress)
    code = 0
    if done is not None:
        code = _report(*done, options, verify, json, save_categories, progress)
    if ranks is not None:
        code = ranks.comm.bcast(code)
        ranks.close()
    if code:
        raise typer.Exit(code)


def _execute(
    backend: str,
    threads: int | None,
    request: Request,
    options: PlanOptions,
    ranks: Ranks | None,
    schedule: str,
    checkpoint: Path | None,
    progress: bool,
) -> tuple[Workload, NetworkPlan, Result] | None:
    """Load, plan and run; returns None on ranks that do not report."""
    from portable_spdnn.mpi.run import run_on_ranks
    from portable_spdnn.mpi.workload import load_ranked_workload
    from portable_spdnn.plans.planner import check_plan_options, make_plan
    from portable_spdnn.registry import get_backend
    from portable_spdnn.workloads.loading import load_workload

    if ranks is not None:
        ranks.bind_gpu(options.devices)
        threads = ranks.threads_each() if threads is None else threads
    chosen = get_backend(backend, threads)
    check_plan_options(chosen, options)
    if ranks is not None:
        ranks.require_equal({"backend": chosen.name})
    with show_progress("loading", progress) as step:
        if ranks is None:
            work = load_workload(request, step)
        else:
            part = load_ranked_workload(ranks, request, schedule, step)
            work = part.work
    each = work.features.shape[0] if ranks is None else -(-part.inputs // ranks.size)
    with show_progress(f"planning on {chosen.name}", progress):
        plan = make_plan(chosen, work.network, replace(options, expected_inputs=each))
    result: Result | None
    with show_progress(f"inference on {chosen.name}", progress) as step:
        if ranks is None:
            result = plan.run(work.features, step, checkpoint)
        else:
            result = run_on_ranks(
                ranks, plan, part.rows, part.inputs, schedule,
                load_seconds=work.load_seconds, progress=step, checkpoint=checkpoint,
            )  # fmt: skip
    return None if result is None else (work, plan, result)


def _report(
    work: Workload,
    plan: NetworkPlan,
    result: Result,
    options: PlanOptions,
    verify: bool,
    json: str | None,
    save_categories: Path | None,
    progress: bool,
) -> int:
    """Judge and print; returns the exit code."""
    from portable_spdnn.graphchallenge.categories import judge, write_categories
    from portable_spdnn.host import peak_resident_bytes
    from portable_spdnn.report import comparison, run_report

    peak_memory, known = peak_resident_bytes(), work.truth  # the reference is no part of the run
    verdict = None if known is None else judge(result.categories, known)
    agrees = reference_seconds = None
    # By default only where it takes about a second, and not where it would break a limit.
    if verify or (work.source.embedded and known is None and options.memory is None):
        with show_progress("verifying with the serial reference", progress) as step:
            features, _ = work.source.load_inputs()  # all of them: this rank may hold a part
            reference = comparison.run_reference(work.network, features, options.dtype, step)
        by_reference = comparison.judge_by_reference(result, reference)
        agrees, reference_seconds = by_reference.passed, reference.inference_seconds
        verdict = verdict or by_reference

    backend = plan.backend
    extra: dict[str, Any] = {
        "dtype": str(options.dtype),
        "threads": backend.threads,
        "plan": plan.describe().splitlines(),
        "memory": options.memory,
        "peak_memory": peak_memory,
        "truth_beyond_inputs": 0 if known is None else known.beyond,
        "reference_agrees": agrees,
        "reference_seconds": reference_seconds,
    }
    record = run_report.run_record(work, result, verdict, backend.availability().versions, extra)
    facts = run_report.run_facts(work, plan, result, peak_memory)
    if known is not None and known.beyond:
        facts.append(("truth", f"{known.beyond} categories beyond the inputs at hand left out"))
    if agrees is not None and known is not None:
        facts.append(("serial reference", "agrees" if agrees else "DISAGREES"))
    facts.append(("verdict", "none: no truth is known" if verdict is None else str(verdict)))
    run_report.print_facts(facts, to_stderr=json == "-")
    if result.replicas:
        run_report.print_table(*run_report.replica_table(result), to_stderr=json == "-")
    speeds = None
    if options.profile:
        from portable_spdnn.plans.machine_limits import limits_of

        limits = limits_of(backend)
        speeds = run_report.layer_speeds(plan, result, limits)
        if speeds is not None:
            run_report.print_table(
                *run_report.layer_table(speeds, result, limits), to_stderr=json == "-"
            )
    if save_categories is not None:
        write_categories(save_categories, result.categories)
    if json is not None:
        record["layers_beside_limits"] = None if speeds is None else [asdict(s) for s in speeds]
        run_report.write_json(record, json)
    return WRONG_CATEGORIES if verdict is not None and not verdict.passed else 0
