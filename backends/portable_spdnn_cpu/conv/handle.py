"""Which variant computes a convolution, chosen when its weights are prepared."""

from __future__ import annotations

import math

import numpy as np

from portable_spdnn.arrays import Array
from portable_spdnn.epilogue import Epilogue
from portable_spdnn.operations.convolutions.geometry import ConvGeometry
from portable_spdnn.operations.handles import DescribedCall, Prepared
from portable_spdnn_cpu.conv.dense import LEAST_NONZERO, DenseConv, dense_is_exact, dense_is_faster
from portable_spdnn_cpu.conv.depthwise import plan as depthwise
from portable_spdnn_cpu.conv.depthwise.plan import DepthwiseConv
from portable_spdnn_cpu.conv.pointwise import PointwiseProduct, is_product
from portable_spdnn_cpu.conv.stream import StreamConv, best_stream
from portable_spdnn_cpu.conv.tuning import fastest
from portable_spdnn_cpu.machine.thread_pool import ThreadPool

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
    if is_product(geometry):
        product = PointwiseProduct(workers, weights, geometry, epilogue, trial is not None)
        return DescribedCall(product, product.describe)
    found: StreamConv | DenseConv = best_stream(workers, weights, geometry, epilogue, batch, trial)
    enough = np.count_nonzero(weights) >= LEAST_NONZERO * weights.size
    if trial is not None and enough and dense_is_exact(weights, geometry):
        streamed = found
        dense = DenseConv(workers, weights, geometry, epilogue, lambda: streamed)
        found = fastest([streamed, dense], trial)
    how = "by a model" if trial is None else "the fastest in a trial when it was made"
    return DescribedCall(found, lambda: f"{found.describe()}, {how}.")


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
    if is_product(geometry):
        product = PointwiseProduct(workers, contiguous, geometry, epilogue, tried=False)
        return product(x, None, residual)

    def streamed() -> StreamConv:
        return best_stream(workers, contiguous, geometry, epilogue, x.shape[0], None)

    if dense_is_faster(contiguous, geometry, x.shape[0], workers.threads):
        dense = DenseConv(workers, contiguous, geometry, epilogue, streamed)
        return dense(x, None, residual)
    return streamed()(x, None, residual)
