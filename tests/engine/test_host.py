"""What memory is left: of the machine, and of control groups of either version."""

from __future__ import annotations

from pathlib import Path

from portable_spdnn.host import available_bytes


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
