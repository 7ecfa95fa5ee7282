"""The name `cupy`: registered, not yet runnable."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from portable_spdnn.backend import Availability, Backend


class CupyBackend(Backend):
    """CUDA through CuPy. Its kernels are not part of this release, and it says so."""

    name = "cupy"
    execution_space = "cuda"
    memory_space = "device"

    @classmethod
    def availability(cls) -> Availability:
        """Not available: this release has no CUDA kernels."""
        versions = {}
        for distribution in ("cupy-cuda12x", "cupy-cuda13x"):
            try:
                versions[distribution] = version(distribution)
            except PackageNotFoundError:
                continue
        return Availability.no("this release has no CUDA kernels yet", versions)
