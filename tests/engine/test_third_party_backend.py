"""A backend from a package of its own: registered, chosen, and held to the contract."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PYPROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "toy-spdnn"
version = "1.0"
[project.entry-points."portable_spdnn.backends"]
toy = "toy_spdnn:ToyBackend"
broken = "toy_spdnn:Missing"
[tool.setuptools]
py-modules = ["toy_spdnn"]
"""

# The complete backend that the page for authors of backends ends with.
PAGE = Path(__file__).parents[2] / "docs" / "backends.md"
MODULE = PAGE.read_text().rpartition("```python\n")[2].partition("```")[0]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Install the toy package into a folder of its own and put that on the path."""
    source = tmp_path_factory.mktemp("toy")
    (source / "pyproject.toml").write_text(PYPROJECT)
    (source / "toy_spdnn.py").write_text(MODULE)
    site = tmp_path_factory.mktemp("site")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run(
        [*install, "--no-build-isolation", "--target", str(site), str(source)],
        check=True,
        capture_output=True,
    )
    return {**os.environ, "PYTHONPATH": str(site)}


def run(environment: dict[str, str], *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, check=False
    )


def test_it_passes_the_contract(environment: dict[str, str]) -> None:
    done = run(environment, "-m", "portable_spdnn.testing", "toy")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout.splitlines()[-1]
    assert "failed" not in done.stdout.splitlines()[-1]


def test_it_is_listed_and_a_broken_one_says_why(environment: dict[str, str]) -> None:
    code = (
        "import portable_spdnn as ps\n"
        "for b in ps.backends(): print(b.name, b.availability.available, b.availability.reason)"
    )
    lines = run(environment, "-c", code).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["cupy", "numba", "toy", "scipy", "broken"]
    assert lines[2].split() == ["toy", "True"]
    assert "cannot be loaded" in lines[-1]
    assert "Missing" in lines[-1]
