"""Who makes a plan: exact passes, streaming, devices, the backend's own plan or the layer loop."""

from __future__ import annotations

import time
from typing import Any, Unpack

import numpy as np

from portable_spdnn.backend import Backend
from portable_spdnn.errors import InputError
from portable_spdnn.host import parse_limit, require_memory
from portable_spdnn.network import Network, check_weights_fit
from portable_spdnn.plans.base import NetworkPlan
from portable_spdnn.plans.layer_loop import LayerLoopPlan
from portable_spdnn.plans.multi_device import MultiDevicePlan
from portable_spdnn.plans.options import PlanKeywords, PlanOptions
from portable_spdnn.plans.rewritten import RewrittenPlan
from portable_spdnn.plans.streamed import StreamedPlan
from portable_spdnn.registry import get_backend

MIN_TILE = 16  # inputs that go through a network together, at the least


def plan(
    network: Network,
    backend: str | Backend = "auto",
    *,
    threads: int | None = None,
    **options: Unpack[PlanKeywords],
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
    **options
        The fields of `PlanOptions`: dtype, path, batch_size, keep_dead_inputs, exact_passes,
        memory, kernel, storage, device_memory, devices, profile, expected_inputs,
        expected_survival. Amounts of memory may be text such as "4GiB".

    Returns
    -------
    NetworkPlan
        ``run(features)`` gives a `Result`, ``describe()`` what was chosen and why;
        ``plan_seconds`` is what planning took.

    Raises
    ------
    InputError
        If `network` is no Network, or if an option has no valid value, or does not fit the network
        or the backend.
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
    if not isinstance(network, Network):
        raise InputError(
            f"network is a {type(network).__name__}; expected a Network, such as "
            "Network([Layer(weights, bias), ...])"
        )
    fields: dict[str, Any] = {**options}
    for name in ("memory", "device_memory"):
        fields[name] = parse_limit(fields.get(name), name)
    if not isinstance(backend, Backend):
        backend = get_backend(backend, threads)
    elif threads is not None:
        raise InputError("threads goes with a backend given by name; this one has its own")
    return make_plan(backend, network, PlanOptions(**fields))


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
