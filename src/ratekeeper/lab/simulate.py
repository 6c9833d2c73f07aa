"""simulate: the same calls through one or more limits, side by side, by the rules and stores of production.

Time is virtual: a day takes as long as its decisions.  Each lane has a limiter of its own, and an exact sliding
log of the same count and period judges it.
"""

from __future__ import annotations

import heapq
from array import array
from collections import Counter
from dataclasses import asdict, dataclass, field
from itertools import compress
from typing import TYPE_CHECKING, Any

from ratekeeper.algorithms import ALGORITHMS, BUCKETS
from ratekeeper.errors import InvalidInput
from ratekeeper.keys import encode
from ratekeeper.lab import measure, shapes
from ratekeeper.lab.clock import VirtualClock
from ratekeeper.lab.frames import frame
from ratekeeper.limiter import Limiter
from ratekeeper.model import Check, Limit, Several, parse_limits
from ratekeeper.stores import open_store
from ratekeeper.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ratekeeper.lab.frames import Frame
    from ratekeeper.lab.shapes import Retry, Traffic
    from ratekeeper.units import Seconds

    Limits = str | Limit | Several | Sequence[str | Limit]
    Progress = Callable[[str, int, int], object]  # what is being done, how much of it is done, and how much there is

BINS = 240
STRIDE = 1 << 16  # decisions between two words about the progress
SHARED = "everybody"


@dataclass(frozen=True)
class Lane:
    """What one limit did to the calls.  Times are in seconds."""

    limit: str
    algorithm: str
    calls: int  # decisions, retries among them
    asked: int  # their cost
    admitted: int
    refused: int
    worst_window: int  # the most that one key got into any stretch of one period
    worst_window_ratio: float  # the same as a multiple of the limit's count
    worst_second: int  # the most that went through in any second, of all clients together
    longest_delay: float  # of an admitted call that waits for its turn: leaky bucket
    longest_shut_out: float  # from a client's first refusal to its next admission
    wrongly_admitted: int  # an exact sliding log would have refused
    wrongly_refused: int  # it would have admitted
    fairness: float  # 1.0: everybody got its max-min fair share
    state_bytes: float  # of a client, packed, on average
    bin_seconds: float
    asked_in_bin: list[int] = field(repr=False)
    admitted_in_bin: list[int] = field(repr=False)  # when they went through: a leaky bucket's turns
    refused_in_bin: list[int] = field(repr=False)

    @property
    def wrong(self) -> float:
        """The share of decisions that an exact sliding log would have made otherwise."""
        return (self.wrongly_admitted + self.wrongly_refused) / self.calls if self.calls else 0.0


@dataclass(frozen=True)
class Simulation:
    """Lanes side by side under the same traffic."""

    traffic: Traffic
    lanes: tuple[Lane, ...]
    shared: bool  # one counter for all clients

    def rows(self) -> list[dict[str, Any]]:
        """A dictionary of plain figures for each lane, without the bins."""
        drop = ("asked_in_bin", "admitted_in_bin", "refused_in_bin", "bin_seconds")
        return [
            {name: value for name, value in asdict(lane).items() if name not in drop} | {"wrong": lane.wrong}
            for lane in self.lanes
        ]

    def frame(self, library: str | None = None) -> Frame:
        """The rows as a pandas or polars DataFrame, whichever is installed."""
        return frame(self.rows(), library)

    def to_json(self) -> dict[str, Any]:
        """All there is, as plain values; the calls themselves are told by shape and seed."""
        traffic = self.traffic
        return {
            "traffic": {
                "name": traffic.name,
                "calls": len(traffic),
                "clients": len(traffic.clients),
                "seconds": traffic.span / SECOND,
                "seed": traffic.seed,
                "shared": self.shared,
            },
            "lanes": [asdict(lane) | {"wrong": lane.wrong} for lane in self.lanes],
        }

    def __str__(self) -> str:
        from ratekeeper.lab.plots import lanes_as_text

        return lanes_as_text(self)


def simulate(
    limits: Limits | Sequence[Limits],
    traffic: str | Traffic = "poisson",
    *,
    algorithms: Iterable[str] | None = None,
    load: float | None = None,
    clients: int | None = None,
    seconds: Seconds | None = None,
    seed: int = 1,
    shared: bool = False,
    store: str = "memory://",
    progress: Progress | None = None,
) -> Simulation:
    """Send traffic through limits side by side: ``simulate(["100/minute", "100/minute sliding_window"], "burst")``.

    Each item of ``limits`` is a lane; several limits that hold together are a list in the list.  ``algorithms`` puts
    each limit through all of these.  ``traffic`` is a shape's name (see ``SHAPES``, and ``traffic`` for the options)
    or a Traffic.  ``shared`` counts all clients as one.
    """
    lanes = lanes_of(limits, algorithms)
    first = lanes[0].limits[0] if isinstance(lanes[0], Several) else lanes[0]
    if isinstance(traffic, str):
        traffic = shapes.traffic(traffic, first, load=load, clients=clients, seconds=seconds, seed=seed)
    elif (load, clients, seconds) != (None, None, None):
        raise InvalidInput("simulate: expected load, clients and seconds with the name of a shape, got Traffic too.")
    keys = [SHARED] * len(traffic.clients) if shared else list(traffic.clients)
    runs = [run(limit, traffic, keys, store, progress) for limit in lanes]
    end = max(calls.end() for calls in runs)  # one axis of time for all lanes
    return Simulation(
        traffic, tuple([lane_of(calls, traffic, shared, max(end, traffic.span)) for calls in runs]), shared
    )


