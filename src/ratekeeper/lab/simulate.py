"""simulate: the same calls through one or more limits, side by side, by the rules and stores of production.

Time is virtual: a day takes as long as its decisions.  Each lane has a limiter of its own, and an exact sliding
log of the same count and period judges it.
"""

from __future__ import annotations

import heapq
from array import array
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import compress, islice, repeat
from operator import mul
from typing import TYPE_CHECKING, Any

from ratekeeper.algorithms import ALGORITHMS, BUCKETS
from ratekeeper.check import Check
from ratekeeper.errors import InvalidInput, shown
from ratekeeper.keys import encode
from ratekeeper.lab import measure
from ratekeeper.lab.clock import VirtualClock, open_in_virtual_time
from ratekeeper.lab.dataframe import frame
from ratekeeper.lab.decide_batch import each_of
from ratekeeper.lab.traffic import Traffic
from ratekeeper.lab.traffic import traffic as make_traffic
from ratekeeper.limit import Limit, LimitSet, parse_limits
from ratekeeper.limiter import Limiter
from ratekeeper.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ratekeeper.lab.dataframe import Frame
    from ratekeeper.lab.decide_batch import CheckEach, Way
    from ratekeeper.lab.traffic import ClientRetry
    from ratekeeper.units import Seconds

    Limits = str | Limit | LimitSet | Sequence[str | Limit]
    Progress = Callable[[str, int, int], object]  # what is being done, how much of it is done, and how much there is

BINS = 240
STRIDE = 1 << 16  # decisions between two words about the progress
SHARED = "everybody"
SAMPLED = 50_000  # calls among whose clients states are looked at


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
        from ratekeeper.lab.text import lanes_as_text

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
    first = lanes[0].parts[0]
    if isinstance(traffic, str):
        traffic = make_traffic(traffic, first, load=load, clients=clients, seconds=seconds, seed=seed)
    elif not isinstance(traffic, Traffic):
        raise InvalidInput(f"traffic: expected the name of a shape, or Traffic, got {shown(traffic)}.")
    elif (load, clients, seconds) != (None, None, None):
        raise InvalidInput("simulate: expected load, clients and seconds with the name of a shape, got Traffic too.")
    asked = SimulatedCalls(traffic, shared)
    runs = [run(limit, asked, store, progress) for limit in lanes]
    end = max(calls.end() for calls in runs)  # one axis of time for all lanes
    return Simulation(
        traffic, tuple([lane_of(calls, traffic, shared, max(end, traffic.span)) for calls in runs]), shared
    )


def lanes_of(limits: Limits | Sequence[Limits], algorithms: Iterable[str] | None) -> list[Limit | LimitSet]:
    items = list(limits) if isinstance(limits, (list, tuple)) else [limits]
    if not items:
        raise InvalidInput("simulate: expected at least one limit, got an empty list.")
    names = [None] if algorithms is None else list(algorithms)
    if not names:
        raise InvalidInput(f"simulate: expected at least one algorithm ({', '.join(ALGORITHMS)}), got none.")
    lanes = [with_algorithm(item, name) for item in items for name in names]
    for lane in lanes:
        if isinstance(lane, Limit) and (lane.is_unlimited or lane.is_leased):
            raise InvalidInput(f"simulate: expected limits over time that can refuse, got '{lane}'.")
    return list(dict.fromkeys(lanes))


def with_algorithm(limits: Any, name: str | None) -> Limit | LimitSet:
    """The limits, under that algorithm where one is given; a burst goes where there is none."""
    found = parse_limits(limits)
    if name is None:
        return found
    parts = found.parts
    return parse_limits([under(part, name) for part in parts])


def under(limit: Limit, name: str) -> Limit:
    burst = limit.burst if name in BUCKETS else None
    slices = limit.slices if name == "sliding_window" else 1
    return Limit(limit.count, limit.micros / SECOND, burst=burst, algorithm=name, slices=slices)


class SimulatedCalls:
    """Traffic, made ready once for all lanes."""

    def __init__(self, traffic: Traffic, shared: bool) -> None:
        self.traffic = traffic
        self.keys = [SHARED] * len(traffic.clients) if shared else list(traffic.clients)
        self.times = list(traffic.times)
        self.names = list(map(self.keys.__getitem__, traffic.who))


class RecordedCalls:
    """Calls and what became of them, in columns: those of the traffic, or with the retries that followed."""

    def __init__(
        self, limit: Limit | LimitSet, times: Sequence[int], who: Sequence[int], costs: Sequence[int] | None
    ) -> None:
        self.limit = limit
        self.times = times
        self.who = who
        self.costs = costs
        self.allowed = bytearray()
        self.turns: array[int] | None = None  # when each call had its turn; None: when it came
        self.state_bytes = 0.0

    def end(self) -> int:
        return max(self.turns or self.times[-1:], default=-1) + 1


