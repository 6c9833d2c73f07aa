"""Claim: what each feature of a rule adds to a request, through the ASGI interface, beside the plain rule.

Each adds at most 2 µs to what one plain rule by address adds (the Prometheus sink 3, OpenTelemetry what its SDK takes),
and any three of the others together at most 12 µs.

CPU time of interleaved rounds, the best of each.  The floor is one plain rule; the second column is what a feature adds
to it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from bench.harness import conditions, publish, row, table
from bench.http import PLENTY, SCOPE, App, bare, receive
from ratekeeper import Policy
from ratekeeper.adapters.asgi import RateLimitMiddleware

ROUNDS = 40
CALLS = 200
MANY = 100_000
PLAIN = "one plain rule"
RULE = {"name": "r0", "limit": f"{PLENTY}/minute"}
LEAKY = {"name": "r0", "limit": f"{PLENTY}/second leaky_bucket"}
PENALTY = {"after": 5, "within": "10 minutes", "block": "1 hour"}
COST = {"from": "header:X-Cost", "most": 9}
TIERS: dict[str, Any] = {
    "tiers": {"from": "header:X-Tier", "default": "free"}, "trusted_proxies": ["203.0.113.9/32"]
}  # fmt: skip
TIERED = {"name": "r0", "limit": {"free": f"{PLENTY}/minute", "paid": f"{PLENTY}/second"}}


def prometheus() -> Callable[[Any], None]:
    from prometheus_client import CollectorRegistry

    from ratekeeper.sinks.prometheus import PrometheusSink

    return PrometheusSink(CollectorRegistry())


def opentelemetry() -> Callable[[Any], None]:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    from ratekeeper.sinks.opentelemetry import OpenTelemetrySink

    return OpenTelemetrySink(MeterProvider([InMemoryMetricReader()]))


def logs() -> Callable[[Any], None]:
    from ratekeeper.sinks.log import LoggingSink

    logger = logging.Logger("bench")
    logger.addHandler(logging.NullHandler())
    return LoggingSink(logger)


def app(*rules: dict[str, Any], sinks: tuple[Any, ...] = (), **settings: Any) -> App:
    return RateLimitMiddleware(bare, Policy.parse({**settings, "rules": list(rules)}, sinks=sinks))


FEATURES: dict[str, Callable[[], App]] = {
    "no limit": lambda: bare,
    PLAIN: lambda: app(RULE),
    "shadow, a second rule": lambda: app(RULE, {**RULE, "name": "r1", "mode": "shadow"}),
    "exempt list": lambda: app({**RULE, "exempt": ["10.0.0.0/8", "192.168.0.0/16"]}),
    "penalty": lambda: app({**RULE, "penalty": PENALTY}),
    "leaky bucket": lambda: app(LEAKY),
    "cost from a header": lambda: app({**RULE, "cost": COST}),
    "problem+json": lambda: app(RULE, response={"body": "problem"}),
    "refused": lambda: app({"name": "r0", "limit": "1/day"}),
    "refused, problem+json": lambda: app({"name": "r0", "limit": "1/day"}, response={"body": "problem"}),
    "tiers": lambda: app(TIERED, **TIERS),
    "logging sink": lambda: app(RULE, sinks=(logs(),)),
    "refused, logging sink": lambda: app({"name": "r0", "limit": "1/day"}, sinks=(logs(),)),
    "Prometheus sink": lambda: app(RULE, sinks=(prometheus(),)),
    "OpenTelemetry sink": lambda: app(RULE, sinks=(opentelemetry(),)),
    f"{MANY:,} IPv4 clients": lambda: app(RULE),
    f"{MANY:,} IPv6 clients": lambda: app(RULE),
    "exempt list, penalty, Prometheus": lambda: app(
        {**RULE, "exempt": ["10.0.0.0/8"], "penalty": PENALTY}, sinks=(prometheus(),)
    ),
    "leaky bucket, cost, logging sink": lambda: app({**LEAKY, "cost": COST}, sinks=(logs(),)),
    "shadow, tiers, OpenTelemetry": lambda: app(
        TIERED, {**RULE, "name": "r1", "mode": "shadow"}, sinks=(opentelemetry(),), **TIERS
    ),
}  # fmt: skip


def clients(name: str) -> list[tuple[str, int]]:
    if "IPv4" in name:
        return [(f"{20 + (n >> 16)}.{n >> 8 & 255}.{n & 255}.7", 40_000) for n in range(MANY)]
    if "IPv6" in name:
        return [(f"2001:db8:{n >> 8:x}:{n & 255:x}::7", 40_000) for n in range(MANY)]
    return []


async def seconds(application: App, scopes: list[dict[str, Any]]) -> float:
    """CPU seconds a call."""
    from time import process_time

    async def send(message: Any) -> None:
        pass

    began = process_time()
    for scope in scopes:
        await application(scope, receive, send)
    return (process_time() - began) / len(scopes)


def measure(names: list[str]) -> dict[str, list[float]]:
    apps = {name: FEATURES[name]() for name in names}
    many = {name: clients(name) for name in names}
    samples: dict[str, list[float]] = {name: [] for name in names}
    headers = [*SCOPE["headers"], (b"x-cost", b"3"), (b"x-tier", b"paid")]  # type: ignore[misc]

    async def rounds() -> None:
        place = 0
        for name, addresses in many.items():
            for client in addresses:  # each has a counter
                await apps[name]({**SCOPE, "client": client}, receive, quiet)
        for _ in range(ROUNDS):
            place = (place + CALLS) % MANY
            for name, application in apps.items():
                here = many[name][place : place + CALLS] or [SCOPE["client"]] * CALLS
                scopes = [{**SCOPE, "headers": headers, "client": client} for client in here]
                samples[name].append(await seconds(application, scopes))

    async def quiet(message: Any) -> None:
        pass

    asyncio.run(rounds())
    return samples


def main() -> None:
    conditions()
    samples = measure(list(FEATURES))
    best = {name: min(each) for name, each in samples.items()}
    base, plain = best["no limit"], best[PLAIN]
    rows = [
        [name, f"{own * 1e6:.1f}", f"{(own - plain) * 1e6:+.1f}", f"{(own - base) / (plain - base):.2f}"]
        for name, own in best.items()
    ]
    table("What a feature adds to one plain rule", ["", "µs", "to the plain rule", "x plain rule"], rows)
    figures = [
        row(name, [1e6 * (own - base) for own in each], "µs", 1e6 * (plain - base)) for name, each in samples.items()
    ]
    publish("features", [each for each in figures if each["name"] != "no limit"])


if __name__ == "__main__":
    main()
