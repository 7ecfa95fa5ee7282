"""Progress on standard error: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PLAIN_SECONDS = 10.0  # between plain lines: a log should not be flooded


@contextmanager
def show_progress(what: str, wanted: bool) -> Iterator[Callable[[int, int], None] | None]:
    """Give a callback (done, total) that shows how far `what` is; None where not wanted.

    `total` may be 0 while it is not known.
    """
    if not wanted:
        yield None
    elif sys.stderr.isatty():
        with _bar(what) as callback:
            yield callback
    else:
        yield _plain(what)


@contextmanager
def _bar(what: str) -> Iterator[Callable[[int, int], None]]:
    from rich.console import Console
    from rich.progress import Progress, TimeElapsedColumn

    columns = (*Progress.get_default_columns(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total or None)


def _plain(what: str) -> Callable[[int, int], None]:
    print(f"{what} ...", file=sys.stderr, flush=True)
    last = time.monotonic()

    def show(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= PLAIN_SECONDS:
            last = now
            share = f"{100 * done / total:.0f} %" if total else f"{done} done"
            print(f"{what}: {share}", file=sys.stderr, flush=True)

    return show
