"""Shapes of traffic: which client calls when.  The calls come from a seed, so the same options give the same calls.

A shape is scaled by the limit under test: at a load of 1.0 each client calls at exactly the limit's rate.  Instants
are whole microseconds since 0, where the first window begins.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from math import cos, pi
from random import Random
from typing import TYPE_CHECKING

from ratekeeper.errors import InvalidInput, did_you_mean, shown
from ratekeeper.limit import Limit
from ratekeeper.stores.options import is_number
from ratekeeper.units import SECOND, to_micros

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ratekeeper.units import Seconds

    Calls = Iterable[tuple[int, int]]  # the instant, and the number of the client

MOST_CALLS = 50_000_000


@dataclass(frozen=True)
class ClientRetry:
    """How a refused client retries: up to ``attempts`` times.

    It waits ``every`` microseconds, or exactly ``retry_after`` if ``every`` is 0.
    """

    attempts: int
    every: int = 0


@dataclass(frozen=True)
class Traffic:
    """Calls in the order of time: client ``clients[who[i]]`` calls at ``times[i]`` for ``costs[i]`` (None: 1 each)."""

    name: str
    times: array[int]
    who: array[int]
    clients: tuple[str, ...]
    span: int  # microseconds; all calls come before it
    costs: array[int] | None = None
    retry: ClientRetry | None = None
    seed: int | None = None
    origin: int = 0  # the instant of time 0, in microseconds since 1970: windows begin at multiples of their period

    def __len__(self) -> int:
        return len(self.times)

    def __repr__(self) -> str:
        return f"Traffic({self.name!r}, {len(self)} calls by {len(self.clients)} clients in {self.span / SECOND:g} s)"


@dataclass(frozen=True)
class Scale:
    """What a shape is scaled by."""

    limit: Limit
    load: float
    clients: int
    span: int
    random: Random

    @property
    def gap(self) -> float:
        """Microseconds between two calls of one client at this load."""
        return self.limit.micros / (self.limit.count * self.load)


@dataclass(frozen=True)
class Shape:
    """A shape of traffic: ``calls`` makes the calls; the other fields are its defaults."""

    about: str
    calls: Callable[[Scale], Calls]
    load: float = 1.2
    clients: int = 10
    retry: Callable[[Limit], ClientRetry] | None = None


def steady(scale: Scale) -> Iterator[tuple[int, int]]:
    for client in range(scale.clients):
        start = scale.gap * client / scale.clients
        for number in range(int((scale.span - start) / scale.gap) + 1):
            yield int(start + number * scale.gap), client


def burst(scale: Scale) -> Iterator[tuple[int, int]]:
    """Silence, then the calls of two periods within a hundredth of a period."""
    limit, random = scale.limit, scale.random
    for client in range(scale.clients):
        for start in range(0, scale.span, 2 * limit.micros):
            at = start + random.random() * limit.micros
            for _ in range(round(2 * limit.count * scale.load)):
                yield int(at + random.random() * limit.micros / 100), client


def on_off(scale: Scale) -> Iterator[tuple[int, int]]:
    """Twice the load for a period, then silence for a period; each client has its own phase."""
    period, gap = scale.limit.micros, scale.gap / 2
    for client in range(scale.clients):
        phase = scale.random.random() * 2 * period
        for start in range(-2 * period, scale.span, 2 * period):
            for number in range(int(period / gap)):
                yield int(start + phase + number * gap), client


def poisson(scale: Scale) -> Iterator[tuple[int, int]]:
    for client in range(scale.clients):
        at = scale.random.expovariate(1 / scale.gap)
        while at < scale.span:
            yield int(at), client
            at += scale.random.expovariate(1 / scale.gap)


def diurnal(scale: Scale) -> Iterator[tuple[int, int]]:
    """A day compressed into the span: few calls at both ends, ``load`` times the limit's rate at noon."""
    for at, client in poisson(scale):
        if scale.random.random() < 0.55 - 0.45 * cos(2 * pi * at / scale.span):
            yield at, client