def lanes_of(limits: Limits | Sequence[Limits], algorithms: Iterable[str] | None) -> list[Limit | Several]:
    items = [limits] if isinstance(limits, (str, Limit, Several)) else list(limits)
    if not items:
        raise InvalidInput("simulate: expected at least one limit, got an empty list.")
    names = [None] if algorithms is None else list(algorithms)
    if not names:
        raise InvalidInput(f"simulate: expected at least one algorithm ({', '.join(ALGORITHMS)}), got none.")
    lanes = [with_algorithm(item, name) for item in items for name in names]
    for lane in lanes:
        if isinstance(lane, Limit) and lane.is_unlimited:
            raise InvalidInput("simulate: expected limits that can refuse, got 'unlimited'.")
    return list(dict.fromkeys(lanes))


def with_algorithm(limits: Any, name: str | None) -> Limit | Several:
    """The limits, under that algorithm where one is given; a burst goes where there is none."""
    found = parse_limits(limits)
    if name is None:
        return found
    parts = found.limits if isinstance(found, Several) else (found,)
    return parse_limits([under(part, name) for part in parts])


def under(limit: Limit, name: str) -> Limit:
    burst = limit.burst if name in BUCKETS else None
    slices = limit.slices if name == "sliding_window" else 1
    return Limit(limit.count, limit.micros / SECOND, burst=burst, algorithm=name, slices=slices)


class Calls:
    """Calls and what became of them, in columns: those of the traffic, or with the retries that followed."""

    def __init__(
        self, limit: Limit | Several, times: Sequence[int], who: Sequence[int], costs: Sequence[int] | None
    ) -> None:
        self.limit = limit
        self.times = times
        self.who = who
        self.costs = costs
        self.allowed = bytearray()
        self.delays: dict[int, int] = {}  # by the number of the call, where it was above 0
        self.state_bytes = 0.0

    def end(self) -> int:
        last = self.times[-1] + 1 if self.times else 0
        return max([last, *(self.times[number] + delay + 1 for number, delay in self.delays.items())])


def run(limit: Limit | Several, traffic: Traffic, keys: list[str], store: str, progress: Progress | None) -> Calls:
    """Decide all calls under one limit."""
    clock = VirtualClock()
    opened = open_store(store, clock=clock)
    limiter = Limiter(limit if isinstance(limit, Limit) else limit.limits, store=opened, name=f"lab {limit}")
    tell = (lambda done: progress(str(limit), done, len(traffic))) if progress else None
    try:
        if traffic.retry is not None:
            calls = with_retries(limiter, clock, traffic, traffic.retry, keys, tell)
        else:
            calls = Calls(limit, traffic.times, traffic.who, traffic.costs)
            decide_all(limiter, clock, calls, keys, tell)
        calls.state_bytes = mean_state(limiter, calls, keys)
        return calls
    finally:
        opened.close()


def is_leaky(limit: Limit | Several) -> bool:
    parts = limit.limits if isinstance(limit, Several) else (limit,)
    return any(part.algorithm == "leaky_bucket" for part in parts)


def decide_all(
    limiter: Limiter, clock: VirtualClock, calls: Calls, keys: list[str], tell: Callable[[int], object] | None
) -> None:
    check, hand, leaky = limiter.check, clock.hand, is_leaky(limiter.limits)
    for start in range(0, len(calls.times), STRIDE):
        stop = start + STRIDE
        nanos = [at * 1000 for at in calls.times[start:stop]]
        names = [keys[client] for client in calls.who[start:stop]]
        # `for hand[0], ...` moves the clock to each call before it is decided.
        if calls.costs is not None:
            costs = calls.costs[start:stop]
            found = [check(key, cost) for hand[0], key, cost in zip(nanos, names, costs, strict=True)]
        elif leaky:
            found = [check(key) for hand[0], key in zip(nanos, names, strict=True)]
        else:
            calls.allowed += bytes([check(key).allowed for hand[0], key in zip(nanos, names, strict=True)])
            found = []
        if found:
            calls.allowed += bytes([decision.allowed for decision in found])
            if leaky:
                delays = [(number, decision.delay) for number, decision in enumerate(found, start) if decision.allowed]
                calls.delays.update((number, round(delay * SECOND)) for number, delay in delays if delay)
        if tell is not None:
            tell(min(stop, len(calls.times)))


