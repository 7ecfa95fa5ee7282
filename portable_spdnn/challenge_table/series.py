"""The networks of the table, run one after the other and judged."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from portable_spdnn.backend import OPTIONAL_PLAN_OPTIONS, Backend
from portable_spdnn.challenge_table.inputs import (
    InputsOfASize,
    check_inputs_file,
    load_inputs_of_size,
)
from portable_spdnn.challenge_table.memory_guard import Decision, decide
from portable_spdnn.challenge_table.records import Records
from portable_spdnn.challenge_table.rows import ChallengeOptions, Row
from portable_spdnn.challenge_table.sources import TEXT, NetworkSource, Sources
from portable_spdnn.challenge_table.time_budget import Measured, Predictor
from portable_spdnn.errors import InputError
from portable_spdnn.graphchallenge.configurations import Configuration, judge
from portable_spdnn.plans.base import PlanOptions, Progress
from portable_spdnn.report import run_report
from portable_spdnn.report.comparison import REFERENCE_NAME, judge_by_reference, run_reference
from portable_spdnn.workloads.images import digits_features
from portable_spdnn.workloads.loading import Workload
from portable_spdnn.workloads.sources import Request, resolve

ShowProgress = Callable[[str], AbstractContextManager[Progress | None]]
WARM_UP = Configuration(1024, 120, -0.3)
WARM_UP_INPUTS = 512


class Series:
    """The networks of the table on one backend.

    Parameters
    ----------
    backend : Backend
    options : ChallengeOptions
    show_progress : callable, optional
        Given what runs, returns a context manager that yields a progress callback or None.

    Attributes
    ----------
    identity : dict
        What all rows share: versions, device, options.
    warm_up_seconds : float or None
        Compiling kernels and starting threads on a small network, apart from every row; None
        while nothing had to run.

    Raises
    ------
    InputError
        If `data` or `inputs` do not fit the networks, text files are to be streamed, or the
        checkpoint is that of another run.
    """

    def __init__(
        self,
        backend: Backend,
        options: ChallengeOptions,
        show_progress: ShowProgress = lambda what: nullcontext(None),
    ) -> None:
        self.backend, self.options = backend, options
        self._show = show_progress
        self._start = time.monotonic()
        if options.inputs is not None:
            check_inputs_file(options.inputs, {one.neurons for one in options.configurations})
        self._sources = Sources(options.data, options.seed, options.configurations)
        if options.plan.memory is not None:
            for one in options.configurations:
                if self._sources.network(one).kind == TEXT:
                    raise InputError(_not_streamed(options.data, one))
        self._versions = type(backend).availability().versions
        self.identity: dict[str, Any] = {
            "versions": run_report.versions(self._versions),
            "backend": backend.name,
            "device": backend.device,
            "threads": backend.threads,
            "dtype": str(options.plan.dtype),
            "path": options.plan.path,
            "batch_size": options.plan.batch_size,
            "exact_passes": list(options.plan.exact_passes),
            "memory": options.plan.memory,
            # What not every backend takes, where it is not left alone.
            **{
                option: getattr(options.plan, option)
                for option in OPTIONAL_PLAN_OPTIONS
                if getattr(options.plan, option) != getattr(PlanOptions(), option)
            },
            "verify": options.verify,
        }
        self._records = None
        if options.checkpoint is not None:
            self._records = Records(options.checkpoint, self.identity)
        self._predictor = Predictor()
        self._inputs: InputsOfASize | None = None
        self.warm_up_seconds: float | None = None

    def rows(self) -> Iterator[Row]:
        """Yield the rows, each when its network is done.

        Raises
        ------
        InputError, NumericalError
            As loading, planning and running do.
        """
        for configuration in self.options.configurations:
            row = self._row(configuration)
            if row.record is not None:
                self._predictor.add(_measured(row.record))
            yield row

    def _row(self, configuration: Configuration) -> Row:
        source = self._sources.network(configuration)
        row = Row(configuration, source.kind)
        if self._records is not None and self._records.holds(configuration):
            inputs = self._inputs_of(configuration.neurons)
            kept = self._records.load(configuration, _key(source, inputs))
            if kept is not None:
                record = self._judged(kept[0], kept[1], source, inputs)
                return replace(row, inputs_kind=inputs.kind, record=record, from_checkpoint=True)
        if self._inputs is None:
            self._inputs_of(configuration.neurons)
        self._warm_up()
        if self.options.time_budget is not None:
            predicted = self._predicted(configuration)
            row = replace(row, predicted_seconds=predicted)
            left = self.options.time_budget - (time.monotonic() - self._start)
            if predicted > left:
                reason = f"{predicted:.3g} s predicted, {max(left, 0):.3g} s left"
                return replace(row, skipped=reason)
        inputs = self._inputs_of(configuration.neurons)
        row = replace(row, inputs_kind=inputs.kind)
        decision = decide(source.facts, inputs.count, self.options.plan)
        if decision.streamed and source.kind == TEXT:
            return replace(row, skipped=_not_streamed(self.options.data, configuration))
        record, categories = self._run(configuration, source, inputs, decision)
        if self._records is not None:
            self._records.save(configuration, _key(source, inputs), record, categories)
        return replace(row, record=self._judged(record, categories, source, inputs))

    def _inputs_of(self, neurons: int) -> InputsOfASize:
        """Return the inputs of a size; those of one size are in memory at a time."""
        if self._inputs is None or self._inputs.neurons != neurons:
            self._inputs, options = None, self.options
            with self._show(f"{neurons} neurons: loading inputs"):
                self._inputs = load_inputs_of_size(
                    self._sources, neurons, options.inputs, options.first_inputs
                )
        return self._inputs

    def _warm_up(self) -> None:
        """Run a small network twice: kernels are compiled, then it tells what to expect."""
        if self.warm_up_seconds is not None:
            return
        start = time.perf_counter()
        network = resolve(Request(neurons=WARM_UP.neurons, layers=WARM_UP.layers)).load_network()
        load_seconds = time.perf_counter() - start
        features = digits_features(WARM_UP.neurons)[:WARM_UP_INPUTS]
        options = replace(self.options.plan, memory=None, batch_size=None)
        with self._show("warming up"):
            for _ in range(2):
                plan = self.backend.plan(network, options)
                result = plan.run(features)
        self._predictor.calibration = Measured(
            WARM_UP.neurons,
            WARM_UP.layers,
            network.edges,
            result.inputs,
            load_seconds + result.plan_seconds,
            result.inference_seconds,
        )
        self.warm_up_seconds = time.perf_counter() - start

    def _predicted(self, configuration: Configuration) -> float:
        """Return the seconds that a network will take, with its inputs if they are not loaded.

        Those of another size are taken to be as many as those that are.
        """
        assert self._inputs is not None  # those of the first row are always loaded
        seconds = self._predictor.predict(configuration, self._inputs.count)
        if self._inputs.neurons != configuration.neurons:
            seconds += self._inputs.seconds * configuration.neurons / self._inputs.neurons
        return seconds

    def _run(
        self,
        configuration: Configuration,
        source: NetworkSource,
        inputs: InputsOfASize,
        decision: Decision,
    ) -> tuple[dict[str, Any], list[int]]:
        """Return the record of a network, unjudged, and its categories."""
        name = f"{configuration.neurons} x {configuration.layers}"
        request = Request(
            data=source.path,
            neurons=configuration.neurons,
            layers=configuration.layers,
            seed=self.options.seed,
            streamed=decision.streamed,
        )
        start = time.perf_counter()
        with self._show(f"{name}: loading") as step:
            found = replace(resolve(request), inputs=inputs.source)
            network = found.load_network(step)
        load_seconds = time.perf_counter() - start
        with self._show(f"{name}: planning on {self.backend.name}"):
            chosen = replace(
                self.options.plan,
                memory=decision.memory,
                expected_inputs=inputs.features.shape[0],
            )
            plan = self.backend.plan(network, chosen)
        batches = None
        # Where all inputs go together there is nothing to go on from, and nothing to write.
        if self._records is not None and (decision.streamed or plan.batch_size < inputs.count):
            batches = self._records.batches(configuration, decision.streamed)
        with self._show(f"{name}: inference on {self.backend.name}") as step:
            result = plan.run(inputs.features, step, batches)
        agrees = reference_seconds = None
        if self.options.verify:
            with self._show(f"{name}: verifying with the serial reference") as step:
                dtype = self.options.plan.dtype
                reference = run_reference(network, inputs.features, dtype, step)
            agrees = judge_by_reference(result, reference).passed
            reference_seconds = reference.inference_seconds
        work = Workload(found, network, inputs.features, None, load_seconds)
        extra = {
            "dtype": str(self.options.plan.dtype),
            "threads": self.backend.threads,
            "plan": plan.describe().splitlines(),
            "memory": decision.memory,
            "memory_automatic": decision.automatic,
            "network_kind": source.kind,
            "inputs_kind": inputs.kind,
            "inputs_load_seconds": inputs.seconds,
            "inputs_fingerprint": inputs.fingerprint,
            "resumed_inputs": result.resumed_inputs,
            "reference_agrees": agrees,
            "reference_seconds": reference_seconds,
        }
        record = run_report.run_record(work, result, None, self._versions, extra)
        return record, result.categories.tolist()

    def _judged(
        self,
        record: dict[str, Any],
        categories: list[int],
        source: NetworkSource,
        inputs: InputsOfASize,
    ) -> dict[str, Any]:
        """Return the record with the verdict: by the truth, else by the reference that ran."""
        truth = None
        if inputs.own and source.path is not None:
            configuration = Configuration(record["neurons"], record["layers"], 0.0)
            truth = self._sources.truth(configuration, inputs.total, inputs.count)
        if truth is not None:
            verdict = judge(categories, truth)
            passed, against = verdict.passed, verdict.source
        elif record["reference_agrees"] is not None:
            passed, against = record["reference_agrees"], REFERENCE_NAME
        else:
            return {**record, "verdict": None, "verdict_against": None}
        word = "PASSED" if passed else "FAILED"
        return {**record, "verdict": word, "verdict_against": against}


def _key(source: NetworkSource, inputs: InputsOfASize) -> dict[str, Any]:
    """Return what names a network and its inputs."""
    return {"network": source.identity, "inputs": inputs.count, "features": inputs.fingerprint}


def _measured(record: dict[str, Any]) -> Measured:
    return Measured(
        record["neurons"],
        record["layers"],
        record["edges"],
        record["inputs"],
        record["load_seconds"] + record["plan_seconds"],
        record["inference_seconds"] + (record["reference_seconds"] or 0.0),
    )


def _not_streamed(data: Path | None, configuration: Configuration) -> str:
    neurons = configuration.neurons
    return (
        f"{data}: the network of {neurons} x {configuration.layers} would be streamed, which text "
        f"files cannot be; pack it: portable-spdnn convert {data} --neurons {neurons} "
        f"--out {neurons}.spdnn"
    )