def run(limit: Limit | LimitSet, asked: SimulatedCalls, store: str, progress: Progress | None) -> RecordedCalls:
    """Decide all calls under one limit."""
    clock = VirtualClock()
    opened = open_in_virtual_time(store, clock)
    limiter = Limiter(limit if isinstance(limit, Limit) else limit.limits, store=opened, name=f"lab {limit}")
    traffic = asked.traffic
    tell = (lambda done: progress(str(limit), done, len(traffic))) if progress else None
    try:
        if traffic.retry is not None:
            calls = with_retries(limiter, clock, traffic, traffic.retry, asked.keys, tell)
        else:
            calls = RecordedCalls(limit, traffic.times, traffic.who, traffic.costs)
            decide_all(limiter, clock, calls, asked, tell)
        calls.state_bytes = mean_state(limiter, calls, asked.keys)
        return calls
    finally:
        opened.close()


def decide_all(
    limiter: Limiter,
    clock: VirtualClock,
    calls: RecordedCalls,
    asked: SimulatedCalls,
    tell: Callable[[int], object] | None,
) -> None:
    store = limiter.store
    decide: Callable[[slice], tuple[bytes, bytes]] = partial(decide_singly, limiter, clock, calls, asked)
    if calls.costs is None and not store.blocking:
        way = store.prepare(((limiter.name, limiter.limits, 1, None),)), {name: (name,) for name in asked.keys}, None
        decide = partial(decide_together, each_of(clock, store), way, asked)
    turns = array("q")
    for start in range(0, len(calls.times), STRIDE):
        allowed, own = decide(slice(start, start + STRIDE))
        calls.allowed += allowed
        turns.frombytes(own)
        if tell is not None:
            tell(min(start + STRIDE, len(calls.times)))
    if limiter.limits.is_queue:
        calls.turns = turns


def decide_together(check_each: CheckEach, way: Way, asked: SimulatedCalls, part: slice) -> tuple[bytes, bytes]:
    """Calls of cost 1, many in one go: which are admitted, and when each has its turn."""
    names = asked.names[part]
    return check_each([way] * len(names), names, asked.times[part])[:2]


def decide_singly(
    limiter: Limiter, clock: VirtualClock, calls: RecordedCalls, asked: SimulatedCalls, part: slice
) -> tuple[bytes, bytes]:
    """The same one by one: calls that cost more, or a store elsewhere."""
    check, hand = limiter.check, clock.hand
    costs = calls.costs[part] if calls.costs is not None else repeat(1)
    nanos = map(mul, asked.times[part], repeat(1000))
    # `for hand[0], ...` moves the clock to each call before it is decided.
    found = [check(key, cost) for hand[0], key, cost in zip(nanos, asked.names[part], costs, strict=False)]
    turns = array("q", [at + round(one.delay * SECOND) for at, one in zip(asked.times[part], found, strict=True)])
    return bytes([one.allowed for one in found]), turns.tobytes()


def with_retries(
    limiter: Limiter,
    clock: VirtualClock,
    traffic: Traffic,
    retry: ClientRetry,
    keys: list[str],
    tell: Callable[[int], object] | None,
) -> RecordedCalls:
    """Refused calls come back: what is asked depends on what was answered, so each lane has calls of its own."""
    costs = traffic.costs or [1] * len(traffic)
    waiting = list(zip(traffic.times, range(len(traffic)), [0] * len(traffic), traffic.who, costs, strict=True))
    times, who, paid = array("q"), array("q"), array("q")
    calls = RecordedCalls(limiter.limits, times, who, paid)
    turns = array("q")
    hand = clock.hand
    fresh = len(waiting)
    while waiting:
        at, number, attempt, client, cost = waiting[0]
        hand[0] = at * 1000
        decision = limiter.check(keys[client], cost)
        if decision.allowed:
            heapq.heappop(waiting)
        else:
            after = retry.every or round((decision.retry_after or 0) * SECOND)
            if attempt < retry.attempts and after:
                fresh += 1
                heapq.heapreplace(waiting, (at + after, fresh, attempt + 1, client, cost))
            else:
                heapq.heappop(waiting)
        calls.allowed.append(decision.allowed)
        times.append(at)
        turns.append(at + round(decision.delay * SECOND))
        who.append(client)
        paid.append(cost)
        if tell is not None and not attempt and not number % 1024:
            tell(number)
    if traffic.costs is None:
        calls.costs = None
    if limiter.limits.is_queue:
        calls.turns = turns
    return calls


