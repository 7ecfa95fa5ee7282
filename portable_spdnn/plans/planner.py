"""Who makes a plan: exact passes, streaming, devices, the backend's own plan or the layer loop."""

from __future__ import annotations

import time
from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from portable_spdnn.backend import Backend
from portable_spdnn.errors import InputError
from portable_spdnn.host import parse_limit, require_memory
from portable_spdnn.network import Network, check_weights_fit
from portable_spdnn.plans.base import NetworkPlan
from portable_spdnn.plans.layer_loop import LayerLoopPlan
from portable_spdnn.plans.multi_device import MultiDevicePlan
from portable_spdnn.plans.options import PlanOptions
from portable_spdnn.plans.rewritten import RewrittenPlan
from portable_spdnn.plans.streamed import StreamedPlan
from portable_spdnn.registry import get_backend

MIN_TILE = 16  # inputs that go through a network together, at the least


def plan(
    network: Network,
    backend: str | Backend = "auto",
    *,
    threads: int | None = None,
    dtype: npt.DTypeLike = np.float32,
    path: str = "auto",
    batch_size: int | None = None,
    keep_dead_inputs: bool = False,
    exact_passes: Collection[str] = (),
    memory: str | int | None = None,
    kernel: str = "auto",
    storage: str = "same",
    device_memory: str | int | None = None,
    devices: str = "",
    profile: bool = False,
    expected_inputs: int | None = None,
) -> NetworkPlan:
    """Prepare a network once, to be run on any number of inputs.

    Formats are chosen, weights packed and uploaded, kernels compiled here, and what is chosen by
    measurement is measured here: a run's time is predictable.

    Parameters
    ----------
    network : Network
    backend : str or Backend, default "auto"
        A registered name, "auto" for what PORTABLE_SPDNN_BACKEND names, else
        the available one of the highest priority; or a backend at hand.
    threads : int, optional
        For a backend given by name.
    dtype, path, batch_size, keep_dead_inputs, exact_passes, memory, kernel, storage, \
device_memory, devices, profile, expected_inputs
        See `PlanOptions`; amounts of memory may be text such as "4GiB".

    Returns
    -------
    NetworkPlan
        ``run(features)`` gives a `Result`, ``describe()`` what was chosen and why;
        ``plan_seconds`` is what planning took.

    Raises
    ------
    InputError
        If an option has no valid value, or does not fit the network or the backend.
    BackendUnavailable
        If the named backend cannot run here.

    Examples
    --------
    >>> import numpy as np, portable_spdnn as ps
    >>> network = ps.Network([ps.Layer(np.eye(4), -0.5), ps.Layer(np.eye(4), activation="none")])
    >>> plan = ps.plan(network, backend="scipy")
    >>> plan.run(np.eye(4)).categories.tolist()
    [0, 1, 2, 3]
    """
    options = PlanOptions(
        dtype=dtype,
        path=path,
        batch_size=batch_size,
        keep_dead_inputs=keep_dead_inputs,
        exact_passes=exact_passes,
        memory=parse_limit(memory, "memory"),
        kernel=kernel,
        storage=storage,
        device_memory=parse_limit(device_memory, "device_memory"),
        devices=devices,
        profile=profile,
        expected_inputs=expected_inputs,
    )
    return make_plan(chosen_backend(backend, threads), network, options)


def chosen_backend(backend: str | Backend, threads: int | None) -> Backend:
    """Return a backend given by name or at hand; `threads` goes with a name."""
    if not isinstance(backend, Backend):
        return get_backend(backend, threads)
    if threads is not None:
        raise InputError("threads goes with a backend given by name; this one has its own")
    return backend


def make_plan(
    backend: Backend, network: Network, options: PlanOptions | None = None
) -> NetworkPlan:
    """Return the plan of a network on a backend, as `plan` does, with `plan_seconds` set."""
    start = time.perf_counter()
    options = options or PlanOptions()
    check_plan_options(backend, options)
    if isinstance(network.layers, tuple):  # else layers are checked as they are read
        check_weights_fit(network.layers, options.dtype)
    made: NetworkPlan
    if options.devices:
        made = MultiDevicePlan(backend, network, options, make_plan)
    elif options.exact_passes:
        made = RewrittenPlan(backend, network, options, own_plan)
    elif options.memory is not None:
        made = StreamedPlan(backend, network, options, options.memory, own_plan)
    else:
        made = own_plan(backend, network, options)
    made.plan_seconds = time.perf_counter() - start
    return made


def own_plan(backend: Backend, network: Network, options: PlanOptions) -> NetworkPlan:
    """Return the backend's own plan, the neutral layer loop where it has none."""
    if network.widest > 1 << 20:
        nbytes = 2 * network.widest * np.dtype(options.dtype).itemsize * MIN_TILE
        require_memory(nbytes, f"features of {MIN_TILE} inputs of {network.widest} neurons")
    return backend.build_plan(network, options) or LayerLoopPlan(backend, network, options)


def check_plan_options(backend: Backend, options: PlanOptions) -> None:
    """Raise InputError for an option that only other backends take."""
    for option, value in options.backend_specific().items():
        if option not in backend.plan_options:
            raise InputError(f"backend {backend.name} takes no option {option} ({value!r})")
    if options.kernel not in backend.kernels:
        raise InputError(
            f"kernel {options.kernel!r} is none of backend {backend.name}: choose one of "
            f"{', '.join(backend.kernels)}"
        )
