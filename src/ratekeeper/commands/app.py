"""``ratekeeper``: the table of commands.  Each command is a thin layer over the library."""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ratekeeper.commands.check import check
from ratekeeper.commands.demo import demo
from ratekeeper.commands.digest import digest
from ratekeeper.commands.doctor import doctor
from ratekeeper.commands.explain import explain
from ratekeeper.commands.info import info
from ratekeeper.commands.init import init
from ratekeeper.commands.keys import keys, peek, reset
from ratekeeper.commands.migrate import migrate
from ratekeeper.commands.output import BROKEN_PIPE
from ratekeeper.commands.plain_types import PlainCommand, PlainTypes
from ratekeeper.commands.replay import ReplayCommand, replay
from ratekeeper.commands.serve import serve
from ratekeeper.commands.simulate import simulate
from ratekeeper.commands.top import top
from ratekeeper.commands.trial import trial


class Commands(PlainTypes, TyperGroup):
    """Ends quietly when its reader has seen enough: ``ratekeeper info | head -1``."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the flush at exit fails again
            raise typer.Exit(BROKEN_PIPE) from None


app = typer.Typer(
    name="ratekeeper",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

SERVICE = "The service"
RULES = "Rules"
STORE = "Stores"
LAB = "The lab"

command = partial(app.command, cls=PlainCommand)

command(rich_help_panel=SERVICE)(serve)
command(rich_help_panel=SERVICE)(top)
command(rich_help_panel=SERVICE)(digest)
command(rich_help_panel=SERVICE)(doctor)
command(rich_help_panel=RULES)(init)
command(rich_help_panel=RULES)(check)
command(rich_help_panel=RULES)(explain)
command("try", rich_help_panel=RULES)(trial)
command(rich_help_panel=STORE)(keys)
command(rich_help_panel=STORE)(peek)
command(rich_help_panel=STORE)(reset)
command(rich_help_panel=STORE)(migrate)
command(rich_help_panel=LAB)(demo)
command(rich_help_panel=LAB)(simulate)
command(rich_help_panel=LAB, cls=ReplayCommand)(replay)
command()(info)


def print_version(wanted: bool) -> None:
    if wanted:
        from ratekeeper.version import __version__

        typer.echo(f"ratekeeper {__version__}")
        raise typer.Exit


@app.callback()
def ratekeeper(
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Exact rate limiting: run the service, check rules, inspect stores, and try limits on traffic."""
