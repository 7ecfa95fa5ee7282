"""Sparse deep neural network inference, portable over backends.

>>> import portable_spdnn as ps
>>> network = ps.radixnet(1024, layers=120, seed=0)
>>> result = ps.infer(network, ps.digits_features(1024), backend="auto")
>>> len(result.categories)  # inputs with a positive score, counted from 0
367
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from portable_spdnn.version import __version__ as __version__

# Loaded on first use, so that importing the package stays cheap.
_NAMES = {
    "backend": ("Availability", "Backend"),
    "engine": ("infer",),
    "epilogue": ("Epilogue",),
    "errors": ("BackendUnavailable", "InputError", "NumericalError", "SpdnnError"),
    "features": ("PackedFeatures",),
    "graphchallenge.radixnet": ("radixnet",),
    "io.matrices": ("load_matrix",),
    "layer": ("Layer",),
    "mpi.run": ("infer_distributed",),
    "network": ("Network",),
    "operations.convolutions.handle": ("ConvHandle",),
    "operations.handles": ("LayerHandle", "SpgemmHandle", "SpmmHandle"),
    "operations.heads": ("AttentionHandle",),
    "plans.base": ("NetworkPlan",),
    "plans.options": ("PlanOptions",),
    "plans.planner": ("plan",),
    "plans.result": ("Result",),
    "registry": ("backends", "get_backend"),
    "warm_up": ("compile_kernels",),
    "workloads.images": ("digits_features",),
    "workloads.loading": ("iter_layers", "load_inputs", "load_network", "open_network"),
    "workloads.streamed_network": ("StreamedNetwork",),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}
_MODULES = {"masks": "operations.masks"}
__all__ = [*sorted(_HOME), *_MODULES, "__version__"]

if TYPE_CHECKING:
    from portable_spdnn.backend import Availability as Availability
    from portable_spdnn.backend import Backend as Backend
    from portable_spdnn.engine import infer as infer
    from portable_spdnn.epilogue import Epilogue as Epilogue
    from portable_spdnn.errors import BackendUnavailable as BackendUnavailable
    from portable_spdnn.errors import InputError as InputError
    from portable_spdnn.errors import NumericalError as NumericalError
    from portable_spdnn.errors import SpdnnError as SpdnnError
    from portable_spdnn.features import PackedFeatures as PackedFeatures
    from portable_spdnn.graphchallenge.radixnet import radixnet as radixnet
    from portable_spdnn.io.matrices import load_matrix as load_matrix
    from portable_spdnn.layer import Layer as Layer
    from portable_spdnn.mpi.run import infer_distributed as infer_distributed
    from portable_spdnn.network import Network as Network
    from portable_spdnn.operations import masks as masks
    from portable_spdnn.operations.convolutions.handle import ConvHandle as ConvHandle
    from portable_spdnn.operations.handles import LayerHandle as LayerHandle
    from portable_spdnn.operations.handles import SpgemmHandle as SpgemmHandle
    from portable_spdnn.operations.handles import SpmmHandle as SpmmHandle
    from portable_spdnn.operations.heads import AttentionHandle as AttentionHandle
    from portable_spdnn.plans.base import NetworkPlan as NetworkPlan
    from portable_spdnn.plans.options import PlanOptions as PlanOptions
    from portable_spdnn.plans.planner import plan as plan
    from portable_spdnn.plans.result import Result as Result
    from portable_spdnn.registry import backends as backends
    from portable_spdnn.registry import get_backend as get_backend
    from portable_spdnn.warm_up import compile_kernels as compile_kernels
    from portable_spdnn.workloads.images import digits_features as digits_features
    from portable_spdnn.workloads.loading import iter_layers as iter_layers
    from portable_spdnn.workloads.loading import load_inputs as load_inputs
    from portable_spdnn.workloads.loading import load_network as load_network
    from portable_spdnn.workloads.loading import open_network as open_network
    from portable_spdnn.workloads.streamed_network import StreamedNetwork as StreamedNetwork


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{_MODULES[name]}")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
