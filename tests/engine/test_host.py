"""Memory: what is left of the machine and of control groups, what is held, amounts as text."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest

import portable_spdnn as ps
from portable_spdnn.host import (
    available_bytes,
    format_bytes,
    parse_limit,
    peak_resident_bytes,
    resident_bytes,
)

GIB = 1 << 30


def write_proc(root: Path, groups: str, meminfo: str = "MemAvailable:   1000 kB\n") -> Path:
    (root / "self").mkdir(parents=True)
    (root / "meminfo").write_text(f"MemTotal:       5000 kB\n{meminfo}")
    (root / "self" / "cgroup").write_text(groups)
    return root


def write_group(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")


def test_available_memory_is_the_least_of_machine_and_control_groups(tmp_path: Path) -> None:
    proc = write_proc(tmp_path / "proc", "0::/outer/inner\n")
    groups = tmp_path / "cgroup"
    assert available_bytes(proc, groups) == 1000 * 1024
    stat = "anon 1\ninactive_file 300"
    write_group(groups / "outer", memory__max=900_000, memory__current=500_000, memory__stat=stat)
    write_group(groups / "outer" / "inner", memory__max="max", memory__current=500_000)
    assert available_bytes(proc, groups) == 400_300
    # A container finds its own group at the mount point.
    write_group(groups, memory__max=600_000, memory__current=500_000)
    assert available_bytes(proc, groups) == 100_000
    write_group(groups, memory__max=400_000)
    assert available_bytes(proc, groups) == 0


def test_available_memory_under_the_first_version_of_control_groups(tmp_path: Path) -> None:
    proc = write_proc(tmp_path / "proc", "5:cpu,cpuacct:/x\n4:memory:/jobs/a\n0::/\n")
    group = tmp_path / "cgroup" / "memory" / "jobs" / "a"
    stat = "inactive_file 7\ntotal_inactive_file 50"
    write_group(group, memory__limit_in_bytes=2000, memory__usage_in_bytes=1500, memory__stat=stat)
    assert available_bytes(proc, tmp_path / "cgroup") == 550


def test_a_system_that_tells_nothing(tmp_path: Path) -> None:
    assert available_bytes(tmp_path, tmp_path) is None
    proc = write_proc(tmp_path / "proc", "", meminfo="")
    assert available_bytes(proc, tmp_path) is None


@pytest.mark.parametrize(
    ("text", "amount"),
    [("4GiB", 4 * GIB), ("500MB", 500 * 10**6), ("1.5k", 1500), (" 2 kib ", 2048), ("7", 7),
     ("12B", 12), (".5GiB", GIB // 2)],
)  # fmt: skip
def test_amounts_of_memory(text: str, amount: int) -> None:
    assert parse_limit(text, "--memory") == amount


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "4 giga", "0", "1e9", "nan"])
def test_no_amounts_of_memory(text: str) -> None:
    with pytest.raises(ps.InputError, match=r"--memory is .*; give an amount such as 4GiB"):
        parse_limit(text, "--memory")


def test_limits_on_memory_may_be_absent() -> None:
    assert parse_limit(None, "--memory") is None
    assert parse_limit("2KiB", "--memory") == 2048


def test_shown_amounts_and_what_the_process_holds() -> None:
    assert [format_bytes(n) for n in (0, 1023, 1536, 1020 << 20, 4 * GIB, 3 << 40, 5000 << 40)] == [
        "0 B", "1023 B", "1.5 KiB", "1020 MiB", "4 GiB", "3 TiB", "5000 TiB",
    ]  # fmt: skip
    gc.collect()
    held = resident_bytes()
    block = np.ones(256 << 20, np.uint8)
    assert resident_bytes() - held > 160 << 20  # what others let go meanwhile counts against it
    assert peak_resident_bytes() >= held
    assert block.sum() == 256 << 20
