"""What ptxas says of kernels, and how many blocks of one fit a multiprocessor by that."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace

from portable_spdnn_gpu.compile.catalog import Kernel
from portable_spdnn_gpu.compile.nvrtc import KernelCompilationError, compile_source


@dataclass(frozen=True)
class ResourceReport:
    """What ptxas reports of one kernel.

    Attributes
    ----------
    registers : int
        The registers of each thread.
    spill_stores, spill_loads, stack_frame : int
        The bytes of local memory.
    static_shared : int
        The bytes of shared memory that the kernel declares.
    """

    registers: int
    spill_stores: int
    spill_loads: int
    stack_frame: int
    static_shared: int


@dataclass(frozen=True)
class Multiprocessor:
    """What the blocks on one multiprocessor share: threads, blocks, shared memory, registers."""

    threads: int
    blocks: int
    shared: int  # bytes
    reserved_shared: int  # bytes that the driver takes for each block
    shared_granularity: int
    registers: int = 65536


# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
MULTIPROCESSORS = {
    70: Multiprocessor(2048, 32, 96 * 1024, 0, 256),
    75: Multiprocessor(1024, 16, 64 * 1024, 0, 256),
    80: Multiprocessor(2048, 32, 164 * 1024, 1024, 128),
    90: Multiprocessor(2048, 32, 228 * 1024, 1024, 128),
    100: Multiprocessor(2048, 32, 228 * 1024, 1024, 128),
}
REGISTER_GRANULARITY = 256  # registers are given to warps in multiples of it


def compile_anew(kernel: Kernel, architecture: int) -> tuple[bytes, str]:
    """Compile a kernel, and return its machine code and the log of ptxas.

    Where there is a driver, NVRTC keeps what it has compiled and gives no log with it; a macro that
    no source reads and no run before has defined makes it compile.
    """
    unread = ("COMPILED_AT", str(time.time_ns()))
    return compile_source(replace(kernel, defines=(*kernel.defines, unread)), architecture)


def resources(log: str) -> dict[str, ResourceReport]:
    """Return what the log of ptxas reports of each kernel, by its name.

    Raises
    ------
    KernelCompilationError
        If the log has another form than is known.
    """
    reports = {}
    parts = re.split(r"Compiling entry function '(\w+)' for 'sm_\w+'", log)
    for name, text in zip(parts[1::2], parts[2::2], strict=True):
        frame = re.search(
            r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", text
        )
        registers = re.search(r"Used (\d+) registers", text)
        if frame is None or registers is None:
            raise KernelCompilationError(f"{name}: ptxas reports in a form not known here:\n{text}")
        shared = re.search(r"(\d+) bytes smem", text)
        stack, stores, loads = (int(number) for number in frame.groups())
        reports[name] = ResourceReport(
            int(registers[1]), stores, loads, stack, int(shared[1]) if shared else 0
        )
    return reports


def resident_blocks(kernel: Kernel, report: ResourceReport, architecture: int) -> int:
    """Return how many blocks of a kernel are resident on one multiprocessor at a time."""
    limits = MULTIPROCESSORS[architecture]
    warps = kernel.threads // 32
    portion = REGISTER_GRANULARITY
    warp_registers = -(-report.registers * 32 // portion) * portion
    blocks = min(limits.blocks, limits.threads // kernel.threads)
    blocks = min(blocks, limits.registers // warp_registers // warps)
    shared = report.static_shared + kernel.dynamic_shared + limits.reserved_shared
    shared = -(-shared // limits.shared_granularity) * limits.shared_granularity
    return min(blocks, limits.shared // shared) if shared else blocks


def occupancy(kernel: Kernel, report: ResourceReport, architecture: int) -> float:
    """Return the part of a multiprocessor's threads that resident blocks have."""
    threads = resident_blocks(kernel, report, architecture) * kernel.threads
    return threads / MULTIPROCESSORS[architecture].threads
