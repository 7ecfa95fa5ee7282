"""Backends: discovery through entry points, survey, choice."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

from portable_spdnn.backend import OPERATIONS, Availability, Backend
from portable_spdnn.errors import BackendUnavailable, InputError

GROUP = "portable_spdnn.backends"
ENVIRONMENT_VARIABLE = "PORTABLE_SPDNN_BACKEND"


@dataclass(frozen=True)
class BackendInfo:
    """One registered backend and whether it can run here.

    Attributes
    ----------
    name : str
    availability : Availability
    execution_space, memory_space : str
        Empty where the backend's module cannot be imported.
    operations : tuple of str
    priority : int
        Of the choice "auto".
    """

    name: str
    availability: Availability
    execution_space: str = ""
    memory_space: str = ""
    operations: tuple[str, ...] = ()
    priority: int = -1


def registered() -> dict[str, EntryPoint]:
    """Return the entry points of all registered backends by name.

    Raises
    ------
    InputError
        If two distributions register different classes under one name.
    """
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=GROUP):
        if point.name in found and found[point.name].value != point.value:
            raise InputError(
                f"backend {point.name!r} is registered twice: as {found[point.name].value} and as "
                f"{point.value}; uninstall one of the two packages"
            )
        found[point.name] = point
    return dict(sorted(found.items()))


@functools.lru_cache(maxsize=1)  # files of every package are read: five milliseconds
def _registered_in(
    folders: tuple[tuple[str, int], ...], finders: tuple[object, ...]
) -> dict[str, EntryPoint]:
    """Return what is registered, for what packages are found by."""
    return registered()


def _registered(name: str) -> dict[str, EntryPoint]:
    """Return what is registered, looked up again where that may have changed, or lacks a name."""
    found = _registered_in(tuple(map(_state_of, sys.path)), tuple(sys.meta_path))
    return found if name in found else registered()


def _state_of(folder: str) -> tuple[str, int]:
    """Return a folder's whole name, and when it changed last, as where a package was installed.

    In nanoseconds since the epoch; 0 where there is no such folder.
    """
    try:
        whole = os.path.abspath(folder)
        return whole, os.stat(whole).st_mtime_ns
    except OSError:  # the current directory may be gone too
        return folder, 0


def backends() -> list[BackendInfo]:
    """Survey every registered backend, available or not, the highest priority first.

    Returns
    -------
    list of BackendInfo
        Of a backend that cannot run here, `availability.reason` says why.

    Raises
    ------
    InputError
        If two distributions register different classes under one name, or what the user set for
        a backend (such as NUMBA_NUM_THREADS) has no valid value.

    Examples
    --------
    >>> import portable_spdnn as ps
    >>> [info.name for info in ps.backends() if info.name in ("cupy", "numba", "scipy")]
    ['cupy', 'numba', 'scipy']
    """
    return _survey_all(registered())


def _survey_all(points: dict[str, EntryPoint]) -> list[BackendInfo]:
    found = [_survey(name, point) for name, point in points.items()]
    return sorted(found, key=lambda info: -info.priority)


def backends_with(operation: str) -> list[str]:
    """Return the names of the available backends that have `operation`."""
    return [b.name for b in backends() if b.availability.available and operation in b.operations]


def load_backend(name: str) -> type[Backend]:
    """Return the class of an available backend; names and errors are those of `get_backend`."""
    source = ""
    if name == "auto":
        name = os.environ.get(ENVIRONMENT_VARIABLE, "") or "auto"
        source = f" (from {ENVIRONMENT_VARIABLE})"
    points = _registered(name)
    if name == "auto":
        survey = _survey_all(points)
        for info in survey:
            if info.availability.available:
                return _load(points[info.name])
        reasons = "; ".join(f"{b.name}: {b.availability.reason}" for b in survey)
        raise BackendUnavailable(f"no backend can run here ({reasons or 'none is registered'})")
    if name not in points:
        known = ", ".join(points) or "none, since portable_spdnn is not installed: pip install it"
        raise InputError(f"unknown backend {name!r}{source}; registered: {known}")
    info = _survey(name, points[name])
    if not info.availability.available:
        usable = [b.name for b in backends() if b.availability.available]
        raise BackendUnavailable(
            f"backend {name}{source} is not available: {info.availability.reason}; "
            f"usable here: {', '.join(usable) or 'none'}"
        )
    return _load(points[name])


def get_backend(name: str = "auto", threads: int | None = None) -> Backend:
    """Return a backend ready to use.

    Parameters
    ----------
    name : str, default "auto"
        A registered name, or "auto": what PORTABLE_SPDNN_BACKEND names, else the available
        backend of the highest `Backend.priority`; of several, the first by name.
    threads : int, optional
        Threads that it uses, at least 1; a serial backend has one. Default: the backend's own.

    Raises
    ------
    InputError
        If no backend of that name is registered, or `threads` is less than 1.
    BackendUnavailable
        If the backend cannot run here; the message gives the reason and the usable ones.

    Examples
    --------
    >>> import portable_spdnn as ps
    >>> ps.get_backend("scipy").execution_space
    'serial'
    """
    made = load_backend(name)(threads=threads)
    made.backends_with = backends_with
    return made


def _load(point: EntryPoint) -> type[Backend]:
    loaded = point.load()
    if not (isinstance(loaded, type) and issubclass(loaded, Backend)):
        raise TypeError(f"{point.value} is not a class derived from portable_spdnn.Backend")
    return loaded


def _survey(name: str, point: EntryPoint) -> BackendInfo:
    try:
        cls = _load(point)
        availability = cls.availability()
        spaces, priority = (cls.execution_space, cls.memory_space), int(cls.priority)
    except InputError:
        raise  # what the user asked for is wrong, such as a number of threads
    except Exception as error:  # noqa: BLE001 - code of other packages; one must not stop the rest
        reason = f"{point.value} cannot be loaded: {type(error).__name__}: {error}"
        return BackendInfo(name, Availability.no(reason))
    if cls.name != name:
        reason = f"{point.value} is registered as {name!r} but its name is {cls.name!r}"
        return BackendInfo(name, Availability.no(reason))
    operations = OPERATIONS + tuple(sorted(cls.optional_operations))
    return BackendInfo(
        name,
        availability,
        *spaces,
        # A class that leaves an operation out cannot be made, and has none.
        () if inspect.isabstract(cls) else operations,
        priority,
    )
