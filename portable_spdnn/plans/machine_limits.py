"""Limits of the machine, measured once and kept on disk.

They are measured by small kernels of the same toolchain as the backend's own, and kept for the
processor, the thread count and the versions that they were measured with.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from portable_spdnn.backend import Backend
from portable_spdnn.errors import InputError
from portable_spdnn.host import cache_folder
from portable_spdnn.io.run_folder import write_json
from portable_spdnn.kernel_model import Limits
from portable_spdnn.version import __version__


def known_limits(backend: Backend) -> Limits | None:
    """Return the limits of a backend where they have been measured before, else None."""
    return _read().get(_key(backend))


def limits_of(backend: Backend) -> Limits:
    """Return the limits of a backend, from disk where they were measured before.

    Raises
    ------
    NotImplementedError
        If the backend does not measure its limits.
    """
    key, known = _key(backend), _read()
    if key not in known:
        known[key] = backend.measure_limits()
        with suppress(OSError, InputError):  # else they are measured again by the next process
            cache_file().parent.mkdir(parents=True, exist_ok=True)
            write_json(cache_file(), {key: asdict(limits) for key, limits in known.items()})
    return known[key]


def cache_file() -> Path:
    """Return where limits are kept."""
    return cache_folder() / "limits.json"


def _key(backend: Backend) -> str:
    versions = type(backend).availability().versions
    return json.dumps([backend.name, backend.device, __version__, versions], sort_keys=True)


def _read() -> dict[str, Limits]:
    """Return what is on disk; nothing where it is absent, or not of this form."""
    try:
        known = json.loads(cache_file().read_text())
        limits = [(key, Limits(**values)) for key, values in known.items()]
        return {key: one for key, one in limits if all(x > 0 for x in asdict(one).values())}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}  # it is measured again, and the file replaced
