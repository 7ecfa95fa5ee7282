"""Compilation with NVRTC, deviceless."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

from portable_spdnn.errors import SpdnnError
from portable_spdnn_gpu.compile.catalog import Kernel


class KernelCompilationError(SpdnnError, RuntimeError):
    """A kernel did not compile, or NVRTC cannot be loaded; the message holds the whole log."""


def kernel_folder() -> Path:
    """Return the folder below which the kernels' sources lie: the package's own."""
    return Path(str(resources.files("portable_spdnn_gpu")))


def headers(folder: Path) -> list[Path]:
    """Return the headers that sources below `folder` include by their names alone."""
    return sorted(folder.glob("*/*.cuh"))


def compile_source(kernel: Kernel, architecture: int) -> tuple[bytes, str]:
    """Compile the file of a kernel to machine code.

    Parameters
    ----------
    kernel : Kernel
    architecture : int
        The compute capability times ten: 90 for sm_90.

    Returns
    -------
    cubin : bytes
        The machine code.
    log : str
        The log of the compiler, with the report of ptxas.

    Raises
    ------
    KernelCompilationError
        With the compiler's log.
    """
    nvrtc = _library()
    folder = kernel_folder()
    source = (folder / kernel.source).read_text()
    included = headers(folder)
    options = (
        f"--gpu-architecture=sm_{architecture}",
        "--std=c++17",
        "--ptxas-options=-v",
        *kernel.options,
    )
    program = nvrtc.createProgram(
        source,
        kernel.source,
        [header.read_bytes() for header in included],
        [header.name.encode() for header in included],
    )
    try:
        try:
            nvrtc.compileProgram(program, options)
        except nvrtc.NVRTCError as error:
            raise KernelCompilationError(
                f"{kernel.source} does not compile for sm_{architecture} with "
                f"{' '.join(kernel.options)}: {error}\n{_log(nvrtc, program)}"
            ) from error
        # CuPy takes the last byte for the end of a text and leaves it out; in cubins it is 0.
        return bytes(nvrtc.getCUBIN(program)) + b"\0", _log(nvrtc, program)
    finally:
        nvrtc.destroyProgram(program)


def compiler_version() -> str:
    """Return the version of NVRTC, such as 13.0.

    Raises
    ------
    KernelCompilationError
        If CuPy or NVRTC cannot be loaded.
    """
    return ".".join(map(str, _library().getVersion()))


def _library() -> Any:
    try:
        from cupy.cuda import nvrtc

        nvrtc.getVersion()  # CuPy loads it when it is first called
    except (ImportError, RuntimeError, OSError) as error:
        raise KernelCompilationError(
            f"NVRTC cannot be loaded ({error}); install the extra cuda12 or cuda13"
        ) from error
    return nvrtc


def _log(nvrtc: Any, program: Any) -> str:
    return str(nvrtc.getProgramLog(program)).rstrip("\0")
