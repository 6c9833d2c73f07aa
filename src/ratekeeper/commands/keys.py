"""``ratekeeper keys``, ``peek`` and ``reset``: look into a store."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ratekeeper.commands.output import AS_JSON, mistakes, out, show_json

STORE = typer.Option("redis://localhost:6379/0", envvar="RATEKEEPER_STORE", help="Such as redis://localhost:6379/0.")
LIMIT = typer.Option(..., help="The limit it is counted under, as the rules write it.")
NAME = typer.Option(None, help="The name of the rule or limiter; by default the text of the limit.")


def keys(
    store: str = STORE,
    prefix: Annotated[str, typer.Option(help="What our keys begin with.")] = "rk",
    most: Annotated[int, typer.Option(min=1, help="Show at most so many.")] = 100,
    as_json: bool = AS_JSON,
) -> None:
    """Count the keys on a Redis store, and show some, with how long they live.

    Names of keys tell nobody who is counted: they are digests.

    \b
    ratekeeper keys --store redis://localhost:6379/0
    """
    with mistakes():
        found, total = scan(store, prefix, most)
    if as_json:
        show_json({"keys": total, "shown": [{"key": name, "expires_in": seconds} for name, seconds in found]})
        return
    for name, seconds in found:
        out.print(f"{seconds:10.3f} s  {name}", markup=False)
    out.print(f"{total} key{'s' if total != 1 else ''}", style="bold")


def scan(store: str, prefix: str, most: int) -> tuple[list[tuple[str, float]], int]:
    """Some keys with the seconds they live, and how many there are."""
    import asyncio

    from ratekeeper.errors import InvalidStore, StoreUnavailable
    from ratekeeper.stores.aio import converse, open_wire
    from ratekeeper.stores.flight import spoken
    from ratekeeper.stores.settings import Settings

    if store.startswith(("memory:", "shm:")):
        raise InvalidStore(
            "keys: expected a Redis store: one in memory has no names to show. Use /metrics or the dashboard."
        )
    settings = Settings(store)

    async def run() -> tuple[list[tuple[str, float]], int]:
        wire = await open_wire(settings.addresses[0], settings, lambda reply: None, lambda wire, why: None)

        async def ask(*words: bytes) -> Any:
            (reply,) = await converse(wire, spoken(*words), 1)
            if isinstance(reply, Exception):
                raise StoreUnavailable(settings.shown, f"refused {words[0].decode()}: {reply}")
            return reply

        try:
            if settings.password:
                user = [settings.username.encode()] if settings.username else []
                await ask(b"AUTH", *user, settings.password.encode())
            if settings.db:
                await ask(b"SELECT", b"%d" % settings.db)
            cursor, names, total, pattern = b"0", list[bytes](), 0, f"{prefix}*".encode()
            while True:
                cursor, part = await ask(b"SCAN", cursor, b"MATCH", pattern, b"COUNT", b"1000")
                total += len(part)
                names += part[: most - len(names)]
                if cursor == b"0":
                    break
            lives = [(await ask(b"PTTL", name)) / 1000 for name in names]
        finally:
            wire.close()
        return [(name.decode("latin-1"), life) for name, life in zip(names, lives, strict=True)], total

    try:
        return asyncio.run(run())
    except OSError as error:
        raise StoreUnavailable(settings.shown, str(error)) from error


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
    from ratekeeper.limiter import Limiter

    with mistakes():
        limiter = Limiter(limit, store=store, name=name)
        decision = limiter.peek(key)
        limiter.close()
    if as_json:
        from ratekeeper.service.keeper import told

        show_json(told(decision))
    else:
        show(decision, "would be ")
    if not decision.allowed:
        raise typer.Exit(1)


def reset(
    key: Annotated[str, typer.Argument(help="Who is counted.")],
    limit: str = LIMIT,
    name: str | None = NAME,
    store: str = STORE,
) -> None:
    """Forget what a key has used.

    \b
    ratekeeper reset user:42 --limit 100/minute --name api --store redis://localhost:6379/0
    """
    from ratekeeper.limiter import Limiter

    with mistakes():
        limiter = Limiter(limit, store=store, name=name)
        limiter.reset(key)
        limiter.close()
    out.print("forgotten", style="green")
