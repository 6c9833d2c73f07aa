"""simulate: send the same calls through one or more limits, with the production code on a simulated clock.

A day takes as long as its decisions.  Each lane has its own limiter, and is compared with an exact sliding log of the
same count and period.
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
from ratekeeper.errors import InvalidInput, did_you_mean, shown
from ratekeeper.keys import encode
from ratekeeper.lab import measure
from ratekeeper.lab.clock import VirtualClock, open_in_virtual_time
from ratekeeper.lab.dataframe import frame
from ratekeeper.lab.decide_batch import batch_checker
from ratekeeper.lab.text import simulation_as_text
from ratekeeper.lab.traffic import Traffic
from ratekeeper.lab.traffic import traffic as make_traffic
from ratekeeper.limit import Limit, LimitSet, parse_limits
from ratekeeper.limiter import Limiter
from ratekeeper.units import SECOND, format_period

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ratekeeper.lab.dataframe import Frame
    from ratekeeper.lab.decide_batch import CheckEach, KeyedPlan
    from ratekeeper.lab.traffic import ClientRetry
    from ratekeeper.units import Seconds

    Limits = str | Limit | LimitSet | Sequence[str | Limit]
    # The name of the work, how much of it is done, its total, and the lines or calls so far.
    Progress = Callable[[str, int, int, int], object]

BINS = 240
BATCH = 1 << 16  # decisions between two progress reports
SHARED_KEY = "everybody"
MOST_SAMPLED = 50_000  # calls whose clients are sampled to measure states


@dataclass(frozen=True)
class Lane:
    """What one limit did to the calls.  Times are in seconds."""

    limit: str
    algorithm: str
    calls: int  # decisions, including those on retries
    asked: int  # the cost of all calls
    admitted: int
    refused: int
    worst_window: int  # the most that one key was admitted within any one period
    worst_window_ratio: float  # the same as a multiple of the limit's count
    worst_second: int  # the most that was admitted within any second, over all clients
    longest_delay: float  # the longest wait of an admitted call for its turn (leaky bucket)
    longest_shut_out: float  # from a client's first refusal to its next admission
    wrongly_admitted: int  # an exact sliding log would have refused
    wrongly_refused: int  # an exact sliding log would have admitted
    fairness: float  # 1.0: each client got its max-min fair share
    state_bytes: float  # packed, on average over clients
    bin_seconds: float
    asked_in_bin: list[int] = field(repr=False)
    admitted_in_bin: list[int] = field(repr=False)  # by the time of the turn, which a leaky bucket delays
    refused_in_bin: list[int] = field(repr=False)

    @property
    def wrong(self) -> float:
        """The share of decisions that differ from those of an exact sliding log."""
        return (self.wrongly_admitted + self.wrongly_refused) / self.calls if self.calls else 0.0


@dataclass(frozen=True)
class Simulation:
    """Lanes side by side under the same traffic."""

    traffic: Traffic
    lanes: tuple[Lane, ...]
    shared: bool  # one counter for all clients

    def rows(self) -> list[dict[str, Any]]:
        """Return a dictionary of plain figures for each lane, without the bins."""
        bins = ("asked_in_bin", "admitted_in_bin", "refused_in_bin", "bin_seconds")
        return [
            {name: value for name, value in asdict(lane).items() if name not in bins} | {"wrong": lane.wrong}
            for lane in self.lanes
        ]

    def frame(self, library: str | None = None) -> Frame:
        """Return the rows as a pandas or polars DataFrame, whichever is installed."""
        return frame(self.rows(), library)

    def to_json(self) -> dict[str, Any]:
        """Return all figures as plain values.  The calls are given by shape and seed only."""
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
        return simulation_as_text(self)


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

    Each item of ``limits`` is a lane; a list within the list is a lane of several limits that apply together.
    ``algorithms`` runs each limit with each of these algorithms.  ``traffic`` is the name of a shape (see ``SHAPES``,
    and ``traffic`` for the options) or a Traffic.  ``shared`` counts all clients with one key.
    """
    lanes = parse_lanes(limits, algorithms)
    first = lanes[0].parts[0]
    if isinstance(traffic, str):
        traffic = make_traffic(traffic, first, load=load, clients=clients, seconds=seconds, seed=seed)
    elif not isinstance(traffic, Traffic):
        raise InvalidInput(f"traffic: expected the name of a shape, or Traffic, got {shown(traffic)}.")
    elif (load, clients, seconds) != (None, None, None):
        raise InvalidInput("simulate: expected load, clients and seconds with the name of a shape, got Traffic too.")
    calls = PreparedCalls(traffic, shared)
    decided = [decide_lane(limit, calls, store, progress) for limit in lanes]
    end = max(traffic.span, *[lane.end() for lane in decided])  # one time axis for all lanes
    return Simulation(traffic, tuple([measure_lane(lane, traffic, shared, end) for lane in decided]), shared)


