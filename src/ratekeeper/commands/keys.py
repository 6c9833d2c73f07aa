"""``ratekeeper keys``, ``peek`` and ``reset``: look into a store."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from ratekeeper.commands.output import AS_JSON, mistakes, out, show_json

if TYPE_CHECKING:
    from ratekeeper.limiter import Limiter

STORE = typer.Option("redis://localhost:6379/0", envvar="RATEKEEPER_STORE", help="Such as redis://localhost:6379/0.")
LIMIT = typer.Option(..., help="The limit it is counted under, as the rules write it.")
NAME = typer.Option(None, help="The name of the rule or limiter; by default the text of the limit.")


def keys(
    store: str = STORE,
    prefix: Annotated[str, typer.Option(help="What our keys begin with.")] = "rk",
    most: Annotated[int, typer.Option(min=1, help="Show at most so many.")] = 100,
    as_json: bool = AS_JSON,
) -> None:
    """Count the keys of a store; show some with how long they live, or the tables of shared memory.

    Names of keys tell nobody who is counted: they are digests.

    \b
    ratekeeper keys --store redis://localhost:6379/0
    ratekeeper keys --store shm://api
    """
    from ratekeeper.stores.inspect import census

    with mistakes(as_json):
        found = census(store, prefix, most)
    if as_json:
        show_json({
            "keys": found.keys,
            "shown": [{"key": name, "expires_in": seconds} for name, seconds in found.some],
            "tables": [{"name": name, "limit": limit, "keys": keys} for name, limit, keys in found.tables],
        })  # fmt: skip
        return
    for name, seconds in found.some:
        out.print(f"{seconds:10.3f} s  {name}", markup=False)
    for name, limit, keys in found.tables:
        out.print(f"{keys:10}  {name}  ({limit})", markup=False)
    out.print(f"{found.keys} key{'s' if found.keys != 1 else ''}", style="bold")


@contextmanager
def opened(limit: str, name: str | None, store: str, as_json: bool) -> Iterator[Limiter]:
    """A limiter on a store that must answer: what a stand-in would say is of no use here."""
    from ratekeeper.errors import InvalidStore
    from ratekeeper.limiter import Limiter

    with mistakes(as_json):
        if store.startswith("memory:"):
            raise InvalidStore("store: expected redis:// or shm://, got memory://, which ends with this command.")
        logging.getLogger("ratekeeper").addHandler(logging.NullHandler())  # what is wrong is said once, at the end
        with Limiter(limit, store=store, name=name) as limiter:
            yield limiter


def peek(
    key: Annotated[str, typer.Argument(help="Who is counted.")],
    limit: str = LIMIT,
    name: str | None = NAME,
    store: str = STORE,
    as_json: bool = AS_JSON,
) -> None:
    """Say how a key stands; takes nothing.  Exit code 1: its next call would be refused.

    \b
    ratekeeper peek user:42 --limit 100/minute --name api --store redis://localhost:6379/0
    """
    from ratekeeper.commands.trial import show
    from ratekeeper.decision import decision_json
    from ratekeeper.errors import StoreUnavailable

    with opened(limit, name, store, as_json) as limiter:
        decision = limiter.peek(key)
        if decision.reason:
            raise StoreUnavailable(store.rpartition("@")[2], decision.reason)
    if as_json:
        show_json(decision_json(decision))
    else:
        show(decision, "would be ")
    if not decision.allowed:
        raise typer.Exit(1)


def reset(
    key: Annotated[str, typer.Argument(help="Who is counted.")],
    limit: str = LIMIT,
    name: str | None = NAME,
    store: str = STORE,
    as_json: bool = AS_JSON,
) -> None:
    """Forget what a key has used.

    \b
    ratekeeper reset user:42 --limit 100/minute --name api --store redis://localhost:6379/0
    """
    with opened(limit, name, store, as_json) as limiter:
        limiter.reset(key)
    if as_json:
        show_json({"reset": True})
    else:
        out.print("forgotten", style="green")
