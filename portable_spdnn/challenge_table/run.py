"""The networks of the table, run one after the other and judged."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from portable_spdnn.backend import Backend
from portable_spdnn.challenge_table.catalog import Catalog
from portable_spdnn.challenge_table.records import BATCHES, Json, Records
from portable_spdnn.challenge_table.time_budget import predict
from portable_spdnn.errors import InputError
from portable_spdnn.features import Features
from portable_spdnn.graphchallenge.categories import judge
from portable_spdnn.graphchallenge.configurations import Configuration
from portable_spdnn.plans.checkpoint import features_fingerprint
from portable_spdnn.plans.memory_budget import streaming_memory
from portable_spdnn.plans.options import PlanOptions
from portable_spdnn.plans.planner import make_plan
from portable_spdnn.report import run_report
from portable_spdnn.report.comparison import (
    REFERENCE_NAME,
    ShowProgress,
    judge_by_reference,
    run_reference,
)
from portable_spdnn.workloads.inputs import InputsSource
from portable_spdnn.workloads.loading import Workload, load_workload
from portable_spdnn.workloads.sources import Request, Source, resolve

WARM_UP_INPUTS = 512


@dataclass(frozen=True)
class ChallengeOptions:
    """What a user may ask of the table; see `portable-spdnn challenge --help`.

    `plan.memory`, where set, holds for every network; `time_budget` is in seconds.
    """

    configurations: tuple[Configuration, ...]
    data: Path | None = None
    inputs: Path | None = None
    first_inputs: int | None = None
    seed: int = 0
    plan: PlanOptions = field(default_factory=PlanOptions)
    verify: bool = False
    time_budget: float | None = None
    checkpoint: Path | None = None


@dataclass(frozen=True)
class _Inputs:
    """Inputs in memory for all networks of a size: the first of `total` that there are."""

    neurons: int
    source: InputsSource
    kind: str
    features: Features
    fingerprint: str
    total: int
    seconds: float

    @property
    def count(self) -> int:
        return int(self.features.shape[0])

    def key(self, network: str) -> Json:
        """Return what names a network, by its fingerprint, and these inputs."""
        return {"network": network, "inputs": self.count, "features": self.fingerprint}


class TableRun:
    """The networks of the table on one backend.

    Raises InputError if `data` or `inputs` do not fit the networks, text files are to be
    streamed, or the checkpoint is that of another run.

    Parameters
    ----------
    backend : Backend
    options : ChallengeOptions
    show_progress : callable
        Given what runs, returns a context manager that yields a progress callback or None.

    Attributes
    ----------
    identity : dict
        What all rows share: versions, device, options.
    warm_up_seconds : float or None
        Compiling kernels and starting threads on a small network, apart from every row; None
        while nothing had to run.
    """

    def __init__(
        self, backend: Backend, options: ChallengeOptions, show_progress: ShowProgress
    ) -> None:
        self.backend, self.options = backend, options
        self._show = show_progress
        self._start = time.monotonic()
        self._catalog = Catalog(options.data, options.inputs, options.configurations)
        for one in options.configurations if options.plan.memory is not None else ():
            if reason := self._source(one).network.why_not_streamed:
                raise InputError(reason)
        self._versions = type(backend).availability().versions
        self.identity: Json = {
            "versions": run_report.versions(self._versions),
            "backend": backend.name,
            "device": backend.device,
            "threads": backend.threads,
            "dtype": str(options.plan.dtype),
            **{name: getattr(options.plan, name) for name in ("path", "batch_size", "memory")},
            "exact_passes": list(options.plan.exact_passes),
            **options.plan.backend_specific(),
            "verify": options.verify,
        }
        kept = options.checkpoint
        self._records = None if kept is None else Records(kept, self.identity)
        self._calibration: Json = {}  # the record of the warm-up
        self._done: list[Json] = []
        self._inputs: _Inputs | None = None
        self.warm_up_seconds: float | None = None

    def rows(self) -> Iterator[Json]:
        """Yield the rows, each when its network is done; raises as loading and running do.

        A row says where network and inputs come from and its `state`: "done", with what
        `run_report.run_record` tells and more, or "skipped", with the reason.
        """
        for configuration in self.options.configurations:
            row = self._row(configuration)
            if row["state"] == "done":
                self._done.append(row)
            yield row

    def _source(self, one: Configuration) -> Source:
        data, seed = self._catalog.network(one), self.options.seed
        return resolve(Request(data, one.neurons, one.layers, seed=seed))

    def _row(self, configuration: Configuration) -> Json:
        source, records = self._source(configuration), self._records
        layers = source.network.layers
        row: Json = {
            "neurons": configuration.neurons,
            "layers": configuration.layers,
            "edges": configuration.edges,
            "network_kind": source.network.kind,
            "inputs_kind": None,
            "state": "skipped",
            "skipped_because": None,
            "predicted_seconds": None,
            "from_checkpoint": False,
        }
        if records is not None and records.path(configuration).exists():
            inputs = self._inputs_of(configuration.neurons)
            found = records.load(configuration, inputs.key(layers.fingerprint()))
            row["from_checkpoint"] = True
        else:
            loaded = self._inputs or self._inputs_of(configuration.neurons)
            self._warm_up()
            if self.options.time_budget is not None:
                done = self._done or [self._calibration]
                # Inputs of another size are taken to be as many as those that are loaded.
                row["predicted_seconds"] = predicted = predict(done, configuration, loaded.count)
                left = self.options.time_budget - (time.monotonic() - self._start)
                if predicted > left:
                    reason = f"{predicted:.3g} s predicted, {max(left, 0):.3g} s left"
                    return row | {"skipped_because": reason}
            inputs = self._inputs_of(configuration.neurons)
            memory = streaming_memory(layers.statistics, inputs.count, self.options.plan)
            if memory is not None and (reason := source.network.why_not_streamed):
                return row | {"inputs_kind": inputs.kind, "skipped_because": reason}
            found = self._run(source, inputs, configuration, memory)
            if records is not None:
                records.save(configuration, inputs.key(layers.fingerprint()), *found)
        row |= {"inputs_kind": inputs.kind, "state": "done"}
        return row | self._judged(configuration, inputs, *found)

    def _inputs_of(self, neurons: int) -> _Inputs:
        """Return the inputs of a size; those of one size are in memory at a time."""
        if self._inputs is None or self._inputs.neurons != neurons:
            self._inputs = None
            path, first = self._catalog.inputs(neurons), self.options.first_inputs
            start = time.perf_counter()
            with self._show(f"{neurons} neurons: loading inputs"):
                source = resolve(Request(neurons=neurons, inputs=path, first_inputs=first))
                features, total = source.load_inputs()
                fingerprint = f"{features_fingerprint(features):016x}"
            named, seconds = self.options.inputs, time.perf_counter() - start
            kind = source.inputs.kind if named is None else named.name
            self._inputs = _Inputs(
                neurons, source.inputs, kind, features, fingerprint, total, seconds
            )
        return self._inputs

    def _warm_up(self) -> None:
        """Run a small network twice: kernels are compiled, then it tells what to expect."""
        if self.warm_up_seconds is not None:
            return
        start = time.perf_counter()
        options = replace(self.options.plan, memory=None, batch_size=None)
        with self._show("warming up"):
            work = load_workload(Request(first_inputs=WARM_UP_INPUTS))
            for _ in range(2):
                result = make_plan(self.backend, work.network, options).run(work.features)
        self._calibration = run_report.run_record(
            work, result, None, {}, {"inputs_load_seconds": 0.0, "reference_seconds": None}
        )
        self.warm_up_seconds = time.perf_counter() - start

    def _run(
        self, source: Source, inputs: _Inputs, configuration: Configuration, memory: int | None
    ) -> tuple[Json, list[int]]:
        """Return the record of a network, not judged by a truth, and its categories."""
        name = f"{configuration.neurons} x {configuration.layers}"
        options, backend, streamed = self.options, self.backend, memory is not None
        source = replace(source, inputs=inputs.source)
        start = time.perf_counter()
        with self._show(f"{name}: loading") as step:
            network = source.network.open() if streamed else source.network.load(step)
        work = Workload(source, network, inputs.features, None, time.perf_counter() - start)
        with self._show(f"{name}: planning on {backend.name}"):
            plan = make_plan(
                backend, network, replace(options.plan, memory=memory, expected_inputs=inputs.count)
            )
        batches = None
        # Where all inputs go together there is nothing to go on from, and nothing to write.
        if self._records is not None and (streamed or plan.batch_size < inputs.count):
            batches = self._records.path(configuration, BATCHES[streamed])
        with self._show(f"{name}: inference on {backend.name}") as step:
            result = plan.run(inputs.features, step, batches)
        extra = {
            "dtype": str(options.plan.dtype),
            "threads": backend.threads,
            "plan": plan.describe().splitlines(),
            "memory": memory,
            "memory_automatic": options.plan.memory is None,
            "inputs_load_seconds": inputs.seconds,
            "inputs_fingerprint": inputs.fingerprint,
            "reference_agrees": None,
            "reference_seconds": None,
        }
        if options.verify:
            with self._show(f"{name}: verifying with the serial reference") as step:
                reference = run_reference(network, inputs.features, options.plan.dtype, step)
            extra["reference_agrees"] = judge_by_reference(result, reference).passed
            extra["reference_seconds"] = reference.inference_seconds
        record = run_report.run_record(work, result, None, self._versions, extra)
        return record, result.categories.tolist()

    def _judged(
        self, configuration: Configuration, inputs: _Inputs, record: Json, categories: list[int]
    ) -> Json:
        """Return the record with the verdict: by the truth, else by the reference that ran."""
        truth = self._catalog.truth(configuration, inputs.total, inputs.count)
        passed, against = record["reference_agrees"], REFERENCE_NAME
        if truth is not None:
            passed, against = judge(categories, truth).passed, truth.source
        verdict = {True: "PASSED", False: "FAILED", None: None}[passed]
        return {**record, "verdict": verdict, "verdict_against": verdict and against}
