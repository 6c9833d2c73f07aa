"""What limit would refuse at most so many?  For each limit of a rule: the least count under which a client passes.

As long as nobody is refused, what a client used does not depend on the limit; so a client that passes under one
count passes under each higher one, and the least is found by halving, with the very rule that decides in production.
Each limit is looked at by itself: what other rules would refuse counts too, so the answer is on the safe side.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ratekeeper.algorithms import BUCKETS
from ratekeeper.identity.identity import Caller
from ratekeeper.lab.decide_log import MOST_KNOWN, is_over_time
from ratekeeper.limit import LONGEST_LOG, Limit, LimitSet, empty_state
from ratekeeper.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ratekeeper.lab.decide_log import LogDecider
    from ratekeeper.lab.log_lines import Block
    from ratekeeper.rules.counter import RuleCounter
    from ratekeeper.rules.policy import Policy

    Progress = Callable[[str, int, int], object]


@dataclass(frozen=True)
class Suggestion:
    """The least limit that refuses at most a share of the clients of a rule, in this log."""

    rule: str
    now: str
    suggested: str
    share: float  # that was asked for
    clients: int
    refused_now: int  # clients that the limit as it stands would ever refuse
    refused_then: int
    curve: tuple[tuple[int, int], ...] = field(repr=False)  # (count, clients that it would ever refuse)


class Arrivals:
    """When each subject of each limit came: eight bytes a request."""

    def __init__(self, policy: Policy) -> None:
        self.identity = policy.program.identity
        # What a request costs must be known beforehand: a cost from a header or a body is not in a log.
        self.counters = {counter.name: counter for counter in policy.program.counters if counter.constant}
        self.times: dict[tuple[str, Limit], dict[str, array[int]]] = {}
        self.known: dict[tuple[str, str], tuple[Limit | LimitSet, str]] = {}

    def add(self, block: Block, decider: LogDecider) -> None:
        for index, (at, client, text) in enumerate(zip(block.times, block.clients, block.texts, strict=True)):
            way, facts = decider.way(text), block.facts.get(index)
            for name in way.names:
                if name not in self.counters:
                    continue
                found = self.known.get((name, client)) if facts is None and way.course.keys is not None else None
                if found is None:
                    counter = self.counters[name]
                    caller = Caller(self.identity, decider.request(way, client, facts or {}))
                    entry = counter.entry(caller)
                    if entry is None or not is_over_time(entry):
                        continue
                    found = entry.limit, counter.key(caller)
                    if len(self.known) >= MOST_KNOWN:
                        self.known.clear()
                    if facts is None and way.course.keys is not None:
                        self.known[name, client] = found
                self.note(self.counters[name], *found, at)

    def note(self, counter: RuleCounter, limit: Limit | LimitSet, key: str, at: int) -> None:
        for part in limit.parts:
            subjects = self.times.setdefault((counter.name, part), {})
            times = subjects.get(key)
            if times is None:
                times = subjects[key] = array("q")
            times.extend([at] * counter.constant)

    def suggestions(self, share: float, progress: Progress | None = None) -> tuple[Suggestion, ...]:
        found = []
        for number, ((rule, limit), subjects) in enumerate(self.times.items()):
            least = sorted(least_count(times, limit) for times in subjects.values())
            found.append(suggestion(rule, limit, least, share))
            if progress is not None:
                progress("looking for limits", number + 1, len(self.times))
        return tuple(found)


def suggestion(rule: str, limit: Limit, least: list[int], share: float) -> Suggestion:
    """``least`` are the least counts of all subjects, in order."""
    may_be_refused = int(len(least) * share)
    count = least[len(least) - 1 - may_be_refused]
    steps = sorted({least[place * (len(least) - 1) // 60] for place in range(61)} | {1, limit.count})
    return Suggestion(
        rule=rule,
        now=str(limit),
        suggested=str(scaled(limit, count)),
        share=share,
        clients=len(least),
        refused_now=refused_under(least, limit.count),
        refused_then=refused_under(least, count),
        curve=tuple([(step, refused_under(least, step)) for step in steps]),
    )


def refused_under(least: Sequence[int], count: int) -> int:
    return len(least) - bisect_left(least, count + 1)


def scaled(limit: Limit, count: int) -> Limit:
    """The limit with another count; a burst of its own keeps its proportion."""
    burst = None
    if limit.algorithm in BUCKETS:
        burst = count if limit.burst == limit.count else max(1, -(-limit.burst * count // limit.count))
    return Limit(count, limit.micros / SECOND, burst=burst, algorithm=limit.algorithm, slices=limit.slices)


def least_count(times: Sequence[int], limit: Limit) -> int:
    """The least count under which none of these requests is refused."""
    high = enough(len(times), limit)
    low = 1
    while low < high:
        middle = (low + high) // 2
        if passes(times, scaled(limit, middle)):
            high = middle
        else:
            low = middle + 1
    return low


def enough(units: int, limit: Limit) -> int:
    """A count that surely passes so much at once."""
    count = units
    if limit.algorithm in BUCKETS and limit.burst < limit.count:
        count = -(-units * limit.count // limit.burst)
    return min(count, LONGEST_LOG) if limit.algorithm == "sliding_log" else count


def passes(times: Sequence[int], limit: Limit) -> bool:
    decide = limit.rule.decide
    state = empty_state(limit)
    for at in times:
        state, allowed = decide(state, at, limit, 1)
        if not allowed:
            return False
    return True