def parse_lanes(limits: Limits | Sequence[Limits], algorithms: Iterable[str] | None) -> list[Limit | LimitSet]:
    items = list(limits) if isinstance(limits, (list, tuple)) else [limits]
    if not items:
        raise InvalidInput("simulate: expected at least one limit, got an empty list.")
    names = [None] if algorithms is None else list(algorithms)
    if not names:
        raise InvalidInput(f"simulate: expected at least one algorithm ({', '.join(ALGORITHMS)}), got none.")
    for name in names:
        if name is not None and name not in ALGORITHMS:
            raise InvalidInput(
                f"simulate: expected an algorithm ({', '.join(ALGORITHMS)}), got {shown(name)}."
                f"{did_you_mean(str(name), ALGORITHMS)}"
            )
    lanes = [with_algorithm(item, name) for item in items for name in names]
    for lane in lanes:
        if isinstance(lane, Limit) and (lane.is_unlimited or lane.is_leased):
            raise InvalidInput(f"simulate: expected a limit per time, such as '100/minute', got '{lane}'.")
    return list(dict.fromkeys(lanes))


def with_algorithm(limits: Any, name: str | None) -> Limit | LimitSet:
    """Parse limits; with a name, convert each of them to that algorithm."""
    parsed = parse_limits(limits)
    return parsed if name is None else parse_limits([convert(part, name) for part in parsed.parts])


def convert(limit: Limit, name: str) -> Limit:
    """Return the limit with another algorithm; one that has no burst loses it."""
    burst = limit.burst if name in BUCKETS else None
    slices = limit.slices if name == "sliding_window" else 1
    return Limit(limit.count, format_period(limit.micros), burst=burst, algorithm=name, slices=slices)  # type: ignore[arg-type]


class PreparedCalls:
    """The calls of some traffic, prepared once for all lanes.  ``shift`` is added to a time to get its instant."""

    def __init__(self, traffic: Traffic, shared: bool) -> None:
        self.traffic = traffic
        self.shift = traffic.origin
        self.client_keys = [SHARED_KEY] * len(traffic.clients) if shared else list(traffic.clients)
        self.times = list(traffic.times)
        self.keys = list(map(self.client_keys.__getitem__, traffic.who))


class DecidedCalls:
    """Calls and their decisions, in columns; the calls include the retries of refused ones."""

    def __init__(
        self, limit: Limit | LimitSet, times: Sequence[int], who: Sequence[int], costs: Sequence[int] | None
    ) -> None:
        self.limit = limit
        self.times = times
        self.who = who
        self.costs = costs
        self.allowed = bytearray()
        self.turns: array[int] | None = None  # when each call had its turn; None: at once
        self.state_bytes = 0.0

    def end(self) -> int:
        return max(self.turns or self.times[-1:], default=-1) + 1


def decide_lane(
    limit: Limit | LimitSet, prepared: PreparedCalls, store_url: str, progress: Progress | None
) -> DecidedCalls:
    """Decide all calls under one limit."""
    clock = VirtualClock()
    store = open_in_virtual_time(store_url, clock)
    limiter = Limiter(limit if isinstance(limit, Limit) else limit.limits, store=store, name=f"lab {limit}")
    traffic = prepared.traffic
    report = (lambda done: progress(str(limit), done, len(traffic), done)) if progress else None
    try:
        if traffic.retry is not None:
            calls = decide_with_retries(limiter, clock, prepared, traffic.retry, report)
        else:
            calls = DecidedCalls(limit, traffic.times, traffic.who, traffic.costs)
            decide_calls(limiter, clock, calls, prepared, report)
        calls.state_bytes = mean_state_bytes(limiter, calls, prepared.client_keys)
        return calls
    finally:
        store.close()


