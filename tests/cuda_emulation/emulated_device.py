"""A CUDA device on the CPU, which launch code cannot tell from a real one."""

from __future__ import annotations

import ctypes
import gc
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from cuda_emulation.emulated_streams import EmulatedEvent, EmulatedStream
from kernel_catalog import SHARED_LIMITS

from portable_spdnn_gpu.compile.catalog import Kernel
from portable_spdnn_gpu.compile.nvrtc import headers, kernel_folder
from portable_spdnn_gpu.device.interface import LaunchError, check_grid, check_home

HERE = Path(__file__).resolve().parent
HEADER = HERE / "cuda_emulation.hpp"
KERNELS = re.compile(r'extern "C" __global__ void\s+(?:__launch_bounds__\([\w, ]+\)\s*)?(\w+)\s*\(')
GUARD = 256  # bytes before and after each array, which no kernel may change
POISON = 0xFF  # NaN as a float, -1 as a signed integer
# The memory of the emulated device, by address: other libraries' arrays may lie in it.
ALLOCATED: weakref.WeakValueDictionary[int, np.ndarray] = weakref.WeakValueDictionary()
# A compiled library runs one launch at a time: the block that it runs is a global of it.
_LAUNCHING = threading.Lock()
_thread = threading.local()


def current_device() -> int:
    """Return the number of the calling thread's current device, as CUDA has one for each."""
    return getattr(_thread, "number", 0)


def compiler() -> str | None:
    """Return the C++ compiler, or None."""
    return shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")


