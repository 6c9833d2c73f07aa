"""Claim: what a limit adds to a request, in process, through the ASGI interface: no sockets, state in memory.

One rule by address adds less than every peer; ten rules of which three match, at most 2.5 times that; a 429 costs no
more than an allowed response; a thousand rules are matched at no more than 3 times the cost of ten.

CPU time of interleaved rounds, the best of each.  Peers that are middleware stand before the same bare application
as we do; those that need a framework are measured in FastAPI, beside our middleware and our dependency.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from bench.harness import conditions, record, table
from ratekeeper import Policy, Request
from ratekeeper.adapters.asgi import RateLimitMiddleware
from ratekeeper.rules.match import Index, Pattern

ROUNDS = 100
CALLS = 100  # short rounds: some of them are not interrupted, on a busy machine too
PLENTY = 1_000_000_000
App = Callable[..., Awaitable[None]]

SCOPE = {
    "type": "http",
    "asgi": {"version": "3.0"},
    "http_version": "1.1",
    "method": "GET",
    "scheme": "http",
    "path": "/items/7",
    "raw_path": b"/items/7",
    "root_path": "",
    "query_string": b"",
    "headers": [(b"host", b"example.org"), (b"user-agent", b"bench"), (b"accept", b"*/*")],
    "client": ("203.0.113.9", 40_000),
    "server": ("127.0.0.1", 80),
}


async def bare(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def receive() -> dict[str, Any]:
    return {"type": "http.request", "body": b"", "more_body": False}


def rules(*own: dict[str, Any]) -> dict[str, Any]:
    return {
        "identity": {"user": "header:User-Agent"},
        "rules": [{"name": f"r{n}", **each} for n, each in enumerate(own)],
    }


ONE = rules({"limit": f"{PLENTY}/minute"})
TEN = rules(
    {"limit": f"{PLENTY}/minute"},
    {"match": "GET /items/**", "by": "user", "limit": f"{PLENTY}/hour"},
    {"match": "/items/{id}", "by": "all", "limit": f"{PLENTY}/second"},
    *[{"match": f"POST /other-{number}/*", "limit": "1/minute"} for number in range(7)],
)
NONE = rules({"limit": "1/day"})


def asgi_ratelimit() -> App:
    from ratelimit import RateLimitMiddleware as Peer
    from ratelimit import Rule
    from ratelimit.backends.simple import MemoryBackend

    async def who(scope: Any) -> tuple[str, str]:
        return scope["client"][0], "default"

    return Peer(bare, who, MemoryBackend(), {r"^/": [Rule(minute=PLENTY)]})


def traffik() -> App:
    from traffik import HTTPThrottle, InMemoryBackend
    from traffik.middleware import MiddlewareThrottle, ThrottleMiddleware

    backend = InMemoryBackend()
    throttle = HTTPThrottle(uid="bench", rate=f"{PLENTY}/min", backend=backend)
    return ThrottleMiddleware(bare, middleware_throttles=[MiddlewareThrottle(throttle)], backend=backend)


def fastapi_app(**route: Any) -> Any:
    from fastapi import FastAPI

    app = FastAPI(openapi_url=None)

    @app.get("/items/{item}", **route)
    async def items(item: int) -> dict[str, int]:
        return {"item": item}

    return app


def fastapi_ours() -> App:
    app = fastapi_app()
    app.add_middleware(RateLimitMiddleware, policy=Policy.parse(ONE))
    return app  # type: ignore[no-any-return]


def fastapi_dependency() -> App:
    from fastapi import Depends

    from ratekeeper.adapters.fastapi import RateLimit

    return fastapi_app(dependencies=[Depends(RateLimit(f"{PLENTY}/minute"))])  # type: ignore[no-any-return]


def fastapi_limiter() -> App:
    from fastapi import Depends
    from fastapi_limiter.depends import RateLimiter
    from pyrate_limiter import Duration, Limiter, Rate

    return fastapi_app(dependencies=[Depends(RateLimiter(Limiter(Rate(10_000_000, Duration.MINUTE))))])  # type: ignore[no-any-return]


def slowapi() -> App:
    import fastapi
    from slowapi import Limiter
    from slowapi.middleware import SlowAPIASGIMiddleware
    from slowapi.util import get_remote_address

    app = fastapi.FastAPI(openapi_url=None)
    app.state.limiter = limiter = Limiter(key_func=get_remote_address, headers_enabled=True)
    app.add_middleware(SlowAPIASGIMiddleware)

    @app.get("/items/{item}")
    @limiter.limit(f"{PLENTY}/minute")
    async def items(request: fastapi.Request, response: fastapi.Response, item: int) -> dict[str, int]:
        return {"item": item}

    return app


def throttled_py() -> App:
    import fastapi
    from throttled.asyncio.contrib.fastapi import Limiter, RateLimitMiddleware, get_remote_address

    app = fastapi.FastAPI(openapi_url=None)
    app.add_middleware(RateLimitMiddleware)
    limiter = Limiter(f"{PLENTY}/m", key_func=get_remote_address)

    async def items(request: fastapi.Request, item: int) -> dict[str, int]:
        return {"item": item}

    app.get("/items/{item}")(limiter.limit()(items))
    return app


BEFORE_A_BARE_APPLICATION: dict[str, Callable[[], App]] = {
    "no limit": lambda: bare,
    "ratekeeper, one rule": lambda: RateLimitMiddleware(bare, Policy.parse(ONE)),
    "ratekeeper, ten rules, three match": lambda: RateLimitMiddleware(bare, Policy.parse(TEN)),
    "ratekeeper, refused": lambda: RateLimitMiddleware(bare, Policy.parse(NONE)),
    "asgi-ratelimit": asgi_ratelimit,
    "traffik": traffik,
}
IN_FASTAPI: dict[str, Callable[[], App]] = {
    "no limit": fastapi_app,
    "ratekeeper, middleware": fastapi_ours,
    "ratekeeper, dependency": fastapi_dependency,
    "fastapi-limiter": fastapi_limiter,
    "throttled-py": throttled_py,
    "slowapi": slowapi,
}


async def seconds(app: App, statuses: set[int]) -> float:
    """CPU seconds a call."""

    async def send(message: Any) -> None:
        if "status" in message:
            statuses.add(message["status"])

    began = time.process_time()
    for _ in range(CALLS):
        await app(dict(SCOPE), receive, send)
    return (time.process_time() - began) / CALLS


def race(title: str, makers: dict[str, Callable[[], App]]) -> None:
    apps: dict[str, App] = {}
    for name, make in makers.items():
        try:
            apps[name] = make()
        except ImportError as error:
            print(f"{name}: not here ({error})")
    took: dict[str, list[float]] = {name: [] for name in apps}
    statuses: dict[str, set[int]] = {name: set() for name in apps}

    async def rounds() -> None:
        for _ in range(ROUNDS):
            for name, app in apps.items():
                took[name].append(await seconds(app, statuses[name]))

    asyncio.run(rounds())
    best = {name: min(times) for name, times in took.items()}
    base = best["no limit"]
    added = {name: [(own - base) * 1e6 for own in times] for name, times in took.items() if name != "no limit"}
    record(title, "µs", added)
    ours = next(best[name] - base for name in best if name.startswith("ratekeeper"))
    rows = []
    for name, own in best.items():
        times = f"{(own - base) / ours:.2f}" if name != "no limit" else ""
        rows.append([name, f"{own * 1e6:.1f}", f"{(own - base) * 1e6:.1f}", times, *map(str, [sorted(statuses[name])])])
    table(title, ["", "µs", "adds µs", "x ours", "answers"], rows)


def matching() -> None:
    """Many paths, each seen for the first time: the tree is walked, nothing is remembered."""
    indexes = {
        count: Index([[Pattern("/**")], *[[Pattern(f"GET /api/v{n % 7}/part-{n}/{{id}}")] for n in range(count)]])
        for count in (10, 100, 1000)
    }
    requests = [Request("GET", f"/api/v{n % 7}/part-{n % 10}/{n}") for n in range(2000)]
    best = dict.fromkeys(indexes, float("inf"))
    for _ in range(ROUNDS):
        for count, index in indexes.items():
            index.cache.clear()
            began = time.process_time()
            for request in requests:
                index.find(request)
            best[count] = min(best[count], (time.process_time() - began) / len(requests))
    rows = [[f"{count} rules", f"{own * 1e6:.2f}", f"{own / best[10]:.2f}"] for count, own in best.items()]
    table("Finding the rules of a path never seen before", ["", "µs", "x ten rules"], rows)


def main() -> None:
    conditions()
    race("Before a bare ASGI application", BEFORE_A_BARE_APPLICATION)
    race("In FastAPI", IN_FASTAPI)
    matching()


if __name__ == "__main__":
    main()
