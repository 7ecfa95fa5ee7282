"""What a backend implements to have convolutions, and how arguments come to its one form."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from portable_spdnn.arrays import Array
from portable_spdnn.epilogue import Epilogue
from portable_spdnn.errors import InputError
from portable_spdnn.operations.convolutions.geometry import (
    IMAGE_AXES,
    ConvGeometry,
    Extents,
    Padding,
    checked_image_shape,
    checked_weights,
    conv_geometry,
)
from portable_spdnn.operations.convolutions.handle import ConvHandle, lifted, lowered
from portable_spdnn.operations.handles import Prepared
from portable_spdnn.operations.operands import (
    AnyArray,
    DenseOperand,
    cast,
    check_residual,
    checked_epilogue,
    common_dtype,
    host_array,
    into,
)
from portable_spdnn.operations.optional import absent
from portable_spdnn.sparse_arrays import real_dtype


class ConvHooks:
    """What a backend that names `CONVOLUTIONS` in `optional_operations` implements.

    That is `run_conv`, and `make_conv` to prepare weights. Arguments are checked, of one type and
    form: dense arrays of four dimensions, in any order; weights in host memory; an epilogue whose
    bias has an entry for each output. `interface` has the mathematics.
    """

    memory_space: ClassVar[str]

    def run_conv(
        self,
        x: DenseOperand,
        weights: Array,
        geometry: ConvGeometry,
        epilogue: Epilogue,
        residual: DenseOperand | None,
    ) -> DenseOperand:
        """Return the convolution of images x, finished."""
        raise absent(self, "conv2d")

    def make_conv(
        self, weights: Array, geometry: ConvGeometry, epilogue: Epilogue, batch: int
    ) -> Prepared:
        """Return the function (x, out, residual) -> y; by default weights are not prepared.

        `weights` are in C order, and the function may keep them. `batch` is how many images x is
        going to have, a hint.
        """
        return lambda x, out, residual: into(
            out, self.run_conv(x, weights, geometry, epilogue, residual)
        )

    def tensor_operand(self, name: str, array: AnyArray, dimensions: int) -> AnyArray:
        """Return images or signals, of so many dimensions each, or raise InputError."""
        if self.memory_space == "host" or isinstance(array, list | tuple):
            array = host_array(name, array)
        if array.ndim != dimensions + 2:
            raise InputError(
                f"{name} has {array.ndim} dimension(s); {IMAGE_AXES[dimensions]} is expected"
            )
        real_dtype(array.dtype, name)
        return array

    def convolve(
        self,
        name: str,
        x: AnyArray,
        weights: AnyArray,
        shape: tuple[Extents, Padding, Extents, int],
        epilogue: Epilogue | None,
        residual: AnyArray | None,
    ) -> AnyArray:
        """Bring arguments to `run_conv`'s form; `shape`: stride, padding, dilation, groups."""
        dimensions = 1 if name == "conv1d" else 2
        x, weights = (
            self.tensor_operand(f"{name}: x", x, dimensions),
            checked_weights(name, weights, dimensions),
        )
        geometry = conv_geometry(name, x.shape[1:], weights.shape, *shape)
        if residual is not None:
            residual = self.tensor_operand(f"{name}: residual", residual, dimensions)
        dtype = common_dtype(name, x=x, weights=weights, residual=residual)
        shape_out = geometry.lowered(geometry.output_shape(x.shape[0]))
        added = check_residual(name, residual, shape_out, dtype)
        finish = checked_epilogue(name, epilogue).prepared(name, geometry.outputs, dtype)
        images, added = lifted(cast(x, dtype), dimensions), lifted(added, dimensions)
        kernels = lifted(cast(weights, dtype), dimensions)
        return lowered(self.run_conv(images, kernels, geometry, finish, added), dimensions)

    def prepare_conv(
        self,
        name: str,
        weights: AnyArray,
        input_shape: tuple[int, ...],
        shape: tuple[Extents, Padding, Extents, int],
        epilogue: Epilogue | None,
    ) -> ConvHandle:
        """Bring arguments to `make_conv`'s form; `shape`: stride, padding, dilation, groups."""
        dimensions = 1 if name == "conv1d" else 2
        weights = checked_weights(name, weights, dimensions)
        batch, *image = checked_image_shape(f"{name}: input_shape", input_shape, dimensions)
        geometry = conv_geometry(name, tuple(image), weights.shape, *shape, images="input_shape")
        dtype = common_dtype(name, weights=weights)
        finish = checked_epilogue(name, epilogue).prepared(name, geometry.outputs, dtype)
        kernels = lifted(np.array(weights, dtype, order="C"), dimensions)  # the handle's own
        run = self.make_conv(kernels, geometry, finish, batch)
        return ConvHandle(name, self, geometry, dtype, run)
