"""Run the contract suite on one backend: ``python -m portable_spdnn.testing NAME [-k ...]``."""

from __future__ import annotations

import sys
from pathlib import Path

USAGE = "usage: python -m portable_spdnn.testing BACKEND [pytest options, such as -k spmm]"


def main(arguments: list[str]) -> int:
    """Run the suite; returns pytest's exit status, or 2 for wrong usage.

    Parameters
    ----------
    arguments : list of str
        The name of a registered backend, then options for pytest.
    """
    if not arguments or arguments[0].startswith("-"):
        print(USAGE, file=sys.stderr)
        return 2
    try:
        import hypothesis  # noqa: F401
        import pytest
    except ImportError as error:
        print(f"{error}; pip install 'portable-spdnn[testing]'", file=sys.stderr)
        return 2
    name, *options = arguments
    folder = Path(__file__).resolve().parent
    return int(
        pytest.main(
            [
                *("-c", "/dev/null", "--rootdir", str(folder), "-p", "no:cacheprovider"),
                *("-W", "ignore::pytest.PytestAssertRewriteWarning"),
                *("-p", "portable_spdnn.testing.plugin", "--backend", name),
                *("-o", "python_files=contract_*.py", "--import-mode=importlib", "-q"),
                *options,
                str(folder),
            ]
        )
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
