"""``ratekeeper keys``, ``peek`` and ``reset``: inspect a store."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from ratekeeper.commands.output import AS_JSON, out, print_decision, print_json, report_errors

if TYPE_CHECKING:
    from ratekeeper.limiter import Limiter

STORE = typer.Option(
    "redis://localhost:6379/0",
    metavar="URL",
    envvar="RATEKEEPER_STORE",
    help="URL of the store, redis://HOST:PORT/0, postgresql://HOST/DATABASE or shm://NAME.",
)
Key = Annotated[str, typer.Argument(help="The key that is counted, such as user:42.")]
LimitText = Annotated[str, typer.Option("--limit", help="The limit of the key, written as in the rules.")]
Name = Annotated[
    str | None, typer.Option("--name", help="Name of the rule or limiter; the text of the limit by default.")
]


def keys(
    store: str = STORE,
    prefix: Annotated[str, typer.Option(help="Prefix of the keys on Redis.")] = "rk",
    most: Annotated[int, typer.Option(min=1, help="Show at most N keys.")] = 100,
    as_json: bool = AS_JSON,
) -> None:
    """Count the keys of a store, and show some of them with the time until they expire.

    For shared memory, show its tables instead.  Names of keys are digests, so they reveal no client.

    \b
    ratekeeper keys --store redis://localhost:6379/0
    ratekeeper keys --store shm://api
    """
    from ratekeeper.stores.inspect import census

    with report_errors(as_json):
        contents = census(store, prefix, most)
    if as_json:
        print_json({
            "keys": contents.keys,
            "shown": [{"key": name, "expires_in": seconds} for name, seconds in contents.some],
            "tables": [{"name": name, "limit": limit, "keys": count} for name, limit, count in contents.tables],
        })  # fmt: skip
        return
    for name, seconds in contents.some:
        out.print(f"{seconds:10.3f} s  {name}", markup=False)
    for name, limit, count in contents.tables:
        out.print(f"{count:10}  {name}  ({limit})", markup=False)
    out.print(f"{contents.keys} key{'s' if contents.keys != 1 else ''}", style="bold")


@contextmanager
def open_limiter(limit: str, name: str | None, store: str, as_json: bool) -> Iterator[Limiter]:
    """Open a limiter on a store that outlives this command."""
    from ratekeeper.errors import InvalidStore
    from ratekeeper.limiter import Limiter

    with report_errors(as_json):
        if store.startswith("memory:"):
            raise InvalidStore(
                "store: expected redis://, postgresql:// or shm://, got memory://, which ends with this command."
            )
        logging.getLogger("ratekeeper").addHandler(logging.NullHandler())  # errors are printed once, at the end
        with Limiter(limit, store=store, name=name) as limiter:
            yield limiter


def peek(key: Key, limit: LimitText, name: Name = None, store: str = STORE, as_json: bool = AS_JSON) -> None:
    """Show how much a key has left, without charging it.  Exit code 1: its next call would be refused.

    \b
    ratekeeper peek user:42 --limit 100/minute --name api --store redis://localhost:6379/0
    """
    from ratekeeper.decision import decision_json
    from ratekeeper.errors import StoreUnavailable

    with open_limiter(limit, name, store, as_json) as limiter:
        decision = limiter.peek(key)
        if decision.reason:  # the fallback decided, which says nothing about the store
            raise StoreUnavailable(store.rpartition("@")[2], decision.reason)
    if as_json:
        print_json(decision_json(decision))
    else:
        print_decision(decision, "would be ")
    if not decision.allowed:
        raise typer.Exit(1)


def reset(key: Key, limit: LimitText, name: Name = None, store: str = STORE, as_json: bool = AS_JSON) -> None:
    """Forget what a key has used.

    \b
    ratekeeper reset user:42 --limit 100/minute --name api --store redis://localhost:6379/0
    """
    with open_limiter(limit, name, store, as_json) as limiter:
        limiter.reset(key)
    if as_json:
        print_json({"reset": True})
    else:
        out.print("reset", style="green")