def decide_calls(
    limiter: Limiter,
    clock: VirtualClock,
    calls: DecidedCalls,
    prepared: PreparedCalls,
    report: Callable[[int], object] | None,
) -> None:
    decide: Callable[[slice], tuple[bytes, bytes]]
    if calls.costs is not None:
        decide = partial(decide_one_by_one, limiter, clock, calls.costs, prepared)
    else:
        plan = limiter.store.prepare(((limiter.name, limiter.limits, 1, None),))
        keyed_plan = plan, {key: (key,) for key in prepared.client_keys}, None
        decide = partial(decide_in_batch, batch_checker(clock, limiter.store), keyed_plan, prepared)
    turns = array("q")
    for start in range(0, len(calls.times), BATCH):
        allowed, batch_turns = decide(slice(start, start + BATCH))
        calls.allowed += allowed
        turns.frombytes(batch_turns)
        if report is not None:
            report(min(start + BATCH, len(calls.times)))
    if limiter.limits.is_queue:
        calls.turns = turns


def decide_in_batch(
    check_each: CheckEach, plan: KeyedPlan, prepared: PreparedCalls, part: slice
) -> tuple[bytes, bytes]:
    """Decide calls of cost 1 in one call: which are admitted, and when each has its turn."""
    keys, times, shift = prepared.keys[part], prepared.times[part], prepared.shift
    if not shift:
        return check_each([plan] * len(keys), keys, times)[:2]
    allowed, turns, _ = check_each([plan] * len(keys), keys, [at + shift for at in times])
    return allowed, array("q", [at - shift for at in array("q", turns)]).tobytes()


def decide_one_by_one(
    limiter: Limiter, clock: VirtualClock, costs: Sequence[int], prepared: PreparedCalls, part: slice
) -> tuple[bytes, bytes]:
    """Decide calls of different costs: a prepared plan has a constant cost."""
    check, hand = limiter.check, clock.hand
    times = prepared.times[part]
    nanos = map(mul, map(prepared.shift.__add__, times), repeat(1000))
    # `for hand[0], ...` moves the clock to each call before it is decided.
    decisions = [check(key, cost) for hand[0], key, cost in zip(nanos, prepared.keys[part], costs[part], strict=True)]
    turns = array("q", [at + round(decision.delay * SECOND) for at, decision in zip(times, decisions, strict=True)])
    return bytes([decision.allowed for decision in decisions]), turns.tobytes()


def decide_with_retries(
    limiter: Limiter,
    clock: VirtualClock,
    prepared: PreparedCalls,
    retry: ClientRetry,
    report: Callable[[int], object] | None,
) -> DecidedCalls:
    """Decide calls that come back when they are refused.  Each lane then has other calls than the next."""
    traffic, client_keys, shift = prepared.traffic, prepared.client_keys, prepared.shift
    call_costs = traffic.costs or [1] * len(traffic)
    pending = list(zip(traffic.times, range(len(traffic)), [0] * len(traffic), traffic.who, call_costs, strict=True))
    times, who, costs, turns = array("q"), array("q"), array("q"), array("q")
    calls = DecidedCalls(limiter.limits, times, who, costs)
    hand = clock.hand
    next_number = len(pending)
    while pending:
        at, number, attempt, client, cost = pending[0]
        hand[0] = (at + shift) * 1000
        decision = limiter.check(client_keys[client], cost)
        if decision.allowed:
            heapq.heappop(pending)
        else:
            wait = retry.every or round((decision.retry_after or 0) * SECOND)
            if attempt < retry.attempts and wait:
                next_number += 1
                heapq.heapreplace(pending, (at + wait, next_number, attempt + 1, client, cost))
            else:
                heapq.heappop(pending)
        calls.allowed.append(decision.allowed)
        times.append(at)
        turns.append(at + round(decision.delay * SECOND))
        who.append(client)
        costs.append(cost)
        if report is not None and not attempt and not number % 1024:
            report(number)
    if traffic.costs is None:
        calls.costs = None
    if limiter.limits.is_queue:
        calls.turns = turns
    return calls


