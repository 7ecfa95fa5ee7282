"""The cupy backend on the emulated device: the same adapter, launch code and kernels."""

from __future__ import annotations

import threading
from pathlib import Path

from cuda_emulation.emulated_device import EmulatedDevice, compiler
from kernel_catalog import catalog

from portable_spdnn.backend import Availability
from portable_spdnn_gpu.cupy_backend import CupyBackend


class EmulatedCupyBackend(CupyBackend):
    """CupyBackend without a GPU, slow; as on a machine with three of them."""

    tunes = False  # what it would measure means nothing

    @classmethod
    def availability(cls) -> Availability:
        command = compiler()
        if command is None:
            return Availability.no("no C++ compiler (g++, clang++)")
        return Availability.yes(EmulatedDevice.description, {"compiler": command})

    def open_device(self, number: int | None) -> EmulatedDevice:
        return EmulatedDevice(cache_folder(), number=number)

    def device_numbers(self) -> tuple[int, ...]:
        return (0, 1, 2)


def build_ahead() -> None:
    """Start to compile all kernels for the emulation, beside the tests that come first."""
    device = EmulatedDevice(cache_folder())
    # A kernel that does not compile fails in the test that launches it.
    builder = threading.Thread(
        target=lambda: [device.build(kernel) for kernel in catalog(device.architecture)],
        name="build-ahead", daemon=True,
    )  # fmt: skip
    builder.start()


def cache_folder() -> Path:
    """Return where compiled kernels stay between runs; files are named by their content."""
    return Path(__file__).resolve().parents[2] / ".pytest_cache" / "cuda_emulation"
