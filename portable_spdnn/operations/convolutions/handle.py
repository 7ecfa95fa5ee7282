"""Convolutions whose weights are prepared once and used many times."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import numpy as np

from portable_spdnn.errors import InputError
from portable_spdnn.operations.convolutions.geometry import ConvGeometry, channels_last_hint
from portable_spdnn.operations.handles import DescribedCall, Prepared
from portable_spdnn.operations.operands import (
    AnyArray,
    DenseLike,
    DType,
    cast_to_prepared,
    check_out,
    check_residual,
)

if TYPE_CHECKING:
    from portable_spdnn.operations.convolutions.hooks import ConvHooks


class ConvHandle:
    """A convolution with prepared weights, for any number of images; see `Backend.conv2d_handle`.

    Attributes
    ----------
    geometry : ConvGeometry
    dtype : numpy dtype
        Of the weights, and of every result.

    Examples
    --------
    >>> import numpy as np, portable_spdnn as ps
    >>> edges = np.array([[[[1.0, 0.0, -1.0]]]])
    >>> handle = ps.get_backend("scipy").conv2d_handle(edges, (1, 1, 1, 5))
    >>> handle.apply(np.array([[[[1.0, 2.0, 4.0, 8.0, 16.0]]]])).tolist()
    [[[[-3.0, -6.0, -12.0]]]]
    """

    def __init__(
        self, name: str, backend: ConvHooks, geometry: ConvGeometry, dtype: DType, run: Prepared
    ) -> None:
        self.geometry, self.dtype = geometry, dtype
        self._name, self._backend, self._prepared = name, backend, run
        self._run = run.run if isinstance(run, DescribedCall) else run
        self._image, self._result = geometry.input_shape(1)[1:], geometry.output_shape(1)[1:]
        # What `_fit` looks at are arrays of NumPy, and images.
        self._may_fit = backend.memory_space == "host" and geometry.dimensions == 2

    def __repr__(self) -> str:
        image = " x ".join(map(str, self.geometry.lowered(self.geometry.input_shape(1))[1:]))
        return f"<ConvHandle of {self._name}, {self.dtype} images of {image}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a handle holds what only its process has; pickle the weights instead")

    def apply(
        self, x: DenseLike, out: AnyArray | None = None, residual: DenseLike | None = None
    ) -> AnyArray:
        """Return the convolution of `x`, finished by the handle's epilogue.

        Parameters
        ----------
        x : dense, shape (batch, channels, height, width), or (batch, channels, length)
            Of the shape that the handle was made for, but for the batch. Of a type that the
            weights' holds: float32 or narrower where they are float32.
        out : dense, of the result's shape, optional
            Takes the result: of the weights' type, in C order. Reused, it saves the pages of a
            new array.
        residual : dense, of the result's shape, optional
            Added before the activation; of a type that the weights' holds.

        Raises
        ------
        InputError
            If an argument does not fit in shape, type or order.
        """
        if self._may_fit and self._fit(x, out, residual):
            result = self._run(x, out, residual)
            return result if out is None else out
        name, backend, geometry = self._name, self._backend, self.geometry
        dimensions = geometry.dimensions
        given = backend.tensor_operand(f"{name}: x", x, dimensions)
        batch = given.shape[0]
        image = geometry.lowered(geometry.input_shape(batch))[1:]
        if given.shape[1:] != image:
            found = given.shape[1:]
            turned = (found[-1], *found[:-1]) == image
            hint = channels_last_hint(found, image[0]) if turned else ""
            raise InputError(
                f"{name}: x has shape {given.shape}; the handle was made for (batch, "
                f"{', '.join(map(str, image))}){hint}"
            )
        images = cast_to_prepared(given, f"{name}: x", self.dtype)
        shape = geometry.lowered(geometry.output_shape(batch))
        added: AnyArray = residual
        if residual is not None:
            added = backend.tensor_operand(f"{name}: residual", residual, dimensions)
        added = check_residual(name, added, shape, self.dtype)
        check_out(name, out, shape, self.dtype, images, added)
        result = self._run(*(lifted(array, dimensions) for array in (images, out, added)))
        return lowered(result, dimensions) if out is None else out

    def _fit(self, x: AnyArray, out: AnyArray, residual: AnyArray) -> bool:
        """Whether all are arrays of NumPy that need no conversion, and fit.

        Most do, and to ask once takes a sixth of the time of the checks that tell what is wrong.
        """
        dtype = self.dtype
        if type(x) is not np.ndarray or x.dtype != dtype or x.shape[1:] != self._image:
            return False
        shape = len(x), *self._result
        if residual is not None and not (
            type(residual) is np.ndarray and residual.dtype == dtype and residual.shape == shape
        ):
            return False
        return out is None or (
            type(out) is np.ndarray
            and out.dtype == dtype
            and out.shape == shape
            and out.flags.carray
            and not np.may_share_memory(out, x)
            and (residual is None or not np.may_share_memory(out, residual))
        )

    def describe(self) -> str:
        """Return what was chosen when the handle was made, and why, for people."""
        describe = getattr(self._prepared, "describe", None)
        return "nothing was prepared" if describe is None else str(describe())


def lifted(array: AnyArray, dimensions: int) -> AnyArray:
    """Return signals as images one row high, without a copy; images, and None, as they are."""
    return array if array is None or dimensions == 2 else array[:, :, None]


def lowered(array: AnyArray, dimensions: int) -> AnyArray:
    """Return what `lifted` was given."""
    return array if dimensions == 2 else array[:, :, 0]
