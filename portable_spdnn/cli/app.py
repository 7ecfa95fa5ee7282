"""The commands, gathered."""

from __future__ import annotations

import typer

from portable_spdnn.cli.backends import backends
from portable_spdnn.cli.challenge import challenge
from portable_spdnn.cli.compare import compare
from portable_spdnn.cli.compile import compile_
from portable_spdnn.cli.convert import convert
from portable_spdnn.cli.dlmc import dlmc
from portable_spdnn.cli.generate import generate
from portable_spdnn.cli.model import model
from portable_spdnn.cli.run import run

app = typer.Typer(
    name="portable-spdnn",
    help="Sparse deep neural network inference, portable over backends.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        from portable_spdnn import __version__

        typer.echo(f"portable-spdnn {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    context: typer.Context,
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    from portable_spdnn.errors import InputError
    from portable_spdnn.mpi.ranks import launched_ranks

    command = context.invoked_subcommand
    if launched_ranks() > 1 and command != "run":
        raise InputError(
            f"{command}: each of the {launched_ranks()} ranks would do all of it; of the commands "
            "only run shares its work among ranks"
        )


app.command()(run)
app.command()(compare)
app.command()(challenge)
app.command()(dlmc)
app.command()(model)
app.command()(backends)
app.command()(convert)
app.command("compile")(compile_)
app.add_typer(generate, name="generate")
