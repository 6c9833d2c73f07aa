"""Suggest limits: for each limit of a rule, the lowest count that refuses at most a share of its clients.

As long as a client is not refused, its use does not depend on the limit.  So a client that passes under one count
passes under every higher one, and bisection finds the lowest, with the production rule and the ``max_delay`` of its
queue.  Each limit is looked at by itself: requests that another rule would refuse count too, so a suggestion errs on
the generous side.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ratekeeper.algorithms import BUCKETS
from ratekeeper.errors import InvalidLimit
from ratekeeper.identity.identity import Caller
from ratekeeper.lab.decide_log import MOST_CACHED, limits_rate
from ratekeeper.limit import LONGEST_LOG, Limit, LimitSet, empty_state

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ratekeeper.lab.decide_log import LogDecider
    from ratekeeper.lab.log_lines import Block
    from ratekeeper.rules.counter import RuleCounter
    from ratekeeper.rules.policy import Policy

    Progress = Callable[[str, int, int, int], object]

NO_COUNT = 1 << 62  # the lowest count of a client that every count refuses


@dataclass(frozen=True)
class Suggestion:
    """The lowest limit that refuses at most a share of the clients of a rule, in this log."""

    rule: str
    now: str  # the limit of the rules file
    suggested: str
    share: float  # the share that the caller asked for
    clients: int
    refused_now: int  # clients that the current limit refuses at least once
    refused_then: int  # clients that the suggested limit refuses at least once
    curve: tuple[tuple[int, int], ...] = field(repr=False)  # pairs of a count and the clients that it refuses


class Arrivals:
    """When each key of each limit made requests: eight bytes per request."""

    def __init__(self, policy: Policy) -> None:
        self.identity = policy.compiled.identity
        # Only rules of constant cost: a log does not have the header or the body that other costs come from.
        self.counters = {counter.name: counter for counter in policy.compiled.counters if counter.constant}
        self.times: dict[tuple[str, Limit], dict[str, array[int]]] = {}
        self.cache: dict[tuple[str, str], tuple[Limit | LimitSet, str]] = {}  # by rule and client

    def add(self, block: Block, decider: LogDecider) -> None:
        for place, (at, client, text) in enumerate(zip(block.times, block.clients, block.request_lines, strict=True)):
            line, facts = decider.request_line(text), block.facts.get(place)
            is_cacheable = facts is None and line.selection_plan.keys is not None
            for name in line.rule_names:
                counter = self.counters.get(name)
                if counter is None:
                    continue
                limit_and_key = self.cache.get((name, client)) if is_cacheable else None
                if limit_and_key is None:
                    caller = Caller(self.identity, decider.request(line, client, facts or {}))
                    tier_limit = counter.entry(caller)
                    if tier_limit is None or not limits_rate(tier_limit):
                        continue
                    limit_and_key = tier_limit.limit, counter.key(caller)
                    if len(self.cache) >= MOST_CACHED:
                        self.cache.clear()
                    if is_cacheable:
                        self.cache[name, client] = limit_and_key
                self.record(counter, *limit_and_key, at)

    def record(self, counter: RuleCounter, limit: Limit | LimitSet, key: str, at: int) -> None:
        for part in limit.parts:
            by_key = self.times.setdefault((counter.name, part), {})
            times = by_key.get(key)
            if times is None:
                times = by_key[key] = array("q")
            times.append(at)

    def suggestions(self, share: float, progress: Progress | None = None) -> tuple[Suggestion, ...]:
        results = []
        for number, ((rule, limit), by_key) in enumerate(self.times.items()):
            counter = self.counters[rule]
            cost, max_delay = counter.constant, counter.rule.max_delay
            lowest = sorted(lowest_count(times, limit, cost, max_delay) for times in by_key.values())
            results.append(suggestion(rule, limit, lowest, share))
            if progress is not None:
                progress("looking for limits", number + 1, len(self.times), 0)
        return tuple(results)


def suggestion(rule: str, limit: Limit, lowest: list[int], share: float) -> Suggestion:
    """Make a suggestion from the sorted lowest counts of all keys."""
    may_be_refused = int(len(lowest) * share)
    reachable = lowest[: bisect_left(lowest, NO_COUNT)] or [limit.count]
    count = min(lowest[len(lowest) - 1 - may_be_refused], reachable[-1])
    steps = sorted({reachable[place * (len(reachable) - 1) // 60] for place in range(61)} | {1, limit.count})
    return Suggestion(
        rule=rule,
        now=str(limit),
        suggested=str(scaled(limit, count)),
        share=share,
        clients=len(lowest),
        refused_now=refused_under(lowest, limit.count),
        refused_then=refused_under(lowest, count),
        curve=tuple([(step, refused_under(lowest, step)) for step in steps]),
    )


def refused_under(lowest: Sequence[int], count: int) -> int:
    return len(lowest) - bisect_left(lowest, count + 1)


def scaled(limit: Limit, count: int) -> Limit:
    """Return the limit with another count; a burst of its own keeps its proportion."""
    burst = None
    if limit.algorithm in BUCKETS:
        burst = count if limit.burst == limit.count else max(1, -(-limit.burst * count // limit.count))
    algorithm: Any = limit.algorithm
    return Limit(
        count, limit.period_name, burst=burst, algorithm=algorithm, slices=limit.slices, timezone=limit.timezone
    )


def lowest_count(times: Sequence[int], limit: Limit, cost: int = 1, max_delay: int | None = None) -> int:
    """Return the lowest count under which none of these requests is refused; NO_COUNT if there is none."""
    if limit.algorithm != "leaky_bucket":
        max_delay = None
    low, high = 1, passing_count(len(times), limit, cost, max_delay)
    if max_delay is not None and not (is_possible(limit, high) and passes(times, scaled(limit, high), cost, max_delay)):
        return NO_COUNT
    while low < high:
        middle = (low + high) // 2
        if passes(times, scaled(limit, middle), cost, max_delay):
            high = middle
        else:
            low = middle + 1
    return low


def passing_count(requests: int, limit: Limit, cost: int = 1, max_delay: int | None = None) -> int:
    """Return a count that admits this many requests at once, if any count does."""
    units = requests * cost
    count = units
    if limit.algorithm in BUCKETS and limit.burst < limit.count:
        count = -(-units * limit.count // limit.burst)
    if max_delay is not None:
        count = max(count, -(-units * limit.micros // max(1, max_delay)))
    return min(count, LONGEST_LOG) if limit.algorithm == "sliding_log" else count


def is_possible(limit: Limit, count: int) -> bool:
    """Whether there can be a limit of this count: one that must never delay may need too high a rate."""
    try:
        scaled(limit, count)
    except InvalidLimit:
        return False
    return True


def passes(times: Sequence[int], limit: Limit, cost: int = 1, max_delay: int | None = None) -> bool:
    decide, delay = limit.rule.decide, limit.rule.delay
    state = empty_state(limit)
    for at in times:
        state, allowed = decide(state, at, limit, cost)
        if not allowed or (max_delay is not None and delay(state, at, limit, cost) > max_delay):
            return False
    return True
