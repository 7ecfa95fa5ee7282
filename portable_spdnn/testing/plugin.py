"""The pytest plugin that hands the contract suite the backend named on its command line."""

from __future__ import annotations

import pytest

from portable_spdnn.backend import Backend
from portable_spdnn.errors import SpdnnError
from portable_spdnn.registry import get_backend


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that names the backend."""
    parser.addoption("--backend", required=True, help="a registered backend that can run here")


def pytest_configure(config: pytest.Config) -> None:
    """Stop with the reason where the backend cannot run."""
    try:
        get_backend(config.getoption("--backend"))
    except SpdnnError as error:
        raise pytest.UsageError(str(error)) from error


@pytest.fixture(scope="module")
def backend(request: pytest.FixtureRequest) -> Backend:
    """Return the backend that is held to the contract."""
    return get_backend(request.config.getoption("--backend"))
