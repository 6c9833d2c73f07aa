"""``ratekeeper migrate``: what a Postgres store needs on its server."""

from __future__ import annotations

from typing import Annotated

import typer

from ratekeeper.commands.output import out, report_errors


def migrate(
    store: Annotated[
        str,
        typer.Argument(metavar="URL", envvar="RATEKEEPER_STORE", help="The store, postgresql://USER@HOST/DATABASE."),
    ],
    logged: Annotated[
        bool, typer.Option("--logged", help="Write the table to the log: counts survive a crash, writes cost more.")
    ] = False,
    role: Annotated[
        str | None, typer.Option(help="Role to grant the least rights to: that of the application.")
    ] = None,
    sql: Annotated[bool, typer.Option("--sql", help="Print the statements and run nothing.")] = False,
) -> None:
    """Create the schema, the table and the functions of a Postgres store, or bring them up to date.

    It may run again at any time, while applications use the store.  Run it as the role that shall own the schema.

    \b
    ratekeeper migrate postgresql://admin@localhost/app --role web
    ratekeeper migrate postgresql://localhost/app --sql > ratekeeper.sql
    """
    from ratekeeper.errors import InvalidStore

    with report_errors():
        try:
            from ratekeeper.stores.postgres.migrate import migrate as run
            from ratekeeper.stores.postgres.migrate import script_for
        except ImportError as error:
            raise InvalidStore(
                f"migrate: expected psycopg to be installed, got {error}. Run: pip install 'ratekeeper[postgres]'"
            ) from error
        if sql:
            typer.echo(script_for(store, logged=logged, role=role))
            return
        ready = run(store, logged=logged, role=role)
    out.print(f"{ready}: ready", markup=False)
