"""Machine code on disk: taken where it is whole, compiled again where it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from portable_spdnn_gpu.compile import cache
from portable_spdnn_gpu.compile.catalog import BOUNDED, csr_spmm, feature_layout
from portable_spdnn_gpu.compile.nvrtc import KernelCompilationError
from portable_spdnn_gpu.compile.precision import Precision

KERNEL = csr_spmm(Precision(), BOUNDED)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Return what is compiled, by a compiler that numbers its work."""
    done: list[str] = []

    def compile_source(kernel: object, architecture: int) -> tuple[bytes, str]:
        done.append(f"{kernel.name} {architecture}")  # type: ignore[attr-defined]
        return f"code {len(done)}".encode(), ""

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cache, "compile_source", compile_source)
    monkeypatch.setattr(cache, "compiler_version", lambda: "13.0")
    return done


def test_code_is_compiled_once(compiled: list[str]) -> None:
    assert cache.machine_code(KERNEL, 90) == b"code 1"
    assert cache.machine_code(KERNEL, 90) == b"code 1"
    assert cache.machine_code(KERNEL, 80) == b"code 2"
    assert cache.machine_code(csr_spmm(Precision(half=True), BOUNDED), 90) == b"code 3"
    assert cache.machine_code(feature_layout("turn_rows", Precision()), 90) == b"code 4"
    assert compiled == ["csr_spmm 90", "csr_spmm 80", "csr_spmm 90", "turn_rows 90"]


@pytest.mark.parametrize("damage", [b"", b"short", None])
def test_damaged_code_is_compiled_again(compiled: list[str], damage: bytes | None) -> None:
    cache.machine_code(KERNEL, 90)
    path = cache.code_path(KERNEL, 90)
    path.write_bytes(path.read_bytes()[:-1] + b"?" if damage is None else damage)
    assert cache.machine_code(KERNEL, 90) == b"code 2"
    assert cache.machine_code(KERNEL, 90) == b"code 2"


def test_other_sources_and_compilers_are_other_code(
    compiled: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = cache.code_path(KERNEL, 90)
    monkeypatch.setattr(cache, "compiler_version", lambda: "13.1")
    assert cache.code_path(KERNEL, 90) != first
    folder = tmp_path / "kernels"
    folder.mkdir()
    (folder / "spmm").mkdir()
    (folder / "compile").mkdir()
    (folder / "spmm" / "csr_spmm.cu").write_text("one")
    (folder / "compile" / "common.cuh").write_text("two")
    monkeypatch.setattr(cache, "kernel_folder", lambda: folder)
    second = cache.code_path(KERNEL, 90)
    (folder / "compile" / "common.cuh").write_text("three")
    assert len({first, second, cache.code_path(KERNEL, 90)}) == 3


def test_a_folder_that_cannot_be_written_costs_the_cache_alone(
    compiled: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert cache.machine_code(KERNEL, 90) == b"code 1"
    assert cache.machine_code(KERNEL, 90) == b"code 2"


def test_errors_of_the_compiler_pass(compiled: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(kernel: object, architecture: int) -> tuple[bytes, str]:
        raise KernelCompilationError("no")

    monkeypatch.setattr(cache, "compile_source", failing)
    with pytest.raises(KernelCompilationError, match="no"):
        cache.machine_code(KERNEL, 90)
    assert not cache.code_path(KERNEL, 90).exists()