def _digest(text: str, options: list[str], read: list[Path]) -> str:
    """Return a key of a compilation: of its text, its options, and the files that it reads."""
    parts = [text, *options, *(path.read_text() for path in read)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def _compile(source: str, options: list[str], text: str, target: Path) -> None:
    """Compile a text, of `source`; the target is there whole or not at all."""
    command = compiler()
    if command is None:
        raise LaunchError("no C++ compiler: install g++ or set CXX")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        unit, made = Path(scratch) / "unit.cpp", Path(scratch) / "made"
        unit.write_text(text)
        done = subprocess.run(
            [command, *options, "-o", str(made), str(unit)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise LaunchError(f"{source} does not compile:\n{done.stderr}")
        made.replace(target)


class EmulatedArray:
    """An array that NumPy cannot read by accident: the device's memory is not the host's.

    It lives on the device that is current in the thread that makes it.
    """

    __array_ufunc__ = None

    def __init__(self, memory: np.ndarray, values: np.ndarray) -> None:
        self.memory, self.values, self.home = memory, values, current_device()
        self.shape, self.dtype, self.flags = values.shape, values.dtype, values.flags
        self.ndim, self.size, self.nbytes = values.ndim, values.size, values.nbytes

    def __array__(self, *arguments: Any, **options: Any) -> np.ndarray:
        raise TypeError("implicit copy from the device; download it")

    @property
    def T(self) -> EmulatedArray:  # noqa: N802 - NumPy's name
        return self._view(self.values.T)

    def astype(self, dtype: Any) -> EmulatedArray:
        return allocate(self.values.astype(dtype, order="K"))

    def reshape(self, *shape: Any) -> EmulatedArray:
        view = self.values.reshape(*shape)
        assert np.may_share_memory(view, self.values)
        return self._view(view)

    def __getitem__(self, part: slice) -> EmulatedArray:
        return self._view(self.values[part])

    def _view(self, values: np.ndarray) -> EmulatedArray:
        view = EmulatedArray(self.memory, values)
        view.home = self.home
        return view

    def guards_are_whole(self) -> bool:
        return bool(
            (self.memory[:GUARD] == POISON).all() and (self.memory[-GUARD:] == POISON).all()
        )


def allocate(values: np.ndarray) -> EmulatedArray:
    """Return a guarded copy, in Fortran order where that is the order of `values`."""
    order = "F" if values.flags.f_contiguous and not values.flags.c_contiguous else "C"
    memory = np.full(values.nbytes + 2 * GUARD, POISON, np.uint8)
    inner = memory[GUARD : GUARD + values.nbytes].view(values.dtype)
    inner = inner.reshape(values.shape, order=order)
    inner[...] = values
    ALLOCATED[memory.ctypes.data] = memory
    return EmulatedArray(memory, inner)


class EmulatedRecording:
    """Launches that wait to be replayed."""

    def __init__(self, launches: list[Callable[[], None]]) -> None:
        self.launches = launches

    def replay(self) -> None:
        for launch in self.launches:
            launch()


class EmulatedDevice:
    """The interface of `portable_spdnn_gpu.device.interface.Device` on fibers.

    Parameters
    ----------
    folder : Path
        Where compiled kernels are kept.
    falling : bool
        Run lanes and warps from the last to the first.
    sanitize : bool
        Compile with the address and undefined-behaviour sanitizers; the process must have
        loaded their runtime before.
    sources : Path, optional
        Folder of the kernels. Default: the backend's.
    number : int, optional
        Default: that of the calling thread's current device. Devices of one number are one.
    copies_late, launches_late : bool
        Do the work of other streams than the first, or that of the first, as late as events and
        the host's waits allow; else early.
    """

    description = "emulated CUDA device"
    architecture = 90
    multiprocessors = 3
    shared_limit = SHARED_LIMITS[90]
    l2_bytes = 1 << 18
    memory = 128 << 20

    def __init__(
        self,
        folder: Path,
        falling: bool = False,
        sanitize: bool = False,
        sources: Path | None = None,
        number: int | None = None,
        copies_late: bool = True,
        launches_late: bool = False,
    ) -> None:
        self.number = current_device() if number is None else number
        self.folder, self.falling, self.sanitize = folder, falling, sanitize
        self.sources = sources or kernel_folder()
        self.launches: list[str] = []
        self._functions: dict[Kernel, tuple[Any, list[str]]] = {}
        self._asked_for: dict[Kernel, int] = {}
        self._recorded: list[Callable[[], None]] | None = None
        # Three orders find what waits are missing: the copies of other streams late, the launches
        # late, or both, so that the host is ahead of either.
        self.copies_late = copies_late
        self._main = EmulatedStream(launches_late)
        self._thread = threading.local()  # each has a current stream of its own, as in CuPy
        # By address; tests count what has not been released.
        self.pinned_memory: weakref.WeakValueDictionary[int, np.ndarray]
        self.pinned_memory = weakref.WeakValueDictionary()
        self._taken = self._peak = 0

    @property
    def _current(self) -> EmulatedStream:
        return getattr(self._thread, "stream", self._main)

    @contextmanager
    def bound(self) -> Iterator[None]:
        before = current_device()
        _thread.number = self.number
        try:
            yield
        finally:
            _thread.number = before

    def owns(self, array: Any) -> bool:
        return isinstance(array, EmulatedArray)

    def adopt(self, array: Any) -> EmulatedArray:
        interface = array.__cuda_array_interface__
        shape, dtype = interface["shape"], np.dtype(interface["typestr"])
        address, strides = interface["data"][0], interface.get("strides")
        if 0 in shape:
            return allocate(np.empty(shape, dtype))
        for start, memory in ALLOCATED.items():
            if start <= address < start + memory.nbytes:
                values = np.ndarray(shape, dtype, memory, address - start, strides)
                return EmulatedArray(memory, values)
        raise ValueError(f"address {address:#x} is not in the device's memory")

    def empty(self, shape: tuple[int, ...], dtype: Any) -> EmulatedArray:
        self._not_recording("empty")
        array = allocate(np.empty(shape, dtype))
        array.memory[:] = POISON
        return self._count(array)

    def upload(self, array: np.ndarray) -> EmulatedArray:
        self._not_recording("upload")
        return self._count(allocate(np.asarray(array)))

    def download(self, array: EmulatedArray) -> np.ndarray:
        self._not_recording("download")
        self._current.drain()
        return array.values.copy(order="K")

    def contiguous(self, array: EmulatedArray) -> EmulatedArray:
        if array.flags.c_contiguous or array.flags.f_contiguous:
            return array
        return allocate(np.ascontiguousarray(array.values))  # of an adopted array alone

    def overlaps(self, one: EmulatedArray, other: EmulatedArray) -> bool:
        return np.may_share_memory(one.values, other.values)

    def synchronize(self, event: EmulatedEvent | None = None) -> None:
        self._not_recording("synchronize")
        if event is None:
            self._current.drain()
        else:
            event.happened()

    def resident_blocks(self, kernel: Kernel) -> int:
        if kernel not in self._functions:
            self._load(kernel)
        return 2 * self.multiprocessors

    def capture(self, work: Callable[[], None]) -> EmulatedRecording:
        self._recorded = recorded = []
        try:
            work()
        finally:
            self._recorded = None
        return EmulatedRecording(recorded)

    def _not_recording(self, call: str) -> None:
        if self._recorded is not None:
            raise LaunchError(f"{call} within a capture")

    def view(
        self, memory: EmulatedArray, offset: int, shape: tuple[int, ...], dtype: Any
    ) -> EmulatedArray:
        assert memory.dtype == np.uint8
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        assert offset % 16 == 0 or np.dtype(dtype) == np.uint8  # bytes may be a part of a copy
        assert 0 <= offset <= offset + size <= memory.nbytes
        part = memory.values.ravel()[offset : offset + size].view(dtype).reshape(shape)
        return memory._view(part)

    def pinned(self, nbytes: int) -> np.ndarray:
        self._not_recording("pinned")
        memory = np.empty(nbytes, np.uint8)
        self.pinned_memory[memory.ctypes.data] = memory
        return memory

    def copy_in(self, host: np.ndarray, array: EmulatedArray) -> None:
        self._not_recording("copy_in")
        assert host.nbytes == array.nbytes
        assert host.flags.c_contiguous
        assert array.flags.c_contiguous
        # Pinned memory is read when the copy is done, other memory at once.
        source = host.reshape(-1).view(np.uint8)
        pinned = list(self.pinned_memory.values())
        if not any(np.may_share_memory(host, memory) for memory in pinned):
            source = source.copy()
        to = array.values.reshape(-1).view(np.uint8)
        self._current.add(lambda: np.copyto(to, source))

    def clear(self, array: EmulatedArray) -> None:
        if self._recorded is not None:
            self._recorded.append(lambda: self.clear(array))
            return
        self._current.add(lambda: array.values.fill(0))

    def new_stream(self) -> EmulatedStream:
        return EmulatedStream(self.copies_late)

    @contextmanager
    def on(self, stream: EmulatedStream) -> Iterator[None]:
        before, self._thread.stream = self._current, stream
        try:
            yield
        finally:
            self._thread.stream = before

    def mark(self) -> EmulatedEvent:
        return EmulatedEvent.on(self._current)

    def wait(self, event: EmulatedEvent) -> None:
        self._current.add(event.happened)

    def seconds(self, first: EmulatedEvent, last: EmulatedEvent) -> float:
        last.happened()
        first.happened()
        return last.time - first.time

    def free_memory(self) -> int:
        if self._taken > self.memory // 2:
            gc.collect()  # tracebacks of expected errors keep plans
        return max(0, self.memory - self._taken)

    def peak_memory(self) -> int:
        return self._peak

    def watch_memory(self) -> None:
        self._peak = self._taken

    def _count(self, array: EmulatedArray) -> EmulatedArray:
        self._taken += array.nbytes
        self._peak = max(self._peak, self._taken)
        weakref.finalize(array.memory, self._released, array.nbytes)
        return array

    def _released(self, nbytes: int) -> None:
        self._taken -= nbytes

    def launch(self, kernel: Kernel, grid: tuple[int, int], arguments: Sequence[Any]) -> None:
        if not check_grid(kernel, grid):
            return
        if self._recorded is not None:
            if kernel not in self._functions:
                raise LaunchError(f"{kernel.name}: compiled within a capture")
            kept = tuple(arguments)
            self._recorded.append(lambda: self.launch(kernel, grid, kept))
            return
        if current_device() != self.number:
            raise LaunchError(
                f"{kernel.name}: the thread's current device is {current_device()}, the launch is "
                f"on device {self.number}"
            )
        function, parameters = self._functions.get(kernel) or self._load(kernel)
        if len(arguments) != len(parameters):
            raise LaunchError(f"{kernel.name}: {len(arguments)} arguments for {parameters}")
        kept = []
        for position, (argument, parameter) in enumerate(zip(arguments, parameters, strict=True)):
            given = argument.dtype.char if isinstance(argument, np.generic) else None
            if isinstance(argument, EmulatedArray):
                given = "*" + argument.dtype.char.replace("e", "H")  # half: two bytes
                check_home(kernel, position, argument.home, self.number)
                if not (argument.flags.c_contiguous or argument.flags.f_contiguous):
                    raise LaunchError(f"{kernel.name}: argument {position} is not contiguous")
                kept.append(ctypes.c_void_p(argument.values.ctypes.data))
            elif given is not None:
                kept.append(ctypes.create_string_buffer(argument.tobytes(), argument.nbytes))
            if given != parameter:
                raise LaunchError(
                    f"{kernel.name}: argument {position} is {given}, its parameter {parameter}"
                )
        addresses = (ctypes.c_void_p * len(kept))(*(ctypes.addressof(value) for value in kept))
        sizes = (ctypes.c_uint * 6)(*grid, 1, kernel.threads, 1, 1)
        self._current.add(
            lambda: self._run(kernel, function, sizes, addresses, kept, tuple(arguments))
        )

    def _run(
        self,
        kernel: Kernel,
        function: Any,
        sizes: Any,
        addresses: Any,
        kept: list[Any],
        arguments: tuple[Any, ...],
    ) -> None:
        with _LAUNCHING:
            shared, asked_for = kernel.dynamic_shared, self._asked_for[kernel]
            message = function(sizes, shared, asked_for, int(self.falling), addresses)
        if message is not None:
            raise LaunchError(f"{kernel.name}: {message.decode()}")
        self.launches.append(kernel.name)
        for position, argument in enumerate(arguments):
            if isinstance(argument, EmulatedArray) and not argument.guards_are_whole():
                raise LaunchError(f"{kernel.name}: wrote outside argument {position}")

    def _load(self, kernel: Kernel) -> tuple[Any, list[str]]:
        if kernel.shared > self.shared_limit:
            raise LaunchError(
                f"{kernel.name}: {kernel.shared} bytes of shared "
                f"memory are more than the {self.shared_limit} that a block may have"
            )
        self._asked_for[kernel] = kernel.dynamic_shared
        with _LAUNCHING:  # compiled once, where several devices ask for it
            library = ctypes.CDLL(str(self.build(kernel)))
        function = getattr(library, f"launch_{kernel.name}")
        function.restype = ctypes.c_char_p
        size = ctypes.c_size_t
        function.argtypes = [ctypes.c_void_p, size, size, ctypes.c_int, ctypes.c_void_p]
        types = getattr(library, f"parameters_of_{kernel.name}")
        types.restype = ctypes.c_char_p
        self._functions[kernel] = function, types().decode().split()
        return self._functions[kernel]

    def build(self, kernel: Kernel) -> Path:
        """Compile the file of a kernel, unchanged, unless it has been before."""
        source = self.sources / kernel.source
        names = KERNELS.findall(source.read_text())
        exports = "".join(f"EXPORT_KERNEL({name})\n" for name in names)
        text = f'#include "{HEADER.name}"\n#include "{source}"\n{exports}'
        # With optimization, sanitized code takes five times as long to compile.
        common = ["-O0" if self.sanitize else "-O1", "-std=c++17", "-fPIC"]
        if self.sanitize:
            common += ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
        folders = sorted({str(header.parent) for header in headers(self.sources)})
        options = [*common, *(f"-I{folder}" for folder in folders), *kernel.options]
        options += ["-shared", "-Wl,-Bsymbolic", "-Wno-unknown-pragmas"]
        read = [HEADER, source, *headers(self.sources)]
        library = self.folder / f"{source.stem}-{_digest(text, options, read)}.so"
        if not library.exists():
            # g++ reads the header from where it is compiled already, other compilers as it is.
            prepared = self.folder / f"header-{_digest('', common, [HEADER])}"
            header = prepared / f"{HEADER.name}.gch"
            if not header.exists():
                # -w: of `#pragma once` g++ warns in a file that is compiled by itself.
                alone = [*common, "-w", "-x", "c++-header"]
                _compile(HEADER.name, alone, HEADER.read_text(), header)
            options += [f"-I{prepared}", f"-I{HERE}"]
            _compile(kernel.source, options, text, library)
        return library
