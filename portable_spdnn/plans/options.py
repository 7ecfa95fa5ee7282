"""What a user may ask of a plan."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from portable_spdnn.arguments import checked_count, shown
from portable_spdnn.errors import InputError
from portable_spdnn.network import Network
from portable_spdnn.passes import parse_passes

PATHS = ("auto", "spmm", "spgemm")
STORAGES = ("same", "float16")
# The part of the challenge's images that is active before each of the first layers, and later.
CHALLENGE_SURVIVAL = (1.0, 0.92, 0.66, 0.35, 0.16, 0.08, 0.05, 0.03)
BATCH_MEMORY = 1 << 30  # bytes that the features before and after a layer may take by default
# Fields that a backend takes only where its `plan_options` name them.
OPTIONAL_PLAN_OPTIONS = ("kernel", "storage", "device_memory", "devices", "profile")
_DEVICES = re.compile(r"(all|\d+(,\d+)*)?")


class PlanKeywords(TypedDict, total=False):
    """Keywords of `plan` and `infer`: the fields of `PlanOptions`, but `edges_after`.

    Amounts of memory may be text such as "4GiB".
    """

    dtype: npt.DTypeLike
    path: str
    batch_size: int | None
    keep_dead_inputs: bool
    exact_passes: Collection[str]
    memory: int | str | None
    kernel: str
    storage: str
    device_memory: int | str | None
    devices: str
    profile: bool
    expected_inputs: int | None
    expected_survival: Sequence[float]


@dataclass(frozen=True)
class PlanOptions:
    """What a user may ask of a plan.

    Attributes
    ----------
    dtype : numpy dtype, default float32
        Type of weights, features and sums: float32 or float64.
    path : {"auto", "spmm", "spgemm"}
        Dense or sparse features between layers; "auto" leaves the choice to the plan.
    batch_size : int, optional
        Inputs that go through the network together; bounds memory, and changes answers by roundings
        at most.
    keep_dead_inputs : bool, default False
        Keep computing inputs whose features are all zero, as the plain reference does.
    exact_passes : str or iterable of str, default none
        Exact rewrites to apply: see `portable_spdnn.passes`.
    memory : int, optional
        Bytes that the whole process may hold: layers are then read block by block while others
        run (`portable_spdnn.plans.streamed`), inputs go in batches that fit, and scores are kept
        only with a checkpoint. Worth while with a network that is not in memory, such as
        `open_network` gives.
    kernel : str, default "auto"
        A design of kernels, by the name that the backend gives it (`Backend.kernels`), for all
        layers; "auto" leaves the choice to the plan, layer by layer.
    storage : {"same", "float16"}
        Type in which features and weights are kept; sums are formed in `dtype` always.
    device_memory : int, optional
        Bytes of a device's memory that weights and features may take: weights that do not fit
        are copied while others are used.
    expected_inputs : int, optional
        How many inputs are going to be run, where that is known: plans size buffers and choose
        by it. It limits nothing, and changes answers by roundings at most.
    expected_survival : sequence of float, default that of the challenge's images
        The parts of the inputs that are expected to be active before the first layer, the second,
        and so on; the last holds for all layers after. Plans choose by it where inactive inputs may
        leave. No answer depends on it.
    edges_after : int, default 0
        Edges of layers that are planned later, by `NetworkPlan.for_layers`, and kept beside these:
        plans of several parts say so, and memory is left to them.
    profile : bool, default False
        Time every layer by itself, which costs some of the speed.
    devices : str, default ""
        Devices that share the inputs, each with all weights: "all", or numbers separated by
        commas; "" for the current one. See `portable_spdnn.plans.multi_device`.

    Raises
    ------
    InputError
        If an option has no valid value, whatever the backend. Which values of `kernel` a backend
        takes is checked when a plan is made.

    Examples
    --------
    >>> import portable_spdnn as ps
    >>> ps.PlanOptions(dtype="float64", exact_passes="all").exact_passes
    ('merge-neurons', 'merge-inputs', 'fixed-point')
    """

    dtype: npt.DTypeLike = np.float32
    path: str = "auto"
    batch_size: int | None = None
    keep_dead_inputs: bool = False
    exact_passes: Collection[str] = ()  # kept as a tuple, in the passes' own order
    memory: int | None = None
    kernel: str = "auto"
    storage: str = "same"
    device_memory: int | None = None
    devices: str = ""
    profile: bool = False
    expected_inputs: int | None = None
    expected_survival: Sequence[float] = CHALLENGE_SURVIVAL  # kept as a tuple
    edges_after: int = 0  # no keyword: it is for plans that are made of others

    def __post_init__(self) -> None:
        try:
            dtype = None if self.dtype is None else np.dtype(self.dtype)
        except TypeError:
            dtype = None
        if dtype not in (np.float32, np.float64):
            raise InputError(f"dtype is {self.dtype!r}; choose float32 or float64")
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "exact_passes", parse_passes(self.exact_passes))
        if self.path not in PATHS:
            raise InputError(f"path is {self.path!r}; choose one of {', '.join(PATHS)}")
        for name in ("batch_size", "memory", "device_memory", "expected_inputs", "edges_after"):
            if getattr(self, name) is not None:
                least = 0 if name in ("expected_inputs", "edges_after") else 1
                object.__setattr__(self, name, checked_count(name, getattr(self, name), least))
        object.__setattr__(self, "expected_survival", _checked_survival(self.expected_survival))
        if self.storage not in STORAGES:
            raise InputError(f"storage is {self.storage!r}; choose one of {', '.join(STORAGES)}")
        if self.storage != "same" and dtype != np.float32:
            raise InputError(f"storage {self.storage} goes with dtype float32, not {dtype}")
        if not _DEVICES.fullmatch(self.devices):
            raise InputError(
                f"devices is {self.devices!r}; give 'all' or numbers separated by commas: 0,1"
            )

    def backend_specific(self) -> dict[str, Any]:
        """Return the options that only some backends take, where they are not the default."""
        given = ((name, getattr(self, name)) for name in OPTIONAL_PLAN_OPTIONS)
        return {name: value for name, value in given if value != getattr(PlanOptions, name)}

    def check(self, network: Network) -> None:
        """Raise InputError where the options do not fit the network."""
        filling = network.layers_filling_zeros
        if self.path == "spgemm" and filling:
            raise InputError(
                f"path spgemm: layer {filling[0] + 1} turns zeros into nonzeros (a positive bias "
                "under ReLU, or activation(bias) other than 0); sparse features are exact only "
                "where zeros stay zeros; use path spmm or auto"
            )


def _checked_survival(parts: Any) -> tuple[float, ...]:
    """Return numbers from 0 to 1, at least one, as a tuple, or raise InputError."""
    given = tuple(parts) if isinstance(parts, Sequence | np.ndarray) else ()
    if not given or not all(isinstance(part, Real) and 0 <= float(part) <= 1 for part in given):
        raise InputError(
            f"expected_survival is {shown(parts)}; a sequence of parts from 0 to 1 is expected, "
            "such as (1, 0.5, 0.1)"
        )
    return tuple(map(float, given))
