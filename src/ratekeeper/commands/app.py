"""``ratekeeper``: the table of commands.  Each command is a thin layer over the library."""

from __future__ import annotations

from typing import Annotated

import typer

from ratekeeper.commands.check import check
from ratekeeper.commands.doctor import doctor
from ratekeeper.commands.explain import explain
from ratekeeper.commands.info import info
from ratekeeper.commands.init import init
from ratekeeper.commands.keys import keys, peek, reset
from ratekeeper.commands.replay import ReplayCommand, replay
from ratekeeper.commands.serve import serve
from ratekeeper.commands.simulate import simulate
from ratekeeper.commands.trial import trial

app = typer.Typer(
    name="ratekeeper",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

SERVICE = "The service"
RULES = "Rules"
STORE = "Stores"
LAB = "The lab"

app.command(rich_help_panel=SERVICE)(serve)
app.command(rich_help_panel=SERVICE)(doctor)
app.command(rich_help_panel=RULES)(init)
app.command(rich_help_panel=RULES)(check)
app.command(rich_help_panel=RULES)(explain)
app.command("try", rich_help_panel=RULES)(trial)
app.command(rich_help_panel=STORE)(keys)
app.command(rich_help_panel=STORE)(peek)
app.command(rich_help_panel=STORE)(reset)
app.command(rich_help_panel=LAB)(simulate)
app.command(rich_help_panel=LAB, cls=ReplayCommand)(replay)
app.command()(info)


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
