"""Inference on any backend, in one call."""

from __future__ import annotations

import os
from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from portable_spdnn.arrays import Progress
from portable_spdnn.backend import Backend
from portable_spdnn.features import FeaturesLike
from portable_spdnn.network import Network
from portable_spdnn.plans.planner import plan
from portable_spdnn.plans.result import Result


def infer(
    network: Network,
    features: FeaturesLike,
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
    checkpoint: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Result:
    """Run a network on features: Y <- activation(Y W + b) within bounds, layer after layer.

    Parameters
    ----------
    network : Network
    features : PackedFeatures, ndarray or scipy.sparse, shape (inputs, neurons)
        A bool array is packed to bits; uint8 of ceil(neurons / 8) columns is taken as bits
        packed by `numpy.packbits`.
    backend : str or Backend, default "auto"
        A registered name, "auto" for what PORTABLE_SPDNN_BACKEND names, else
        the available one of the highest priority; or a backend at hand.
    threads : int, optional
        For a backend given by name.
    dtype : float32 or float64
    path : {"auto", "spmm", "spgemm"}
        Dense or sparse features between layers.
    batch_size : int, optional
        Inputs that go through the network together.
    keep_dead_inputs : bool
        Compute inputs to the end even when all their features are zero.
    exact_passes : str or iterable of str
        Exact rewrites: "merge-neurons", "merge-inputs", "fixed-point", "all"; see
        `portable_spdnn.passes`.
    memory : str or int, optional
        What the process may take, such as "4GiB": layers are then read block by block, inputs
        go in batches that fit, and scores are kept only with a checkpoint. Worth while with a
        network that is not in memory, such as `open_network` gives.
    kernel, storage, devices : str
    profile : bool
        See `PlanOptions`; for backends that take them.
    device_memory : str or int, optional
        What weights and features may take of a device's memory, such as "2GiB".
    checkpoint : path-like, optional
        A folder that keeps finished batches: an interrupted run goes on from the last.
    progress : callable, optional
        Called with (done, total) in units of inputs x layers.

    Returns
    -------
    Result

    Raises
    ------
    InputError
        If features, options or backend name do not fit.
    BackendUnavailable
        If the named backend cannot run here.
    NumericalError
        If features became NaN on the way.

    Examples
    --------
    >>> import numpy as np, portable_spdnn as ps
    >>> network = ps.Network([ps.Layer(np.eye(3), -0.5)] * 4, y_max=32)
    >>> result = ps.infer(network, np.diag([9.0, 1.0, 3.0]), backend="scipy")
    >>> result.categories.tolist()
    [0, 2]
    >>> result.scores[0].tolist()
    [7.0, 0.0, 0.0]

    References
    ----------
    Kepner, Alford, Gadepally, Jones, Milechin, Robinett, Samsi, "Sparse Deep Neural Network
    Graph Challenge", HPEC 2019.
    """
    shape: tuple[int, ...] = getattr(features, "shape", ())
    made = plan(
        network,
        backend,
        threads=threads,
        dtype=dtype,
        path=path,
        batch_size=batch_size,
        keep_dead_inputs=keep_dead_inputs,
        exact_passes=exact_passes,
        memory=memory,
        kernel=kernel,
        storage=storage,
        device_memory=device_memory,
        devices=devices,
        profile=profile,
        # Where it is no table of numbers, validation says so.
        expected_inputs=shape[0] if len(shape) == 2 else None,
    )
    return made.run(features, progress, checkpoint)
