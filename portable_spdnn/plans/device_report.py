"""Time and memory of a device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class DeviceReport:
    """What a device did for some inputs.

    Attributes
    ----------
    kernel_seconds : float
        From the first to the last kernel of the layers, waits between them included.
    copy_seconds : float
        Features to the device, and brought to its form; numbers of the active inputs, and their
        features, back. Comparisons of inputs for exact passes count here.
    weight_copy_seconds : float
        Weights to the device while others were used; 0 where all were there.
    exposed_copy_seconds : float
        Of these, what kernels had to wait for.
    gap_seconds : float or None
        Of `kernel_seconds`, what no kernel ran in; None where launches were not timed one by one.
    peak_memory : int
        Bytes that arrays took of the device's memory, at most at a time: the plan's own, and those
        of others that were held meanwhile.
    """

    kernel_seconds: float
    copy_seconds: float
    weight_copy_seconds: float = 0.0
    exposed_copy_seconds: float = 0.0
    gap_seconds: float | None = None
    peak_memory: int = 0

    @property
    def hidden_copies(self) -> float | None:
        """Part of the copying of weights that no kernel waited for; None where none was copied."""
        if not self.weight_copy_seconds:
            return None
        return 1 - min(self.exposed_copy_seconds / self.weight_copy_seconds, 1.0)


def merged(reports: Iterable[DeviceReport | None]) -> DeviceReport | None:
    """Add up the reports of batches; None where one is missing, or there are none.

    Devices that work side by side add their seconds up, and the largest memory counts.
    """
    known: list[DeviceReport] = []
    for report in reports:
        if report is None:
            return None
        known.append(report)
    if not known:
        return None
    gaps = [report.gap_seconds for report in known if report.gap_seconds is not None]
    return DeviceReport(
        sum(report.kernel_seconds for report in known),
        sum(report.copy_seconds for report in known),
        sum(report.weight_copy_seconds for report in known),
        sum(report.exposed_copy_seconds for report in known),
        sum(gaps) if len(gaps) == len(known) else None,
        max(report.peak_memory for report in known),
    )
