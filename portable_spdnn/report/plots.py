"""Pictures as files; they need the extra ``plot``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from portable_spdnn.errors import InputError
from portable_spdnn.io.atomic_output import atomic_output


def check_plot(path: Path) -> None:
    """Check, before anything is measured, that a picture can be drawn.

    Raises
    ------
    InputError
        If the name ends neither in .png nor in .svg, or matplotlib is missing.
    """
    if path.suffix.lower() not in (".png", ".svg"):
        raise InputError(f"{path}: a plot is a file that ends in .png or .svg")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise InputError(
            f"a plot needs matplotlib, which does not load ({error}); "
            "pip install 'portable-spdnn[plot]'"
        ) from error


def save_figure(figure: Any, path: Path) -> None:
    """Write a matplotlib figure, whole or not at all, in the format that the name ends in.

    Raises
    ------
    InputError
        If the file cannot be written.
    """
    with atomic_output(path, seekable=True) as stream:
        figure.savefig(stream, format=path.suffix.lower()[1:], dpi=120)
