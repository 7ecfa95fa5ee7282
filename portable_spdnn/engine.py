"""Inference on any backend, in one call."""

from __future__ import annotations

import os
from typing import Unpack

from portable_spdnn.arrays import Progress
from portable_spdnn.backend import Backend
from portable_spdnn.features import FeaturesLike
from portable_spdnn.network import Network
from portable_spdnn.plans.options import PlanKeywords
from portable_spdnn.plans.planner import plan
from portable_spdnn.plans.result import Result


def infer(
    network: Network,
    features: FeaturesLike,
    backend: str | Backend = "auto",
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    threads: int | None = None,
    **options: Unpack[PlanKeywords],
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
    checkpoint : path-like, optional
        A folder that keeps finished batches: an interrupted run goes on from the last.
    progress : callable, optional
        Called with (done, total) in units of inputs x layers.
    threads : int, optional
        For a backend given by name.
    **options
        Those of `portable_spdnn.plan`, such as ``dtype="float64"``,
        ``exact_passes="all"`` or ``memory="4GiB"``; `PlanOptions` describes them.

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
    # Where it is no table of numbers, validation says so.
    expected = shape[0] if len(shape) == 2 else None
    options.setdefault("expected_inputs", expected)
    made = plan(network, backend, threads=threads, **options)
    return made.run(features, progress, checkpoint)