def boundary(scale: Scale) -> Iterator[tuple[int, int]]:
    """An attack on fixed windows: a full count just before a boundary, and another one just after it."""
    limit = scale.limit
    count = round(limit.count * scale.load)
    edge = max(1, limit.micros // 1000)
    for client in range(scale.clients):
        for start in range(2 * limit.micros, scale.span, 3 * limit.micros):
            for number in range(count):
                yield start - edge + edge * number // count, client
                yield start + edge * number // count, client


def storm(scale: Scale) -> Iterator[tuple[int, int]]:
    """Extra load in the middle third; refused clients retry quickly and often."""
    third = scale.span / 3
    for at, client in poisson(scale):
        if third < at < 2 * third:
            yield at, client
        if scale.random.random() < 0.5:
            yield at, client


def herd(scale: Scale) -> Iterator[tuple[int, int]]:
    """All clients call at the same time for more than their limit, and come back exactly after ``retry_after``."""
    limit = scale.limit
    for start in range(limit.micros // 2, scale.span, 5 * limit.micros):
        for client in range(scale.clients):
            for _ in range(round(limit.count * scale.load)):
                yield start + int(scale.random.random() * limit.micros / 50), client


def abuser(scale: Scale) -> Iterator[tuple[int, int]]:
    """Many clients far below the limit; the last client calls fifty times as often as each of them."""
    yield from poisson(Scale(scale.limit, scale.load, max(1, scale.clients - 1), scale.span, scale.random))
    last = scale.clients - 1
    greedy = Scale(scale.limit, scale.load * 50, 1, scale.span, scale.random)
    yield from ((at, last) for at, _ in poisson(greedy))


SHAPES: dict[str, Shape] = {
    "steady": Shape("evenly spaced calls", steady),
    "burst": Shape("two periods' worth of calls at once, every two periods", burst, load=1.0, clients=3),
    "on_off": Shape("double load for a period, silence for a period", on_off, load=1.0),
    "poisson": Shape("independent calls at random times, as from many people", poisson, load=1.0),
    "diurnal": Shape("a day: quiet nights, a busy noon", diurnal, load=1.5),
    "boundary": Shape(
        "an attack on fixed windows: a full count on each side of a boundary", boundary, load=1.0, clients=1
    ),
    "retry_storm": Shape(
        "refused clients retry quickly, up to 20 times",
        storm,
        load=0.8,
        retry=lambda limit: ClientRetry(attempts=20, every=max(1, limit.micros // limit.count // 4)),
    ),
    "herd": Shape(
        "all clients call together, and come back together after retry_after",
        herd,
        load=2.0,
        clients=30,
        retry=lambda limit: ClientRetry(attempts=20),
    ),
    "abuser": Shape("many calm clients, and one that calls fifty times as often", abuser, load=0.25, clients=100),
}


def traffic(
    shape: str,
    limit: str | Limit = "100/minute",
    *,
    load: float | None = None,
    clients: int | None = None,
    seconds: Seconds | None = None,
    seed: int = 1,
) -> Traffic:
    """Make the calls of a shape, scaled by ``limit``: ``traffic("poisson", "100/minute", load=1.5, clients=20)``.

    ``load`` is the rate of each client, as a multiple of the limit's rate.  ``seconds`` are twelve periods by default.
    """
    limit = Limit.parse(limit)
    definition = SHAPES.get(shape)
    if definition is None:
        raise InvalidInput(
            f"traffic: expected a shape ({', '.join(SHAPES)}), got {shown(shape)}.{did_you_mean(shape, SHAPES)}"
        )
    if limit.is_unlimited:
        raise InvalidInput("traffic: expected a limit to scale the calls by, got 'unlimited'.")
    load = definition.load if load is None else load
    clients = definition.clients if clients is None else clients
    span = 12 * limit.micros if seconds is None else to_micros(seconds, "seconds")
    if not (is_number(load) and 0 < load < float("inf")):
        raise InvalidInput(f"traffic: expected a load above 0, in multiples of the limit's rate, got {shown(load)}.")
    if clients.__class__ is not int or clients < 1 or span < 1:
        raise InvalidInput(
            f"traffic: expected at least 1 client and some time, got {shown(clients)} clients, {seconds} s."
        )
    expected = clients * load * limit.count * span / limit.micros
    if expected > MOST_CALLS:
        raise InvalidInput(
            f"traffic: expected at most {MOST_CALLS:,} calls, got about {expected:,.0f}. "
            "Use fewer clients, less load or less time."
        )
    scale = Scale(limit, load, clients, span, Random(seed))
    calls = sorted([(at, client) for at, client in definition.calls(scale) if 0 <= at < span])
    return Traffic(
        name=shape,
        times=array("q", [at for at, _ in calls]),
        who=array("q", [client for _, client in calls]),
        clients=tuple([f"client {number + 1}" for number in range(clients)]),
        span=span,
        retry=definition.retry(limit) if definition.retry else None,
        seed=seed,
    )


def recorded(calls: Iterable[tuple[float, str] | tuple[float, str, int]], name: str = "trace") -> Traffic:
    """Make traffic from recorded calls: (seconds, client) or (seconds, client, cost), in any order.

    Times are counted from midnight of the first day, and windows begin where they did: at multiples of their period
    since 1970.
    """
    ordered = sorted([(round(call[0] * SECOND), *call[1:]) for call in calls], key=lambda call: call[0])
    midnight = ordered[0][0] // (86_400 * SECOND) * 86_400 * SECOND if ordered else 0
    numbers: dict[str, int] = {}
    times, who, costs = array("q"), array("q"), array("q")
    for at, client, *cost in ordered:
        times.append(at - midnight)
        who.append(numbers.setdefault(client, len(numbers)))
        costs.append(int(cost[0]) if cost else 1)
    span = times[-1] + 1 if times else 1
    has_costs = any(cost != 1 for cost in costs)
    return Traffic(name, times, who, tuple(numbers), span, costs=costs if has_costs else None, origin=midnight)
