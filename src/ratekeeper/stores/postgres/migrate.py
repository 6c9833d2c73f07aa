"""What a Postgres store needs on its server: a schema, a table and functions.  Made by ``ratekeeper migrate``.

Every statement may run again: it creates what is missing and replaces functions.  A later version that changes what a
function takes gets a function of another name, so that processes of both versions work side by side.
"""

from __future__ import annotations

from importlib.resources import files
from time import monotonic

from ratekeeper.errors import InvalidStore, StoreUnavailable, shown
from ratekeeper.stores.options import shown_url
from ratekeeper.stores.postgres.connection import PostgresConnection, ServerError
from ratekeeper.stores.postgres.url import SCHEMES, PostgresSettings, expect_schema

VERSION = 1
TWINS = (
    "gcra",
    "fixed_window",
    "calendar_window",
    "first_use_window",
    "sliding_window",
    "sliding_log",
    "concurrency",
)
PATIENCE = 30.0  # seconds
LOCK = 7_248_161_302  # the number of an advisory lock: two migrations wait for each other


def statements(schema: str = "ratekeeper", *, logged: bool = False) -> str:
    """The whole of it, as a script for ``psql``."""
    expect_schema(schema, "schema")
    package = files("ratekeeper")
    tables = package.joinpath("stores", "postgres", "tables.sql").read_text("utf-8")
    if not logged:
        tables = tables.replace("CREATE TABLE", "CREATE UNLOGGED TABLE")
    sources = [tables]
    sources += [package.joinpath("algorithms", f"{name}.sql").read_text("utf-8") for name in TWINS]
    sources.append(package.joinpath("stores", "postgres", "decide.sql").read_text("utf-8"))
    script = "\n".join(
        [
            "CREATE SCHEMA IF NOT EXISTS ratekeeper;",
            *sources,
            f"COMMENT ON SCHEMA ratekeeper IS 'version {VERSION}';",
        ]
    )
    for words in ("SCHEMA IF NOT EXISTS ratekeeper", "SCHEMA ratekeeper"):
        script = script.replace(words, words.replace("ratekeeper", schema))
    return script.replace("ratekeeper.", f"{schema}.")


def grants(role: str, schema: str = "ratekeeper") -> str:
    """The least that the role of an application needs."""
    quoted = '"' + role.replace('"', '""') + '"'
    return (
        f"GRANT USAGE ON SCHEMA {schema} TO {quoted};\n"
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}.state TO {quoted};\n"
        f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO {quoted};\n"
    )


def script_for(url: str, *, logged: bool = False, role: str | None = None) -> str:
    """The statements of ``migrate`` for the schema that the URL names."""
    if url.partition("://")[0] not in SCHEMES:
        raise InvalidStore(f"migrate: expected postgresql://USER@HOST/DATABASE, got {shown_url(url, SCHEMES)}.")
    schema = PostgresSettings(url).schema
    if role is not None and ("\0" in role or not 0 < len(role.encode()) <= 63):
        raise InvalidStore(f"migrate: expected the name of a role, got {shown(role)}.")
    return statements(schema, logged=logged) + (grants(role, schema) if role else "")


def migrate(url: str, *, logged: bool = False, role: str | None = None) -> str:
    """Create or bring up to date what a store needs; the name of the store.  Raises StoreUnavailable."""
    script = script_for(url, logged=logged, role=role)
    settings = PostgresSettings(url)
    run_script(settings, script)
    return settings.shown


def run_script(settings: PostgresSettings, script: str) -> None:
    """Run a script in one transaction: all of it or nothing."""
    until = monotonic() + PATIENCE
    try:
        connection = MigrationConnection(settings, until)
        try:
            connection.pgconn.send_query(f"BEGIN; SELECT pg_advisory_xact_lock({LOCK}); {script} COMMIT;".encode())
            connection.finish(until)
        finally:
            connection.close()
    except TimeoutError:
        raise StoreUnavailable(settings.shown, f"gave no answer in {PATIENCE:g} seconds") from None
    except (OSError, ServerError) as error:
        raise StoreUnavailable(settings.shown, str(error)) from error


class MigrationConnection(PostgresConnection):
    """A connection to a server that need not have the schema yet."""

    def greet(self, until: float) -> None:
        """Nothing is expected of the server."""
