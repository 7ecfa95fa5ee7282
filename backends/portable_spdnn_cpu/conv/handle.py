"""Which variant computes a convolution, chosen when its weights are prepared."""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np

from portable_spdnn.arrays import Array
from portable_spdnn.epilogue import Epilogue
from portable_spdnn.operations.convolutions.geometry import ConvGeometry
from portable_spdnn.operations.handles import DescribedCall, Prepared
from portable_spdnn_cpu.conv.depthwise import plan as depthwise
from portable_spdnn_cpu.conv.depthwise.plan import DepthwiseConv
from portable_spdnn_cpu.conv.pointwise import (
    DENSE_FROM,
    DenseProduct,
    PointwiseProduct,
    is_product,
)
from portable_spdnn_cpu.conv.stream import StreamConv, best_stream
from portable_spdnn_cpu.conv.tuning import fastest
from portable_spdnn_cpu.machine.thread_pool import ThreadPool

Variant: TypeAlias = StreamConv | PointwiseProduct | DenseProduct
MAX_TRIAL_BYTES = 1 << 28  # of made-up images and results; larger ones are not tried


def prepare(
    workers: ThreadPool, weights: Array, geometry: ConvGeometry, epilogue: Epilogue, batch: int
) -> Prepared:
    """Return the function (x, out, residual) -> y of prepared weights; see `Backend.make_conv`."""
    shapes = geometry.input_shape(batch), geometry.output_shape(batch)
    items = sum(math.prod(map(float, shape)) for shape in shapes)
    trial = None
    if min(map(min, shapes)) > 0 and items * weights.itemsize <= MAX_TRIAL_BYTES:
        trial = np.ones(shapes[0], weights.dtype)
    if depthwise.fits(geometry):
        plane = DepthwiseConv(workers, weights, geometry, epilogue)
        if trial is not None:
            plane(trial, None, None)  # compiles
        return DescribedCall(plane, lambda: f"{plane.describe()}.")
    found: Variant = best_stream(workers, weights, geometry, epilogue, batch, trial)
    if trial is None:
        return DescribedCall(found, lambda: f"{found.describe()}, by a model.")
    if is_product(geometry):
        product = PointwiseProduct(workers, weights, geometry, epilogue)
        choices: list[Variant] = [found, product]
        if np.count_nonzero(weights) > DENSE_FROM * weights.size:
            choices.append(DenseProduct(weights, geometry, epilogue, product))
        found = fastest(choices, trial)
    return DescribedCall(
        found, lambda: f"{found.describe()}, the fastest in a trial when it was made."
    )


def convolve_once(
    workers: ThreadPool,
    x: Array,
    weights: Array,
    geometry: ConvGeometry,
    epilogue: Epilogue,
    residual: Array | None,
) -> Array:
    """Return the convolution of x; see `Backend.run_conv`."""
    contiguous = np.ascontiguousarray(weights)
    if depthwise.fits(geometry):
        return DepthwiseConv(workers, contiguous, geometry, epilogue)(x, None, residual)
    run = best_stream(workers, contiguous, geometry, epilogue, x.shape[0], None)
    return run(x, None, residual)
