"""Compilation with NVRTC, deviceless."""

from __future__ import annotations

from typing import Any

from portable_spdnn.errors import SpdnnError
from portable_spdnn_gpu.compile.catalog import Kernel, headers, kernel_folder


class KernelCompilationError(SpdnnError, RuntimeError):
    """A kernel did not compile, or NVRTC cannot be loaded; the message holds the whole log."""


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
    try:
        from cupy.cuda import nvrtc
    except ImportError as error:
        raise KernelCompilationError(
            f"{kernel.name}: CuPy does not import ({error}); install the extra cuda12 or cuda13"
        ) from error
    folder = kernel_folder()
    source = (folder / kernel.source).read_text()
    included = headers(folder)
    options = (
        f"--gpu-architecture=sm_{architecture}",
        "--std=c++17",
        "--ptxas-options=-v",
        *kernel.options,
    )
    try:
        program = nvrtc.createProgram(
            source,
            kernel.source,
            [header.read_bytes() for header in included],
            [header.name.encode() for header in included],
        )
    except (RuntimeError, OSError) as error:
        raise KernelCompilationError(f"NVRTC cannot be loaded: {error}") from error
    try:
        try:
            nvrtc.compileProgram(program, options)
        except nvrtc.NVRTCError as error:
            raise KernelCompilationError(
                f"{kernel.source} does not compile for sm_{architecture} with "
                f"{' '.join(kernel.options)}: {error}\n{_log(nvrtc, program)}"
            ) from error
        return bytes(nvrtc.getCUBIN(program)), _log(nvrtc, program)
    finally:
        nvrtc.destroyProgram(program)


def compiler_version() -> str:
    """Return the version of NVRTC, such as 13.0.

    Raises
    ------
    KernelCompilationError
        If CuPy or NVRTC cannot be loaded.
    """
    try:
        from cupy.cuda import nvrtc

        return ".".join(map(str, nvrtc.getVersion()))
    except (ImportError, RuntimeError, OSError) as error:
        raise KernelCompilationError(
            f"NVRTC cannot be loaded ({error}); install the extra cuda12 or cuda13"
        ) from error


def _log(nvrtc: Any, program: Any) -> str:
    return str(nvrtc.getProgramLog(program)).rstrip("\0")
