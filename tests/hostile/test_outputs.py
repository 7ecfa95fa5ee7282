"""Outputs that are no regular files, that cannot be written, or whose writers were killed."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import portable_spdnn as ps
from portable_spdnn.io.atomic_output import atomic_folder, atomic_output, check_outputs
from portable_spdnn.io.packed_writer import PackedStoreWriter


def write(path: Path, content: bytes = b"new") -> None:
    with atomic_output(path) as stream:
        stream.write(content)


def test_a_link_is_followed_and_stays(tmp_path: Path) -> None:
    target, link, dangling = (tmp_path / name for name in ("target", "link", "dangling"))
    target.write_bytes(b"old")
    target.chmod(0o640)
    link.symlink_to(target)
    dangling.symlink_to(tmp_path / "later")
    write(link)
    write(dangling)
    assert link.is_symlink()
    assert dangling.is_symlink()
    assert target.read_bytes() == (tmp_path / "later").read_bytes() == b"new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for refuse in (write, check_outputs):
        with pytest.raises(ps.InputError, match="loop: cannot be written"):
            refuse(loop)


def test_a_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    check_outputs(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write(pipe, b"through")
    reader.join()
    assert read == [b"through"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_devices(tmp_path: Path) -> None:
    write(Path("/dev/null"))
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    with pytest.raises(ps.InputError, match=r"/dev/full: cannot be written .*space"):
        write(Path("/dev/full"))
    with (
        pytest.raises(ps.InputError, match="/dev/null: is no regular file"),
        PackedStoreWriter("/dev/null", y_max=None) as store,
    ):
        store.add_layer(1, ps.Layer(np.eye(2)))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("absent/file", "there is no folder .*absent; create it first"),
        ("", "is a folder; the name of a file"),
        ("file/below", "there is no folder"),
        ("/proc/new", "/proc/new: cannot be written"),
    ],
)
def test_what_cannot_be_written(path: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ps.InputError, match=message):
        write(tmp_path / path)
    if not path.startswith("/proc"):
        with pytest.raises(ps.InputError, match=message):
            check_outputs(tmp_path / path)


KILLED = """
import os, signal, sys
from portable_spdnn.io.atomic_output import atomic_folder, atomic_output
kind = {"file": atomic_output, "folder": atomic_folder}[sys.argv[1]]
with kind(sys.argv[2]) as part:
    if sys.argv[1] == "file":
        part.write(b"half")
        part.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_a_killed_writer_left_goes_with_the_next(kind: str, tmp_path: Path) -> None:
    target = tmp_path / "out"
    done = subprocess.run([sys.executable, "-c", KILLED, kind, target], check=False)
    assert done.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert left.name.endswith(".partial")
    other = tmp_path / ".other.01234567.partial"
    other.write_bytes(b"of another output")
    if kind == "file":
        # What is being written at the moment stays.
        with atomic_output(target) as stream:
            stream.write(b"first")
            write(target, b"second")
            assert target.read_bytes() == b"second"
        assert target.read_bytes() == b"first"
    else:
        with atomic_folder(target) as folder:
            (folder / "file").write_bytes(b"")
    assert sorted(tmp_path.iterdir()) == [other, target]


WRITER = """
import sys
from portable_spdnn.io.atomic_output import atomic_output
for _ in range(300):
    with atomic_output(sys.argv[1]) as stream:
        stream.write(b"whole")
"""


def test_writers_of_one_output_do_not_meet(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, tmp_path / "out"]
    writers = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(3)]
    for writer in writers:
        assert writer.communicate(timeout=60)[1] == b""
    assert (tmp_path / "out").read_bytes() == b"whole"
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]
