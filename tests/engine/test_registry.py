"""Which backend a user gets, and what he is told where he gets none."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

import portable_spdnn as ps
from portable_spdnn import registry
from portable_spdnn.backend import Availability


def test_the_three_backends_are_registered_fastest_first() -> None:
    assert [b.name for b in ps.backends()][:3] == ["cupy", "numba", "scipy"]
    by_name = {b.name: b for b in ps.backends()}
    assert by_name["scipy"].availability.available
    assert by_name["numba"].availability.available
    assert by_name["scipy"].execution_space == "serial"
    assert by_name["numba"].execution_space == "threads"
    assert set(by_name["numba"].operations) >= {"spmm", "spgemm", "layer", "plan"}


def test_cupy_says_why_it_is_not_available() -> None:
    with pytest.raises(ps.BackendUnavailable, match=r"cupy is not available: .*; usable here: num"):
        ps.get_backend("cupy")


def test_unknown_backend_lists_the_known_ones() -> None:
    with pytest.raises(ps.InputError, match=r"unknown backend 'numpy'; registered: cupy, numba"):
        ps.get_backend("numpy")


def test_auto_takes_the_fastest_that_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(registry.ENVIRONMENT_VARIABLE, raising=False)
    fastest = next(b.name for b in ps.backends() if b.availability.available)
    assert ps.get_backend("auto").name == fastest
    from portable_spdnn_cpu.numba_backend import NumbaBackend

    monkeypatch.setattr(NumbaBackend, "availability", lambda: Availability.no("broken on purpose"))
    if fastest == "numba":
        assert ps.get_backend().name == "scipy"


def test_auto_consults_the_environment_and_never_substitutes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(registry.ENVIRONMENT_VARIABLE, "scipy")
    assert ps.get_backend().name == "scipy"
    assert ps.get_backend("numba").name == "numba"
    monkeypatch.setenv(registry.ENVIRONMENT_VARIABLE, "cupy")
    with pytest.raises(ps.BackendUnavailable, match=r"cupy \(from PORTABLE_SPDNN_BACKEND\) is not"):
        ps.get_backend()
    monkeypatch.setenv(registry.ENVIRONMENT_VARIABLE, "nonsense")
    with pytest.raises(ps.InputError, match=r"'nonsense' \(from PORTABLE_SPDNN_BACKEND\)"):
        ps.get_backend()


def test_no_backend_at_all_is_an_error_with_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(registry.ENVIRONMENT_VARIABLE, raising=False)
    monkeypatch.setattr(registry, "_registered", lambda name: {})
    with pytest.raises(ps.BackendUnavailable, match="none is registered"):
        ps.get_backend()


SCIPY = "portable_spdnn_cpu.scipy_backend:ScipyBackend"


def install(name: str, folder: Path) -> None:
    """Write what pip does of a package that registers a backend by a name that is not its own."""
    installed = folder / f"{name}-1.0.dist-info"
    installed.mkdir(exist_ok=True)
    (installed / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(f"[{registry.GROUP}]\n{name} = {SCIPY}\n")


def test_what_is_installed_or_removed_later_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.utime(tmp_path, (0, 0))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ps.InputError, match="unknown backend 'late'"):
        registry.load_backend("late")
    (tmp_path / "late-1.0.dist-info").mkdir()
    registry.load_backend("scipy")  # while it is half installed
    install("late", tmp_path)
    with pytest.raises(ps.BackendUnavailable, match="is registered as 'late'"):
        registry.load_backend("late")
    shutil.rmtree(tmp_path / "late-1.0.dist-info")
    with pytest.raises(ps.InputError, match="unknown backend 'late'"):
        registry.load_backend("late")


def test_a_relative_folder_is_another_after_a_change_of_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        install(name, tmp_path / name)
        os.utime(tmp_path / name, (1, 1))
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    for name, other in (("first", "second"), ("second", "first")):
        monkeypatch.chdir(tmp_path / name)
        with pytest.raises(ps.BackendUnavailable, match=f"is registered as '{name}'"):
            registry.load_backend(name)
        with pytest.raises(ps.InputError, match="unknown backend"):
            registry.load_backend(other)


def test_a_directory_that_is_gone_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setattr(sys, "path", ["", str(gone), *sys.path])
    assert registry.load_backend("scipy").name == "scipy"
