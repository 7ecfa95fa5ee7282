"""What the operating system grants this process: cores, memory, and a folder to keep things in."""

from __future__ import annotations

import os
import re
import resource
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from portable_spdnn.arguments import checked_count, shown
from portable_spdnn.errors import InputError

Argument = TypeVar("Argument")
Value = TypeVar("Value")

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
          "KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30, "TI": 1 << 40}  # fmt: skip
_AMOUNT = re.compile(r"\s*(\d{1,18}(?:\.\d{0,18})?|\.\d{1,18})\s*([KMGT]?I?)B?\s*", re.IGNORECASE)


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def most_threads() -> int:
    """Return how many threads may be asked for: more would only be in each other's way."""
    return max(64, 4 * usable_cores())


def checked_threads(threads: Any, name: str = "threads") -> int:
    """Return a number of threads, or raise InputError where it is none or far beyond the cores.

    Parameters
    ----------
    threads : int
        At least 1, at most the larger of 64 and four for each core that this process may use.
    name : str
        What the error message calls it.
    """
    return checked_count(name, threads, most=most_threads())


def cache_folder() -> Path:
    """Return where what is found once is kept: in XDG_CACHE_HOME, or ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "portable_spdnn"


def map_in_threads(
    function: Callable[[Argument], Value], arguments: Iterable[Argument], workers: int
) -> Generator[Value]:
    """Yield ``function(argument)`` in order, computed by some threads ahead of the caller.

    `arguments` is iterated in the calling thread, and only as many items as there are threads ahead
    of what was yielded, so that a long iteration takes bounded memory. Once the generator is closed
    no thread works any more.
    """
    pool = ThreadPoolExecutor(workers)
    pending: deque[Future[Value]] = deque()
    try:
        for argument in arguments:
            pending.append(pool.submit(function, argument))
            if len(pending) > workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def parse_limit(amount: str | int | None, option: str) -> int | None:
    """Return a limit on memory in bytes, None where there is none.

    Parameters
    ----------
    amount : str, int or None
        A number of bytes, or one with a unit: ``4GiB`` (2^30 bytes each), ``500MB`` (10^6).
    option : str
        What error messages call it.

    Raises
    ------
    InputError
        If it is no positive amount.
    """
    if amount is None:
        return None
    text = shown(amount).strip("'\"")
    match = _AMOUNT.fullmatch(text)
    unit = _UNITS.get(match[2].upper()) if match else None
    value = int(float(match[1]) * unit) if match and unit else 0
    if not 1 <= value < 1 << 63:
        raise InputError(f"{option} is {text!r}; give an amount such as 4GiB or 500MB")
    return value


def format_bytes(amount: float) -> str:
    """Return an amount of memory with the binary unit that fits: ``3.81 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            digits = 4 if amount >= 999.5 or unit == "B" else 3  # three of 1020 are 1.02e+03
            return f"{amount:.{digits}g} {unit}"
        amount /= 1024
    return f"{amount:.4g} TiB"


def require_memory(nbytes: int, what: str) -> None:
    """Raise InputError where this process may not take so many bytes more.

    Parameters
    ----------
    nbytes : int
        Bytes that are about to be taken.
    what : str
        What takes them, for the message: where the request stands and what is large in it.
    """
    available = available_bytes()
    if available is not None and nbytes > available:
        raise InputError(
            f"{what} would take {format_bytes(nbytes)} of memory; {format_bytes(available)} are "
            "available"
        )


def resident_bytes() -> int:
    """Return the memory that this process holds now (its peak, where the system tells no more)."""
    try:
        with open("/proc/self/statm") as stream:
            return int(stream.read().split()[1]) * resource.getpagesize()
    except OSError:
        return peak_resident_bytes()


def peak_resident_bytes() -> int:
    """Return the most memory that this process has held so far."""
    try:
        # Not what getrusage tells: a process begins there with the peak of the one it came from.
        with open("/proc/self/status") as stream:
            return next(1024 * int(line.split()[1]) for line in stream if line[:6] == "VmHWM:")
    except (OSError, StopIteration):
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def available_bytes(
    proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")
) -> int | None:
    """Return the memory that this process may still take; None where the system does not tell.

    The least of what the machine has available (``MemAvailable``: free, or given back without
    writing to disk), what the limits of this process's control groups leave, of either version,
    and what its limit on address space leaves. Source: the kernel's own documents, proc(5),
    cgroups(7) and getrlimit(2).

    Parameters
    ----------
    proc, cgroups : Path
        Where these file systems are mounted.
    """
    left = []
    match = re.search(r"^MemAvailable:\s*(\d+) kB", _text(proc / "meminfo"), re.MULTILINE)
    if match:
        left.append(1024 * int(match[1]))
    for folder, limit, usage, reclaimable in _control_groups(proc, cgroups):
        allowed, used = _text(folder / limit).strip(), _text(folder / usage).strip()
        if allowed.isdigit() and used.isdigit():  # "max" is no limit
            cached = re.search(
                rf"^{reclaimable} (\d+)", _text(folder / "memory.stat"), re.MULTILINE
            )
            held = int(used) - (int(cached[1]) if cached else 0)
            left.append(max(0, int(allowed) - held))
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    mapped = _text(proc / "self" / "statm").split()
    if space != resource.RLIM_INFINITY and mapped:
        left.append(max(0, space - int(mapped[0]) * resource.getpagesize()))
    return min(left, default=None)


def _control_groups(proc: Path, cgroups: Path) -> Iterator[tuple[Path, str, str, str]]:
    """Yield the groups that limit this process, and the names of their files.

    A container sees its own group at the mount point, under whatever path it has outside.
    """
    for line in _text(proc / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root = cgroups
            names = ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            root = cgroups / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        inside = Path(path.lstrip("/"))
        for part in (inside, *inside.parents):
            yield root / part, *names


def _text(path: Path) -> str:
    """Return a file of the system's, nothing where it is absent or closed to this process."""
    try:
        return path.read_text()
    except OSError:
        return ""
