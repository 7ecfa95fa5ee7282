"""The command line, `portable-spdnn`: one file per command."""

from __future__ import annotations

import sys

USAGE_ERROR = 2


def main() -> None:
    """Run the command line and exit: 0 done, 1 wrong categories, 2 usage or input error."""
    from portable_spdnn.cli.app import app
    from portable_spdnn.errors import SpdnnError

    try:
        app()
    except (SpdnnError, OSError, MemoryError) as error:
        if isinstance(error, BrokenPipeError):
            # Whoever read the output has left; there is nobody to tell.
            sys.stderr.close()
            sys.exit(USAGE_ERROR)
        print(f"portable-spdnn: error: {_one_line(error)}", file=sys.stderr)
        sys.exit(USAGE_ERROR)
    except KeyboardInterrupt:
        print("portable-spdnn: interrupted", file=sys.stderr)
        sys.exit(130)


def _one_line(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        detail = f" ({error})" if str(error) else ""
        return f"out of memory{detail}; try a smaller --batch-size or --first-inputs"
    return " ".join(str(error).split()) or type(error).__name__
