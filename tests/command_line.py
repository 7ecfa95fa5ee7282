"""The command line as tests call it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


Cli = Callable[..., Done]


def expect_error(done: Done, *parts: str, alone: bool = True) -> None:
    """Exit 2 with an error on standard error that names everything in `parts`, no traceback.

    It is the last line, and beside progress the only one if it is `alone`.
    """
    assert done.code == 2, done
    lines = [line for line in done.err.splitlines() if not line.endswith(" ...")]
    assert len(lines) == 1 or not alone, done.err
    assert lines[-1].startswith("portable-spdnn: error: ")
    for part in parts:
        assert part in lines[-1], (part, lines[-1])
    assert "Traceback" not in done.err
