"""The command line, `portable-spdnn`: one file per command."""

from __future__ import annotations

import os
import re
import sys
import traceback
import warnings
from contextlib import suppress

USAGE_ERROR = 2
INTERRUPTED = 130
# Arguments that errors of the library name, as in "was neurons=1024 meant?".
ARGUMENT = re.compile(r"\b(neurons|layers|bias|inputs|save_calibration)=(?=\w)")


def main() -> None:
    """Run the command line and exit: 0 done, 1 wrong categories, 2 usage or input error.

    An interrupted command exits with 130. Under an MPI launcher a rank that fails ends the whole
    job: the others would wait for it.
    """
    rank: int | None = None
    name = "portable-spdnn"
    try:
        _open_missing_streams()
        from portable_spdnn.mpi.ranks import launched_rank, launched_ranks

        rank = launched_rank() if launched_ranks() > 1 else None
        name = name if rank is None else f"{name}: rank {rank}"
        warnings.showwarning = lambda warning, *_: print(
            f"{name}: warning: {warning}", file=sys.stderr
        )
        code, message = _run(rank)
    except KeyboardInterrupt:
        code, message = INTERRUPTED, "interrupted"
    if message:
        with suppress(OSError):
            print(f"{name}: {message}", file=sys.stderr, flush=True)
    if code and rank is not None:
        from portable_spdnn.mpi.ranks import abort, others_may_wait

        # What all ranks agreed on ends them in order; what one of them met alone does not.
        if others_may_wait():
            abort(code)
    sys.exit(code)


def _run(rank: int | None) -> tuple[int, str]:
    """Run the command that was asked for; return the exit code, and what is left to say."""
    import typer

    from portable_spdnn.cli.app import app
    from portable_spdnn.errors import SpdnnError
    from portable_spdnn.mpi.ranks import Ranks, others_may_wait

    arguments = sys.argv[1:] or ["--help"]
    try:
        code = app(arguments, prog_name="portable-spdnn", standalone_mode=False)
        if rank is not None and not code and others_may_wait():
            # It was asked for help, say. Where others were asked to run, they wait for it here.
            with Ranks() as ranks:
                ranks.require_equal({"the command": " ".join(arguments)})
        sys.stdout.flush()
    except typer.TyperException as error:  # of the options: one unknown, missing or ill-formed
        return USAGE_ERROR, f"error: {_usage_error(error)}"
    except (BrokenPipeError, SystemExit):  # Typer makes the one of the other
        # Whoever read the output has left; there is nobody to tell.
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
        return USAGE_ERROR, ""
    except (SpdnnError, OSError, MemoryError) as error:
        return USAGE_ERROR, f"error: {_one_line(error)}"
    except Exception:
        if rank is None:
            raise
        traceback.print_exc()
        return 1, "failed"
    if code == INTERRUPTED:
        return code, "interrupted"
    return code if isinstance(code, int) else 0, ""


def _open_missing_streams() -> None:
    """Open the null device in place of standard streams that the caller has closed.

    Else the next file to be opened would take the place of the standard output, and what is
    printed would go there.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115


def _usage_error(error: Exception) -> str:
    """Return in a line what is wrong with the options, and where they are told."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "portable-spdnn"
    text = " ".join(getattr(error, "format_message", error.__str__)().split())
    return f"{text.rstrip('.')}; see {command} --help"


def _one_line(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        detail = f" ({error})" if str(error) else ""
        return f"out of memory{detail}; try a smaller --batch-size or --first-inputs"
    said = str(error)
    if isinstance(error, OSError) and error.strerror:
        said = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    text = " ".join(said.split()) or type(error).__name__
    # The library speaks of arguments; here they are options.
    return ARGUMENT.sub(lambda found: f"--{found[1].replace('_', '-')} ", text)
