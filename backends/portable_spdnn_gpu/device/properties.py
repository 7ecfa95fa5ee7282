"""Rates and sizes of a device that cost estimates read."""

from __future__ import annotations

from dataclasses import dataclass, replace

from portable_spdnn.kernel_model import Limits
from portable_spdnn_gpu.device.interface import Device


@dataclass(frozen=True)
class DeviceProperties:
    """What cost estimates read of a device.

    Attributes
    ----------
    limits : Limits
        The most operations per second, and bytes per second of each level of memory.
    l2_bytes : int
        The size of the second-level cache.
    multiprocessors : int
        How many multiprocessors share the limits.
    """

    limits: Limits
    l2_bytes: int
    multiprocessors: int


def _data_sheet(
    multiprocessors: int, gigahertz: float, cores: int, l2: float, memory: float, l2_mib: int
) -> DeviceProperties:
    cycles = multiprocessors * gigahertz * 1e9
    limits = Limits(
        flops=2 * cores * cycles, l1=128 * cycles, l2=l2 * 1e12, l3=memory * 1e12,
        memory=memory * 1e12,
    )  # fmt: skip
    return DeviceProperties(limits, l2_mib << 20, multiprocessors)


# Where nothing has been measured: V100, T4, A100, H100 and B200, by architecture, from their data
# sheets: multiprocessors x clock x (float32 lanes, 128 bytes of the first level). Of the second
# level, for which the sheets give no bandwidth, these are estimates.
DATA_SHEETS = {
    70: _data_sheet(80, 1.53, 64, 2.2, 0.9, 6),
    75: _data_sheet(40, 1.59, 64, 1.3, 0.32, 4),
    80: _data_sheet(108, 1.41, 64, 4.0, 1.55, 40),
    90: _data_sheet(132, 1.75, 128, 5.5, 3.35, 50),
    100: _data_sheet(148, 1.85, 128, 9.0, 8.0, 126),
}


def device_properties(device: Device, measured: Limits | None = None) -> DeviceProperties:
    """Return what cost estimates read of a device.

    Parameters
    ----------
    device : Device
    measured : Limits, optional
        The limits that were measured on the device. Without them those of the newest data sheet
        that is not newer than the device are taken; all but the memory's are scaled to its
        number of multiprocessors.
    """
    limits = measured
    if limits is None:
        known = [each for each in DATA_SHEETS if each <= device.architecture]
        sheet = DATA_SHEETS[max(known, default=min(DATA_SHEETS))]
        part, whole = device.multiprocessors / sheet.multiprocessors, sheet.limits
        limits = replace(whole, flops=part * whole.flops, l1=part * whole.l1, l2=part * whole.l2)
    return DeviceProperties(limits, device.l2_bytes, device.multiprocessors)
