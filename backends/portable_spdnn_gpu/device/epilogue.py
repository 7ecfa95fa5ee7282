"""Epilogues as kernels take them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from portable_spdnn.epilogue import ACTIVATIONS, Epilogue, cast_bounds
from portable_spdnn_gpu.compile.catalog import ANY_EPILOGUE, BOUNDED, NO_EPILOGUE
from portable_spdnn_gpu.device.interface import Argument, Device, DeviceArray


class DeviceEpilogue:
    """What follows the sums of a product, with the bias in device memory.

    Parameters
    ----------
    device : Device
    epilogue : Epilogue
        Its bias is one number, or one for each row of the product.
    rows : int
        Rows of the product: of a layer its outputs.
    dtype : numpy dtype
        The type of sums.
    """

    def __init__(self, device: Device, epilogue: Epilogue, rows: int, dtype: npt.DTypeLike) -> None:
        self.epilogue = epilogue
        bias = np.zeros(max(rows, 1), dtype)  # some memory, though there be no rows
        if epilogue.bias is not None:
            bias[:rows] = epilogue.bias
        self.bias = device.upload(bias)
        bounds = epilogue.interval or epilogue.bounds
        self.scalars: list[np.generic] = list(cast_bounds(bounds, dtype))

    def kind(self, adds: bool = False, marks: bool = False) -> int:
        """Return what kernels are compiled for; see `catalog.ANY_EPILOGUE`.

        Parameters
        ----------
        adds : bool
            Whether a residual is added.
        marks : bool
            Whether active inputs are marked, which kernels without an epilogue do not do.
        """
        if adds or self.epilogue.interval is None:
            return ANY_EPILOGUE + ACTIVATIONS.index(self.epilogue.activation)
        return NO_EPILOGUE if self.epilogue.is_identity and not marks else BOUNDED

    def arguments(self, residual: DeviceArray | None, stand_in: DeviceArray) -> list[Argument]:
        """Return the last arguments of a product.

        Parameters
        ----------
        residual : device array in the layout of the result, or None
        stand_in : device array of the stored type
            Takes the place of a residual that is not there; it is not read.
        """
        adds = np.int32(residual is not None)
        return [self.bias, *self.scalars, adds, stand_in if residual is None else residual]
