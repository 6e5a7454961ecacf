"""The `frostline` command: subcommands, and how a run ends.

A FrostlineError becomes one line on stderr and exit code 2, Ctrl-C a quiet 130; anything else is a bug and keeps its
traceback. Importing this module imports no torch.
"""

from __future__ import annotations

import logging
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from frostline import __version__
from frostline.cli import bench, demo, generate, inspect, train
from frostline.errors import FrostlineError

USAGE_ERROR = 2
INTERRUPTED = 130

EPILOG = """Start with

frostline demo

frostline generate --chat "Why is the sky blue?"

frostline COMMAND --help
"""


class FrostlineGroup(TyperGroup):
    """Turns the errors that a user can act on into one line."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except FrostlineError as error:
            typer.echo("error: " + " ".join(str(error).split()), err=True)
            raise typer.Exit(USAGE_ERROR) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    cls=FrostlineGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EPILOG,
    rich_markup_mode="rich",
)
app.command(name="demo", epilog=demo.EPILOG)(demo.demo)
app.command(name="generate", epilog=generate.EPILOG)(generate.generate)
app.command(name="inspect", epilog=inspect.EPILOG)(inspect.inspect)
app.add_typer(bench.app, name="bench")
app.add_typer(train.app, name="train")


@app.callback()
def frostline(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    """Gemma 4 with Frozen-KV multi-token prediction: several tokens per forward, the same tokens as without."""
    if version:
        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    """The console script."""
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    try:
        app()
    except KeyboardInterrupt:
        # Ctrl-C outside of a command, while Python still imports or already exits.
        sys.exit(INTERRUPTED)
