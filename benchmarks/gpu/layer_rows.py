"""Single layers in every variant, each beside the limit that binds it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
from agreement import assert_agree
from budget import Budget

from portable_spdnn.kernel_model import KernelModel, Limits, speed, speed_text
from portable_spdnn.layer import Layer
from portable_spdnn.network import Network
from portable_spdnn.sparse_arrays import common_value
from portable_spdnn_gpu.compile.precision import Precision
from portable_spdnn_gpu.cupy_backend import CupyBackend
from portable_spdnn_gpu.device.epilogue import DeviceEpilogue
from portable_spdnn_gpu.spmm.costs import LayerSize, variant_cost
from portable_spdnn_gpu.spmm.launch import PreparedSpmm
from portable_spdnn_gpu.spmm.output_rows import by_output
from portable_spdnn_gpu.spmm.packing import VARIANTS, pack

Record = dict[str, Any]
FEATURE_BYTES = 2 << 30  # that one layer's features take, or as many as LEAST_INPUTS take
LEAST_INPUTS = 10_000
CHECKED_INPUTS = 32
CALLS = 8  # between two events


def variant_models(A: sp.csr_array, inputs: int, l2_bytes: int) -> dict[str, KernelModel]:
    """Return the model of each variant for so many inputs, by what it loads of the weights A."""
    constant = common_value(A.data) is not None
    size = LayerSize(A.nnz, *A.shape, inputs, constant=constant)
    precision = Precision(A.dtype)
    loads = {one: pack(A, one, precision).loads for one in ("clustered", "staged")}
    loads["csr"] = A.nnz
    return {one: variant_cost(one, size, l2_bytes, loads[one]) for one in VARIANTS}


def timed_inputs(neurons: int, inputs: int) -> int:
    """Return how many random inputs a layer is timed with."""
    return min(inputs, max(LEAST_INPUTS, FEATURE_BYTES // (4 * neurons)))


def second_layer(network: Network) -> Layer:
    """Return the layer that stands for those of a network: the first one may be special."""
    return network.layers[min(1, len(network) - 1)]


def layer_rows(
    backend: CupyBackend,
    network: Network,
    inputs: int,
    limits: Limits | None,
    budget: Budget,
) -> list[Record]:
    """Time the second layer of a network on inputs that are all active, and a pruned one beside it.

    The pruned layer has as many entries in each row, in random columns and with values of their
    own: rows that share columns, but not in sixteens.

    Parameters
    ----------
    backend : CupyBackend
    network : Network
    inputs : int
        How many inputs it is timed with.
    limits : Limits or None
        The limits of the device; None where they could not be measured.
    budget : Budget

    Returns
    -------
    list of dict
        One for each variant of each layer; `weights` is "challenge" or "pruned", `state` is "done",
        "failed" (with `error`) or "skipped".
    """
    layer = second_layer(network)
    A = by_output(layer.csr())
    kinds = {"challenge": A, "pruned": pruned_like(A)}
    rows = []
    for kind, weights in kinds.items():
        for row in _rows(backend, weights, layer, network.y_max, inputs, limits, budget):
            rows.append({"weights": kind, **row})
    return rows


def pruned_like(A: sp.csr_array) -> sp.csr_array:
    """Return a matrix with as many entries in each row, in random columns, of random values."""
    rng = np.random.default_rng(A.nnz)
    lengths, columns = np.diff(A.indptr), []
    for length in lengths:
        columns.append(np.sort(rng.choice(A.shape[1], length, replace=False)))
    data = rng.normal(0, 1 / 16, A.nnz).astype(A.dtype)
    indices = np.concatenate([np.empty(0, np.int64), *columns]).astype(A.indices.dtype)
    return sp.csr_array((data, indices, A.indptr), shape=A.shape)


def _rows(
    backend: CupyBackend,
    A: sp.csr_array,
    layer: Layer,
    y_max: float | None,
    inputs: int,
    limits: Limits | None,
    budget: Budget,
) -> list[Record]:
    device = backend.cuda
    rng = np.random.default_rng(A.shape[1])
    Y = rng.random((A.shape[1], inputs), dtype=np.float32) * np.float32(2)
    B = device.upload(Y)
    epilogue = DeviceEpilogue(device, layer.epilogue(y_max), A.shape[0], np.float32)
    chosen = np.unique(np.linspace(0, inputs - 1, CHECKED_INPUTS).astype(np.int64))
    models = variant_models(A, inputs, device.l2_bytes)
    sums = A.astype(np.float64) @ Y[:, chosen].astype(np.float64) + layer.bias[:, None]
    expected = np.clip(sums, 0, y_max).T

    def timed(variant: str) -> Record:
        product = PreparedSpmm(device, A, variant)
        C = product.run(B, epilogue)
        found = backend.download(backend.take_inputs(C.T, chosen))
        assert_agree(found, expected)

        def run() -> float:
            start = device.mark()
            for _ in range(CALLS):
                product.run(B, epilogue, out=C)
            return device.seconds(start, device.mark()) / CALLS

        times = budget.runs(run)
        least, done = min(times), float(A.nnz) * inputs
        record: Record = {
            "state": "done", "kernels": product.describe(), "seconds": times,
            "least_seconds": least, "executed_edge_rate": done / least, "fraction_of_limit": None,
        }  # fmt: skip
        if limits is not None:
            reached = speed(models[variant], limits, done, least)
            record |= {
                "fraction_of_limit": reached.fraction,
                "bound_by": reached.binding,
                "flops": reached.flops,
                "bandwidth": reached.bandwidth,
                "text": speed_text(reached, limits),
            }
        return record

    about = {"neurons": A.shape[1], "live_inputs": inputs, "edges": A.nnz}
    return [{**about, "design": one, **attempt(timed, one, budget)} for one in VARIANTS]


def attempt(
    work: Callable[[str], Record], argument: str, budget: Budget, needed: float = 0.0
) -> Record:
    """Do one part of the whole: what goes wrong is recorded, and the other parts go on.

    Parameters
    ----------
    work : callable
        The function of the argument that returns a record.
    argument : str
    budget : Budget
    needed : float
        The seconds that must be left for it, as far as is known.
    """
    left = budget.left()
    if left <= needed:
        reason = f"{needed:.0f} s needed, {max(left, 0):.0f} s left"
        return {"state": "skipped", "reason": reason}
    try:
        return work(argument)
    except Exception as error:  # noqa: BLE001 - recorded; one failure must not lose the rest
        return {"state": "failed", "error": f"{type(error).__name__}: {error}"}