def lane_of(calls: RecordedCalls, traffic: Traffic, shared: bool, end: int) -> Lane:
    """The figures of one lane; its bins end at ``end``."""
    limit, allowed, costs = calls.limit, calls.allowed, calls.costs
    parts = limit.parts
    clients = len(traffic.clients)
    pairs = [(part.count, part.micros) for part in parts]
    over = max(traffic.span, calls.times[-1] + 1 if calls.times else 0)
    judged = measure.judge(calls, allowed, clients, shared, pairs, over)
    most = judged.worst
    paid = None if costs is None else list(compress(costs, allowed))
    refused = allowed.translate(measure.OTHERWISE)
    turns, lost_at = measure.picked(calls.turns or calls.times, allowed), measure.picked(calls.times, refused)
    if calls.turns is not None:
        most = worst_turns(calls.turns, calls, shared, clients, pairs)
        if paid is not None:
            paid = [cost for _, cost in sorted(zip(compress(calls.turns, allowed), paid, strict=True))]
    worst, count = max(zip(most, [part.count for part in parts], strict=True), key=lambda one: one[0] / one[1])
    start = traffic.times[0] if traffic.times else 0
    width = max(1, -(-(end - start) // BINS))
    lost = None if costs is None else list(compress(costs, refused))
    got_each, lost_each = weighed(calls, clients, paid, lost)
    admitted = sum(got_each)
    asked = admitted + sum(lost_each)
    return Lane(
        limit=str(limit),
        algorithm=" + ".join(dict.fromkeys(part.algorithm for part in parts)),
        calls=len(allowed),
        asked=asked,
        admitted=admitted,
        refused=asked - admitted,
        worst_window=worst,
        worst_window_ratio=worst / count,
        worst_second=measure.most_within(turns, paid, SECOND),
        longest_delay=measure.longest_wait(calls.times, calls.turns or calls.times) / SECOND,
        longest_shut_out=judged.shut_out / SECOND,
        wrongly_admitted=judged.wrongly_admitted,
        wrongly_refused=judged.wrongly_refused,
        fairness=measure.fairness([got + lost for got, lost in zip(got_each, lost_each, strict=True)], got_each),
        state_bytes=calls.state_bytes,
        bin_seconds=width / SECOND,
        asked_in_bin=measure.binned(calls.times, costs, start, width, BINS),
        admitted_in_bin=measure.binned(turns, paid, start, width, BINS),
        refused_in_bin=measure.binned(lost_at, lost, start, width, BINS),
    )


def weighed(
    calls: RecordedCalls, clients: int, paid: Sequence[int] | None, lost: Sequence[int] | None
) -> tuple[list[int], list[int]]:
    """What each client got, and what it did not get."""
    if paid is None or lost is None:
        return measure.counts_of(calls.who, calls.allowed, clients)
    refused = calls.allowed.translate(measure.OTHERWISE)
    found = []
    for flags, costs in ((calls.allowed, paid), (refused, lost)):
        each = [0] * clients
        for client, cost in zip(compress(calls.who, flags), costs, strict=True):
            each[client] += cost
        found.append(each)
    return found[0], found[1]


def worst_turns(
    turns: Sequence[int], calls: RecordedCalls, shared: bool, clients: int, pairs: list[tuple[int, int]]
) -> list[int]:
    """The most turns of one key in any stretch of each period; a key's calls have theirs in the order they came."""
    who, allowed = calls.who, calls.allowed
    if calls.costs is not None:
        turns = [at for at, cost in zip(turns, calls.costs, strict=True) for _ in range(cost)]
        who = [client for client, cost in zip(who, calls.costs, strict=True) for _ in range(cost)]
        allowed = bytearray(flag for flag, cost in zip(allowed, calls.costs, strict=True) for _ in range(cost))
    return [measure.worst_of_keys(turns, None if shared else who, allowed, clients, period) for _, period in pairs]


def mean_state(limiter: Limiter, calls: RecordedCalls, keys: list[str]) -> float:
    """What the states of the clients take, of a thousand of them at most."""
    names = dict.fromkeys(keys[client] for client in islice(dict.fromkeys(islice(calls.who, SAMPLED)), 1000))
    plan = tuple([Check(limiter.name, encode(name), limiter.limits, 1) for name in names])
    if not plan:
        return 0.0
    _, states = limiter.store.states(plan)
    return sum(map(measure.state_bytes, states)) / len(plan)
