"""The command line, `portable-spdnn`: one file per command."""

from __future__ import annotations

import re
import sys
import traceback
from typing import NoReturn

USAGE_ERROR = 2
INTERRUPTED = 130
# Arguments that errors of the library name, as in "was neurons=1024 meant?".
ARGUMENT = re.compile(r"\b(neurons|layers|bias|inputs|save_calibration)=(?=\w)")


def main() -> None:
    """Run the command line and exit: 0 done, 1 wrong categories, 2 usage or input error.

    Under an MPI launcher a rank that fails ends the whole job: the others would wait for it.
    """
    from portable_spdnn.cli.app import app
    from portable_spdnn.errors import SpdnnError
    from portable_spdnn.mpi.ranks import launched_rank, launched_ranks, unfinished

    rank = launched_rank() if launched_ranks() > 1 else None
    name = "portable-spdnn" if rank is None else f"portable-spdnn: rank {rank}"
    try:
        app()
    except (SpdnnError, OSError, MemoryError) as error:
        if isinstance(error, BrokenPipeError):
            # Whoever read the output has left; there is nobody to tell.
            sys.stderr.close()
        else:
            print(f"{name}: error: {_one_line(error)}", file=sys.stderr)
        _end(USAGE_ERROR, rank)
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        _end(INTERRUPTED, rank)
    except SystemExit as ended:
        # What all ranks agreed on ends them in order; what one of them met alone does not.
        if rank is None or not ended.code or not unfinished():
            raise
        what = "interrupted" if ended.code == INTERRUPTED else "ended early"
        print(f"{name}: {what}", file=sys.stderr)
        _end(ended.code if isinstance(ended.code, int) else 1, rank)
    except Exception:
        if rank is None:
            raise
        print(f"{name}: failed", file=sys.stderr)
        traceback.print_exc()
        _end(1, rank)


def _end(code: int, rank: int | None) -> NoReturn:
    if rank is not None:
        from portable_spdnn.mpi.ranks import abort

        abort(code)
    sys.exit(code)


def _one_line(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        detail = f" ({error})" if str(error) else ""
        return f"out of memory{detail}; try a smaller --batch-size or --first-inputs"
    text = " ".join(str(error).split()) or type(error).__name__
    # The library speaks of arguments; here they are options.
    return ARGUMENT.sub(lambda found: f"--{found[1].replace('_', '-')} ", text)
