"""The second part of the demonstration: a rules file in front of an application, reloaded while it runs."""

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
SHOWN_HEADERS = (b"x-ratelimit-remaining", b"ratelimit", b"retry-after")
SCOPE = {
    "type": "http",
    "method": "GET",
    "path": "/",
    "query_string": b"",
    "headers": [],
    "client": ("192.0.2.1", 1),
}


async def application(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


def get(app: RateLimitMiddleware) -> str:
    """Send one request through ASGI, and describe the response."""
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    asyncio.run(app(dict(SCOPE), None, send))  # type: ignore[arg-type]
    status, headers = messages[0]["status"], dict(messages[0]["headers"])
    fields = [f"{name.decode()}: {headers[name].decode()}" for name in SHOWN_HEADERS if name in headers]
    return f"  GET /  {status}  {'  '.join(fields)}"


def http_demo() -> Iterator[str]:
    """Yield the lines of this part.  It runs on a fake clock and takes no time."""
    clock = FakeClock()
    with TemporaryDirectory() as folder:
        path = Path(folder, "rules.toml")
        path.write_text(RULES.format("3/minute"))
        app = RateLimitMiddleware(application, Policy.load(path, clock=clock))
        yield "A rules file in front of an application: limit = '3/minute' for each address."
        yield from [get(app) for _ in range(4)]
        clock.advance(20)
        yield "20 seconds later:"
        yield from [get(app) for _ in range(2)]
        path.write_text(RULES.format("3/minute burst 5"))
        app.policy.reload()
        yield "The file now says '3/minute burst 5'. It was reloaded while running, and earlier calls still count:"
        yield from [get(app) for _ in range(3)]
