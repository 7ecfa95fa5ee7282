"""Fixtures that every test may use."""

from __future__ import annotations

from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder beside the checkout with official Graph Challenge data, MNIST and DLMC patterns."""
    folder = REPOSITORY.parent / "shared"
    if not folder.is_dir():
        pytest.skip(f"official data is not there: {folder}")
    return folder
