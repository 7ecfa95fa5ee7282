"""Several devices in one process.

Every device has a plan of its own, with all weights; inputs are partitioned. They never meet in a
network, so each device takes as many as the others, a run of neighbours, and a thread of its own
runs them; the batches come together in the order of the inputs.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from portable_spdnn.arrays import Progress
from portable_spdnn.backend import Backend
from portable_spdnn.errors import InputError, SpdnnError
from portable_spdnn.features import Features
from portable_spdnn.kernel_model import KernelModel
from portable_spdnn.network import Network
from portable_spdnn.plans.base import Build, NetworkPlan
from portable_spdnn.plans.batch import Batch, BatchOutput
from portable_spdnn.plans.checkpoint import Checkpoint
from portable_spdnn.plans.options import PlanOptions
from portable_spdnn.plans.partition import static_part


class MultiDevicePlan(NetworkPlan):
    """A plan for each of several devices; see the module's text.

    Parameters
    ----------
    backend : Backend
        Whose `device_numbers`, `on_device` and `bound` it uses.
    network : Network
    options : PlanOptions
        Those besides `devices` hold for each device.
    build : callable
        Makes the plan of each device.

    Raises
    ------
    InputError
        If a device does not exist or is named twice, or if memory is limited and there are
        several devices.
    """

    def __init__(
        self, backend: Backend, network: Network, options: PlanOptions, build: Build
    ) -> None:
        super().__init__(backend, network, options)
        self.numbers = chosen_devices(options.devices, backend.device_numbers(), backend.name)
        if options.memory is not None and len(self.numbers) > 1:
            raise InputError(
                f"memory goes with one device, not {len(self.numbers)}: each would stream all "
                "layers through host memory for itself; name one device, or leave memory out "
                "and limit what each device holds (device memory)"
            )
        self.plans: list[NetworkPlan] = []
        inputs = options.expected_inputs
        share = None if inputs is None else -(-inputs // len(self.numbers))
        each = replace(options, devices="", expected_inputs=share)
        # One after the other: plans may measure, and threads that pack weights would disturb it.
        for number in self.numbers:
            with _named(number):
                member = backend.on_device(number)
                with member.bound():
                    self.plans.append(build(member, network, each))

    @property
    def batch_size(self) -> int:
        """Inputs that go through the network together on one device."""
        return self.plans[0].batch_size

    def replicas(self) -> list[tuple[str, float]]:
        """Return device and planning seconds of each device."""
        return [
            (f"{number}: {plan.backend.device}", plan.plan_seconds)
            for number, plan in zip(self.numbers, self.plans, strict=True)
        ]

    def describe(self) -> str:
        """Return what the plan chose and why, a line each."""
        shared = ", as many to each" if len(self.plans) > 1 else ""
        lines = [f"inputs shared out over {_devices(self.numbers)}{shared}; all weights on each"]
        alike: dict[str, list[int]] = {}
        for number, plan in zip(self.numbers, self.plans, strict=True):
            alike.setdefault(plan.describe(), []).append(number)
        for text, numbers in alike.items():
            lines += [f"{_devices(numbers)}:"] * (len(alike) > 1) + [text]
        return "\n".join(lines)

    def layer_models(self, inputs: Sequence[int]) -> list[KernelModel] | None:
        """Return what each layer needs for an edge, on the first device."""
        return self.plans[0].layer_models(inputs)

    def run_batch(self, features: Features, report: Callable[[int], None]) -> BatchOutput:
        """Run one batch on the first device; `finished_batches` shares inputs out."""
        plan = self.plans[0]
        with _named(self.numbers[0]), plan.backend.bound():
            return plan.run_batch(features, report)

    def finished_batches(
        self,
        features: Features,
        first: int = 0,
        progress: Progress | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> Iterator[Batch]:
        """Run valid features on all devices; see `NetworkPlan.finished_batches`.

        Yields nothing before all devices are done. When one fails, the others end with the batch
        that they are in, and its error is raised: it names the device.
        """
        inputs, layers, count = features.shape[0], len(self.network), len(self.plans)
        news: queue.SimpleQueue[tuple[int, int | None]] = queue.SimpleQueue()
        stop = threading.Event()
        batches: list[list[Batch]] = [[] for _ in self.plans]
        errors: list[BaseException] = []  # the first that arose is the first here

        def show(replica: int) -> Progress | None:
            return None if progress is None else lambda done, total: news.put((replica, done))

        def work(replica: int) -> None:
            plan, (begin, end) = self.plans[replica], static_part(inputs, replica, count)
            try:
                with _named(self.numbers[replica]), plan.backend.bound():
                    for batch in plan.finished_batches(
                        features[begin:end], first + begin, show(replica), checkpoint
                    ):
                        batches[replica].append(replace(batch, replica=replica))
                        if stop.is_set():
                            break
            except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
                errors.append(error)
                stop.set()
            finally:
                news.put((replica, None))

        threads: list[threading.Thread] = []
        done = [0] * count
        try:
            for replica, number in enumerate(self.numbers):
                thread = threading.Thread(target=work, args=(replica,), name=f"spdnn-{number}")
                thread.start()
                threads.append(thread)
            running = count
            while running:  # progress is shown here, in the caller's own thread
                replica, work_done = news.get()
                running -= work_done is None
                if progress is not None and work_done is not None:
                    done[replica] = work_done
                    progress(sum(done), inputs * layers)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        if errors:
            raise errors[0]
        for share in batches:
            yield from share


def chosen_devices(wanted: str, present: Sequence[int], backend: str) -> tuple[int, ...]:
    """Return the numbers of the devices that an option names.

    Parameters
    ----------
    wanted : str
        As `PlanOptions.devices`: "all", or numbers separated by commas.
    present : sequence of int
        The devices there are.
    backend : str
        Whose; for messages.

    Raises
    ------
    InputError
        If there is no such device, or one is named twice.
    """
    if wanted == "all":
        return tuple(present)
    numbers = tuple(int(number) for number in wanted.split(","))
    absent = [number for number in numbers if number not in present]
    if absent:
        there = ", ".join(map(str, present)) or "none"
        raise InputError(
            f"devices {wanted}: backend {backend} sees no {_devices(absent)}; there are: {there}"
        )
    if len(set(numbers)) < len(numbers):
        raise InputError(f"devices {wanted}: a device is named twice; name each once")
    return numbers


@contextmanager
def _named(number: int) -> Iterator[None]:
    """Let errors say on which device they arose."""
    try:
        yield
    except SpdnnError as error:
        error.args = (f"device {number}: {error}", *error.args[1:])
        raise
    except Exception as error:
        error.add_note(f"on device {number}")
        raise


def _devices(numbers: Sequence[int]) -> str:
    """Return numbers in words: device 1; devices 0, 2."""
    return f"device{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
