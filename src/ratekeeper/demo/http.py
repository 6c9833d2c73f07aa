"""The second scene of the demonstration: a rules file before an application, and a change of it while it runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from ratekeeper.adapters.asgi import RateLimitMiddleware
from ratekeeper.rules.policy import Policy
from ratekeeper.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator

RULES = '[[rules]]\nname = "api"\nlimit = "{}"\n'
SHOWN = (b"x-ratelimit-remaining", b"ratelimit", b"retry-after")


async def application(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


def answer(app: RateLimitMiddleware) -> str:
    """Ask once, by way of ASGI, and say what came back."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/",
        "query_string": b"",
        "headers": [],
        "client": ("192.0.2.1", 1),
    }
    asyncio.run(app(scope, None, send))  # type: ignore[arg-type]
    fields = dict(sent[0]["headers"])
    told = [f"{name.decode()}: {fields[name].decode()}" for name in SHOWN if name in fields]
    return f"  GET /  {sent[0]['status']}  {'  '.join(told)}"


def scene() -> Iterator[str]:
    """The lines of the scene; it takes no time."""
    clock = FakeClock()
    with TemporaryDirectory() as folder:
        path = Path(folder, "rules.toml")
        path.write_text(RULES.format("3/minute"))
        app = RateLimitMiddleware(application, Policy.load(path, clock=clock))
        yield "A rules file before an application: limit = '3/minute' for each address."
        yield from [answer(app) for _ in range(4)]
        clock.advance(20)
        yield "20 seconds later:"
        yield from [answer(app) for _ in range(2)]
        path.write_text(RULES.format("3/minute burst 5"))
        app.policy.reload()
        yield "The file now says '3/minute burst 5'; reloaded while running, and what was used still counts:"
        yield from [answer(app) for _ in range(3)]