def with_retries(
    limiter: Limiter,
    clock: VirtualClock,
    traffic: Traffic,
    retry: Retry,
    keys: list[str],
    tell: Callable[[int], object] | None,
) -> Calls:
    """Refused calls come back: what is asked depends on what was answered, so each lane has calls of its own."""
    costs = traffic.costs or [1] * len(traffic)
    waiting = list(zip(traffic.times, range(len(traffic)), [0] * len(traffic), traffic.who, costs, strict=True))
    times, who, paid = array("q"), array("L"), array("q")
    calls = Calls(limiter.limits, times, who, paid)
    hand = clock.hand
    fresh = len(waiting)
    while waiting:
        at, number, attempt, client, cost = waiting[0]
        hand[0] = at * 1000
        decision = limiter.check(keys[client], cost)
        if decision.allowed:
            heapq.heappop(waiting)
            delay = round(decision.delay * SECOND)
            if delay:
                calls.delays[len(times)] = delay
        else:
            after = retry.every or round((decision.retry_after or 0) * SECOND)
            if attempt < retry.attempts and after:
                fresh += 1
                heapq.heapreplace(waiting, (at + after, fresh, attempt + 1, client, cost))
            else:
                heapq.heappop(waiting)
        calls.allowed.append(decision.allowed)
        times.append(at)
        who.append(client)
        paid.append(cost)
        if tell is not None and not attempt and not number % 1024:
            tell(number)
    if traffic.costs is None:
        calls.costs = None
    return calls


def lane_of(calls: Calls, traffic: Traffic, shared: bool, end: int) -> Lane:
    """The figures of one lane; its bins end at ``end``."""
    limit, allowed, costs = calls.limit, calls.allowed, calls.costs
    clients = 1 if shared else len(traffic.clients)
    parts = limit.limits if isinstance(limit, Several) else (limit,)
    counted = [0] * len(calls.who) if shared else calls.who
    judged = [
        measure.against_log(calls.times, counted, costs, allowed, clients, part.count, part.micros) for part in parts
    ]
    fits = judged[0][0]
    for other, _ in judged[1:]:
        fits = bytearray(map(min, fits, other))
    wrong = Counter(zip(allowed, fits, strict=True))
    paid = None if costs is None else list(compress(costs, allowed))
    turns = list(compress(calls.times, allowed))
    if calls.delays:
        moved = [at + calls.delays.get(number, 0) for number, at in enumerate(calls.times)]
        passed = sorted(compress(zip(moved, costs or [1] * len(moved), strict=True), allowed))
        turns, paid = [at for at, _ in passed], None if costs is None else [cost for _, cost in passed]
        judged = [
            (fits, measure.against_log(moved, counted, costs, allowed, clients, part.count, part.micros)[1])
            for part in parts
        ]
    worst, ratio = max(
        ((most, most / part.count) for (_, most), part in zip(judged, parts, strict=True)), key=lambda one: one[1]
    )
    start = traffic.times[0] if traffic.times else 0
    over = max(traffic.span, calls.times[-1] + 1 if calls.times else 0)
    width = max(1, -(-(end - start) // BINS))
    asked_each = Counter(calls.who) if costs is None else weighed(calls.who, costs)
    got = compress(calls.who, allowed)
    got_each = Counter(got) if paid is None else weighed(got, compress(costs or (), allowed))
    everyone = range(len(traffic.clients))
    refused = bytes(1 - flag for flag in allowed)
    lost = None if costs is None else list(compress(costs, refused))
    admitted = sum(got_each.values())
    asked = sum(asked_each.values())
    return Lane(
        limit=str(limit),
        algorithm=" + ".join(dict.fromkeys(part.algorithm for part in parts)),
        calls=len(allowed),
        asked=asked,
        admitted=admitted,
        refused=asked - admitted,
        worst_window=worst,
        worst_window_ratio=ratio,
        worst_second=measure.most_within(turns, paid, SECOND),
        longest_delay=max(calls.delays.values(), default=0) / SECOND,
        longest_shut_out=measure.longest_shut_out(calls.times, calls.who, allowed, over) / SECOND,
        wrongly_admitted=wrong[1, 0],
        wrongly_refused=wrong[0, 1],
        fairness=measure.fairness([asked_each[one] for one in everyone], [got_each[one] for one in everyone]),
        state_bytes=calls.state_bytes,
        bin_seconds=width / SECOND,
        asked_in_bin=measure.binned(calls.times, costs, start, width, BINS),
        admitted_in_bin=measure.binned(turns, paid, start, width, BINS),
        refused_in_bin=measure.binned(list(compress(calls.times, refused)), lost, start, width, BINS),
    )


def weighed(who: Iterable[int], costs: Iterable[int]) -> Counter[int]:
    found: Counter[int] = Counter()
    for client, cost in zip(who, costs, strict=True):
        found[client] += cost
    return found


def mean_state(limiter: Limiter, calls: Calls, keys: list[str]) -> float:
    """What the states of the clients take, of a thousand of them at most."""
    names = list(dict.fromkeys([keys[client] for client in dict.fromkeys(calls.who)]))[:1000]
    plan = tuple([Check(limiter.name, encode(name), limiter.limits, 1) for name in names])
    if not plan:
        return 0.0
    _, states = limiter.store.states(plan)
    return sum(map(measure.state_bytes, states)) / len(plan)