def measure_lane(calls: DecidedCalls, traffic: Traffic, shared: bool, end: int) -> Lane:
    """Compute the figures of one lane; its bins end at ``end``."""
    limit, allowed, costs = calls.limit, calls.allowed, calls.costs
    parts = limit.parts
    clients = len(traffic.clients)
    pairs = [(part.count, part.micros) for part in parts]
    traffic_end = max(traffic.span, calls.times[-1] + 1 if calls.times else 0)
    accuracy = measure.accuracy(calls, allowed, clients, shared, pairs, traffic_end)
    worst_windows = accuracy.worst_windows
    refused = allowed.translate(measure.FLIPPED)
    admitted_costs = None if costs is None else list(compress(costs, allowed))
    refused_costs = None if costs is None else list(compress(costs, refused))
    admitted_at = measure.select_sorted(calls.turns or calls.times, allowed)
    refused_at = measure.select_sorted(calls.times, refused)
    if calls.turns is not None:
        worst_windows = most_turns(calls.turns, calls, shared, clients, pairs)
        if admitted_costs is not None:
            by_turn = sorted(zip(compress(calls.turns, allowed), admitted_costs, strict=True))
            admitted_costs = [cost for _, cost in by_turn]
    counts = [part.count for part in parts]
    worst, count = max(zip(worst_windows, counts, strict=True), key=lambda pair: pair[0] / pair[1])
    start = traffic.times[0] if traffic.times else 0
    width = max(1, -(-(end - start) // BINS))
    admitted_by_client, refused_by_client = cost_by_client(calls, clients)
    admitted = sum(admitted_by_client)
    asked_by_client = [sum(pair) for pair in zip(admitted_by_client, refused_by_client, strict=True)]
    return Lane(
        limit=str(limit),
        algorithm=" + ".join(dict.fromkeys(part.algorithm for part in parts)),
        calls=len(allowed),
        asked=sum(asked_by_client),
        admitted=admitted,
        refused=sum(refused_by_client),
        worst_window=worst,
        worst_window_ratio=worst / count,
        worst_second=measure.most_within(admitted_at, admitted_costs, SECOND),
        longest_delay=measure.longest_wait(calls.times, calls.turns or calls.times) / SECOND,
        longest_shut_out=accuracy.longest_shut_out / SECOND,
        wrongly_admitted=accuracy.wrongly_admitted,
        wrongly_refused=accuracy.wrongly_refused,
        fairness=measure.fairness(asked_by_client, admitted_by_client),
        state_bytes=calls.state_bytes,
        bin_seconds=width / SECOND,
        asked_in_bin=measure.count_in_bins(calls.times, costs, start, width, BINS),
        admitted_in_bin=measure.count_in_bins(admitted_at, admitted_costs, start, width, BINS),
        refused_in_bin=measure.count_in_bins(refused_at, refused_costs, start, width, BINS),
    )


def cost_by_client(calls: DecidedCalls, clients: int) -> tuple[list[int], list[int]]:
    """Add up the cost that each client was admitted, and the cost that it was refused."""
    if calls.costs is None:
        return measure.count_by_client(calls.who, calls.allowed, clients)
    totals = [0] * clients, [0] * clients
    for client, admitted, cost in zip(calls.who, calls.allowed, calls.costs, strict=True):
        totals[not admitted][client] += cost
    return totals


def most_turns(
    turns: Sequence[int], calls: DecidedCalls, shared: bool, clients: int, pairs: list[tuple[int, int]]
) -> list[int]:
    """Return the most turns of one key within any stretch of each period.  A key's turns are in the order of calls."""
    who, allowed = calls.who, calls.allowed
    if calls.costs is not None:
        turns = [at for at, cost in zip(turns, calls.costs, strict=True) for _ in range(cost)]
        who = [client for client, cost in zip(who, calls.costs, strict=True) for _ in range(cost)]
        allowed = bytearray(flag for flag, cost in zip(allowed, calls.costs, strict=True) for _ in range(cost))
    return [measure.most_of_one_key(turns, None if shared else who, allowed, clients, period) for _, period in pairs]


def mean_state_bytes(limiter: Limiter, calls: DecidedCalls, client_keys: list[str]) -> float:
    """Return the mean size of a client's state, over at most a thousand clients."""
    sampled = islice(dict.fromkeys(islice(calls.who, MOST_SAMPLED)), 1000)
    keys = dict.fromkeys(client_keys[client] for client in sampled)
    plan = tuple([Check(limiter.name, encode(key), limiter.limits, 1) for key in keys])
    if not plan:
        return 0.0
    _, states = limiter.store.states(plan)
    return sum(map(measure.state_bytes, states)) / len(plan)
