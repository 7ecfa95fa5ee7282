"""Compiled kernels kept on disk, and what makes them be compiled again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from numba.core.caching import NullCache

from portable_spdnn_cpu.jit import compilation

CALLEE = """
from kernels.jit.compilation import kernel

@kernel
def answer(x):
    return x + {number}
"""
CALLER = """
from kernels.callee import answer
from kernels.jit.compilation import kernel

@kernel
def twice(x):
    return 2 * answer(x)
"""
RUN = """
from kernels.caller import twice
print(twice(1), len(twice.stats.cache_hits))
"""


def test_where_no_folder_may_be_written_kernels_are_compiled_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("numba.core.caching.CompileResultCacheImpl._locator_classes", [])
    compilation._warn_once.cache_clear()

    def double(x: int) -> int:
        return 2 * x

    with pytest.warns(RuntimeWarning, match=r"cannot be kept \(no folder may be written\)"):
        compiled = compilation.kernel(double)
    part = compilation.kernel_part(double)
    assert compiled(4) == 8
    assert compilation.is_part(part)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a package whose one kernel calls another file's, with the module under test."""
    package = tmp_path / "kernels"
    (package / "jit").mkdir(parents=True)
    shutil.copy(compilation.__file__, package / "jit" / "compilation.py")
    (package / "caller.py").write_text(CALLER)
    (package / "callee.py").write_text(CALLEE.format(number=1))
    return tmp_path


def run(folder: Path) -> list[str]:
    """Run the caller in a process of its own: the answer, and how often it came from disk."""
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        cwd=folder,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_kernels_are_compiled_again_where_a_file_that_they_call_changed(folder: Path) -> None:
    assert run(folder) == ["4", "0"]
    assert run(folder) == ["4", "1"]
    (folder / "kernels" / "callee.py").write_text(CALLEE.format(number=2))
    assert run(folder) == ["6", "0"]
    assert run(folder) == ["6", "1"]


FULL_DISK = """
import resource, warnings
import numpy as np
from portable_spdnn_cpu.jit.compilation import kernel

@kernel
def double(x):
    return 2 * x

resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    assert double(2) == 4
    assert double(2.5) == 5
assert [str(one.message)[:33] for one in said] == ["compiled kernels cannot be kept ("], said
"""


def test_a_full_disk_costs_the_cache_and_not_the_run(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(FULL_DISK)
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, check=False,
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


DAMAGED = """
import importlib, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import kernel_at_hand

def was_loaded():
    # A new function of Numba's, as of a new process: it has nothing but what is on disk.
    double = importlib.reload(kernel_at_hand).double
    assert double(2) == 4
    return sum(double.stats.cache_hits.values()) == 1

assert [was_loaded(), was_loaded()] == [False, True]
for ending in ("*.nbc", "*.nbi"):
    (file,) = Path(sys.argv[2]).rglob(ending)
    intact = file.read_bytes()
    for at in (len(intact) // 2, len(intact) - 1):
        file.write_bytes(intact[:at] + bytes([intact[at] ^ 0x55]) + intact[at + 1 :])
        assert [was_loaded(), was_loaded()] == [False, True], (file, at)
    file.write_bytes(b"")
    assert [was_loaded(), was_loaded()] == [False, True], file
print("checked")
"""


def test_damaged_machine_code_is_compiled_anew(tmp_path: Path) -> None:
    (tmp_path / "kernel_at_hand.py").write_text(
        "from portable_spdnn_cpu.jit.compilation import kernel\n\n"
        "@kernel\ndef double(x):\n    return 2 * x\n"
    )
    folder = tmp_path / "cache"
    done = subprocess.run(
        [sys.executable, "-c", DAMAGED, tmp_path, folder], capture_output=True, text=True,
        check=False, env={**os.environ, "NUMBA_CACHE_DIR": str(folder)},
    )  # fmt: skip
    assert done.stdout == "checked\n", done.stderr


PARTS = """
from portable_spdnn_cpu.jit.compilation import is_part, kernel, kernel_part

@kernel_part
def divided(x, y):
    if x < y:
        print(x, "is less than", y)
        raise ValueError("too small", x)
    return x // y

@kernel_part
def added(x, y):
    return x + divided(x, y)

@kernel
def first(x, y):
    return added(x, y)

@kernel
def second(x, y):
    return added(x, y) + divided(x, y)

@kernel
def third(x, y):
    return added(x, y) - 1

def both(x, y):
    return first(x, y) + second(x, y)
"""
LINKED = """
import sys
sys.path.insert(0, sys.argv[1])
import kernels_at_hand as hand
print(getattr(hand, sys.argv[2])(9, 2))
for part in (hand.added, hand.divided):
    assert hand.is_part(part)
    for compiled in part.overloads.values():
        assert type(compiled.library).__name__ == "_LinkedCode"  # without machine code
    print(sum(part.stats.cache_hits.values()))
for wrong in (0, 11):
    try:
        getattr(hand, sys.argv[2])(9, wrong)
    except (ValueError, ZeroDivisionError) as error:
        print(type(error).__name__, *error.args[1:])
"""
RAISED = """\
ZeroDivisionError
9 is less than 11
ValueError 9
"""


def test_parts_are_linked_from_disk_into_other_kernels(tmp_path: Path) -> None:
    (tmp_path / "kernels_at_hand.py").write_text(PARTS)

    def run(name: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-c", LINKED, tmp_path, name],
            capture_output=True, text=True, check=False,
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.split(maxsplit=3)

    assert run("first") == ["13", "0", "0", RAISED]
    assert run("second") == ["17", "1", "1", RAISED]
    assert run("third") == ["12", "1", "0", RAISED]  # one part holds the other
    assert run("both") == ["30", "0", "0", RAISED]  # both kernels are on disk, with their parts


@compilation.kernel_part
def shifted(x: int, distance: int = 2) -> int:
    return x + distance


@compilation.kernel
def sum_shifted(x: int) -> int:
    return shifted(3) + shifted(4, 5) + shifted(x, distance=x)


def test_what_is_called_with_constants_is_not_compiled_for_each() -> None:
    sum_shifted._cache = NullCache()  # compiled here, though it may be on disk from a run before
    assert sum_shifted(10) == 5 + 9 + 20
    assert [len(each.overloads) for each in (sum_shifted, shifted)] == [1, 2]  # one has a default
