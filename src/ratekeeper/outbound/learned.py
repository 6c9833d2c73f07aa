"""What a provider says about its limits, applied to ours: lower if it says less, slower for a time after a refusal.

    quota of a response ─ which of our limits is it about? ─ Adjustment ─ share of that limit, in the store ─ plan

Each limit has a *share* of its configured count, from a hundredth to all of it.  A share is kept as a cooldown that
fades: a share of s is a cooldown of (1 - s) times ten minutes.  So the lower of two shares stays, in one atomic step on
any store; twenty processes that learn the same thing lower a limit once; and what nobody repeats is forgotten.

Law: no limit is ever above what was configured, whatever a response says.  A response that says nothing about a limit
changes nothing.  No header can bring a limit below a hundredth.  No clock; all I/O is an effect of a flow.
"""

from __future__ import annotations

from contextlib import suppress
from logging import getLogger
from math import log as logarithm
from typing import NamedTuple

from ratekeeper.algorithms import BUCKETS
from ratekeeper.check import Check
from ratekeeper.errors import InvalidLimit, StoreUnavailable
from ratekeeper.flow.effects import Ask
from ratekeeper.keys import encode
from ratekeeper.limit import MOST, Limit, LimitSet, parse_limits
from ratekeeper.units import SECOND

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ratekeeper.check import Plan
    from ratekeeper.flow.effects import Flow
    from ratekeeper.outbound.cooldown import Cooldowns
    from ratekeeper.outbound.response_limits import Quota, ServerLimits

FADES = 600 * SECOND  # microseconds in which the smallest share grows back to all of a limit
AHEAD = SECOND  # a limit that the provider states is renewed when its share has grown by that
WHOLE = 1_000_000  # a share of all
LEAST = WHOLE // 100
REFUSED = 3, 4  # the share that is left after a refusal, of the one that the call was sent under
DIGITS = 7  # bits of a lowered count: few counts, so that stores can keep them
SCALE = 1_000  # how much finer a bucket counts that has a share
MOST_LIMITS = 1_024
PAUSE = encode(("pause",))

log = getLogger("ratekeeper")


class Part(NamedTuple):
    """One limit of a plan: the check, its number in the check's limit, and its unit, such as tokens."""

    check: Check
    number: int
    unit: str

    @property
    def limit(self) -> Limit:
        return self.check.limit.parts[self.number]

    @property
    def record(self) -> str | bytes:
        """The key of its share, in the space that the shares of a client have in the store."""
        return encode((self.check.space, self.number, self.check.key))


class Adjustment(NamedTuple):
    """A limit that a response is about.

    ``grants`` is what the provider grants in its period.  ``left`` is what is left of that; None if that is not known,
    or cannot be taken here.  ``is_empty``: the provider says that nothing is left.
    """

    part: Part
    grants: int
    left: int | None
    is_empty: bool


def parts_of(plan: Plan, units: Sequence[str]) -> list[Part]:
    """All limits of a plan that have a count; ``units`` has the unit of each check."""
    return [
        Part(check, number, unit)
        for check, unit in zip(plan, units, strict=True)
        for number, limit in enumerate(check.limit.parts)
        if not limit.is_unlimited and not limit.is_leased
    ]


def adjustments(parts: Sequence[Part], quotas: Iterable[Quota], age: int = 0) -> list[Adjustment]:
    """What quotas say about limits; ``age`` is how many microseconds old they may be: the time since the request left.

    A quota is about the limit of its unit and period.  If several limits fit, as those of a model and of its account,
    it is about the one whose count is nearest.  A quota without a period that names its unit, as language models send
    them, is about the nearest limit whose period is not shorter than the quota's reset.
    """
    found = []
    for quota in quotas:
        unit = unit_of(quota, {part.unit for part in parts})
        part = nearest([part for part in parts if part.unit == unit], quota)
        if part is None or not quota.limit:
            continue
        count, micros = quota.limit, part.limit.micros
        if quota.window and quota.window * SECOND * 2 < micros:  # of a shorter period: the same rate
            count = int(count * micros / (quota.window * SECOND))
        left = left_now(quota, micros, age) if count == quota.limit and is_counted(part) else None
        found.append(Adjustment(part, max(count, -(-part.limit.count // 100)), left, not quota.remaining))
    return found


def unit_of(quota: Quota, units: Iterable[str]) -> str | None:
    """The unit of ours that a quota counts: by its name, as ``input-tokens``, or else by the unit that it states."""
    name = quota.name.replace("-", "_").lower()
    fits = [unit for unit in units if name == unit or name.startswith(f"{unit}_") or name.endswith(f"_{unit}")]
    return max(fits, key=len) if fits else quota.unit if quota.unit in units else None


def nearest(parts: list[Part], quota: Quota) -> Part | None:
    if quota.window:
        micros = quota.window * SECOND
        same = [part for part in parts if micros / 2 <= part.limit.micros <= micros * 2]
        longer = [part for part in parts if part.limit.micros > micros * 2]
        if not same and longer:  # the shortest of them: the rate of a second, for a limit by the minute
            return min(longer, key=lambda part: part.limit.micros)
        parts = same
    elif not quota.name:
        return None  # "X-RateLimit-Limit: 100" may be for a second or for a day
    else:
        reset = (quota.reset_after or 0.0) * SECOND
        parts = [part for part in parts if part.limit.micros * 1.1 >= reset]
    best = None
    for part in parts:  # those of children come later, and win if they are as near
        if best is None or distance(part, quota) <= distance(best, quota):
            best = part
    return best


def distance(part: Part, quota: Quota) -> float:
    return abs(logarithm(part.limit.count / max(1, quota.limit or 1)))


def is_counted(part: Part) -> bool:
    """Whether what others used can be taken of a limit: of a window, the shortest of its check."""
    return is_shortest(part) and part.limit.algorithm == "sliding_window"


def is_shortest(part: Part) -> bool:
    """Whether no other limit of the check has a shorter period: the others are quotas."""
    return part.limit.micros == min([limit.micros for limit in part.check.limit.parts])


def left_now(quota: Quota, micros: int, age: int) -> int | None:
    """What is left of a quota whose response took ``age``: it has grown since, at most to all of it at its reset."""
    reset = micros if quota.reset_after is None else int(quota.reset_after * SECOND)
    if quota.limit is None or age >= reset:
        return None
    return quota.remaining + -(-max(0, quota.limit - quota.remaining) * age // reset)


class Shares:
    """The shares of the limits of one client or budget, in this process and in the store.

    ``holds``: they have a pause too, until when a refusal asked everybody to wait.  A client has its own cooldowns.
    """

    def __init__(self, cooldowns: Cooldowns, name: str, holds: bool = False) -> None:
        self.cooldowns = cooldowns
        self.name = name
        self.holds = holds
        self.lowered: dict[object, Limit | LimitSet] = {}

    def of(self, part: Part) -> int:
        """The share of a limit in millionths, as far as this process knows."""
        if not self.cooldowns.ends:
            return WHOLE
        return max(LEAST, WHOLE - -(-self.cooldowns.remaining(part.record) * WHOLE // FADES))

    def is_due(self, parts: Sequence[Part]) -> bool:
        """Whether the store must be asked for what other processes learned."""
        return self.cooldowns.interval is not None and bool(parts) and self.cooldowns.is_due(parts[0].record)

    def look_up(self, parts: Sequence[Part]) -> Flow[None]:
        """Ask the store."""
        yield from self.cooldowns.look_up_all([*[part.record for part in parts], *([PAUSE] if self.holds else [])])

    def refresh(self, parts: Sequence[Part]) -> Flow[None]:
        """Ask the store, if it answers."""
        with suppress(StoreUnavailable):
            yield from self.look_up(parts)

    def pause(self) -> int:
        """Microseconds until which a refusal asked everybody to wait."""
        return self.cooldowns.remaining(PAUSE) if self.holds and self.cooldowns.ends else 0

    def count(self, part: Part) -> int:
        """What is left of a limit's count."""
        return lowered_count(part.limit.count, self.of(part))

    def apply(self, plan: Plan, parts: Sequence[Part]) -> Plan:
        """The plan with each limit lowered to its share.

        A window keeps its states when its count changes.  A bucket does not, so it has a second bucket beside it, in
        which a call costs more.
        """
        if not self.cooldowns.ends:
            return plan
        shares = {(part.check.space, part.check.key, part.number): self.of(part) for part in parts}
        checks: list[Check] = []
        for check in plan:
            by_part = [shares.get((check.space, check.key, number), WHOLE) for number in range(len(check.limit.parts))]
            if min(by_part) == WHOLE:
                checks.append(check)
                continue
            limit = self.lower(check.limit, by_part)
            checks.append(Check(check.space, check.key, limit, check.cost, check.on_store_error))
            for number, (part, share) in enumerate(zip(check.limit.parts, by_part, strict=True)):
                if share < WHOLE and part.algorithm in BUCKETS:
                    checks += slower_bucket(check, number, part, share)
        return tuple(checks)

    def lower(self, limit: Limit | LimitSet, shares: list[int]) -> Limit | LimitSet:
        counts = [lowered_count(part.count, share) for part, share in zip(limit.parts, shares, strict=True)]
        lowered = self.lowered.get((limit, *counts))
        if lowered is None:
            if len(self.lowered) >= MOST_LIMITS:
                self.lowered.clear()
            parts = [with_count(part, count) for part, count in zip(limit.parts, counts, strict=True)]
            lowered = self.lowered[(limit, *counts)] = parts[0] if len(parts) == 1 else parse_limits(parts)
        return lowered

    def under(self, parts: Sequence[Part]) -> dict[str | bytes, int]:
        """The shares that are in force now, by record; none of those that are whole."""
        if not self.cooldowns.ends:
            return {}
        return {part.record: share for part in parts if (share := self.of(part)) < WHOLE}

    def are_below(self, before: Mapping[str | bytes, int], parts: Sequence[Part]) -> bool:
        """Whether a share is lower now than ``before``."""
        return any(share < before.get(record, WHOLE) for record, share in self.under(parts).items())

    def fitting(self, costs: dict[str, int], parts: Sequence[Part]) -> dict[str, int]:
        """Costs that a lowered window can admit: at most its count.  A settlement charges the rest."""
        fitting = dict(costs)
        for part in parts:
            if part.limit.algorithm not in BUCKETS and self.of(part) < WHOLE:
                fitting[part.unit] = min(fitting[part.unit], self.count(part))
        return fitting

    def adjust(
        self,
        parts: Sequence[Part],
        limits: ServerLimits,
        refused: bool,
        age: int,
        sent_under: Mapping[str | bytes, int],
        left_here: Mapping[str, int],
        everybody: Sequence[Part],
    ) -> Flow[None]:
        """Apply a response to a call that left ``age`` microseconds ago.

        After a refusal the limits slow down that the response says are empty, or else those of ``everybody``.
        """
        found = adjustments(parts, limits.quotas, age)
        explained = yield from self.learn(found, sent_under, left_here)
        if not refused:
            return
        if self.holds and limits.micros:
            yield from self.cooldowns.start(PAUSE, limits.micros)
        if not explained:
            slowed = [each.part for each in found if each.is_empty] or everybody
            yield from self.refused([part for part in slowed if is_shortest(part)], sent_under)

    def learn(
        self, found: Iterable[Adjustment], sent_under: Mapping[str | bytes, int], left_here: Mapping[str, int]
    ) -> Flow[bool]:
        """Lower the limits of which the provider grants less; returns whether any of them explains a refusal.

        ``left_here`` is what our own count had left for each space when the call was admitted.
        """
        explained = False
        for part, count, left, _ in found:
            if count < part.limit.count:
                explained = explained or count < lowered_count(part.limit.count, sent_under.get(part.record, WHOLE))
                target = -(-(part.limit.count - count) * FADES // part.limit.count)
                known = self.cooldowns.remaining(part.record)
                if known < target - AHEAD and self.cooldowns.interval is not None:  # another process may know it
                    yield from self.refresh([part])
                    known = self.cooldowns.remaining(part.record)
                if known < target + AHEAD // 2:
                    if known < target - AHEAD:
                        log.warning(
                            "%s: the provider grants %d %s where %d were configured. Every process keeps to the lower "
                            "limit; it grows back in %d s if no answer repeats it.",
                            self.name,
                            count,
                            part.unit,
                            part.limit.count,
                            target // SECOND,
                        )
                    yield from self.cooldowns.start(part.record, target + AHEAD)
            if left is not None and left < left_here.get(part.check.space, MOST):
                yield from self.leave(part, left)
        return explained

    def leave(self, part: Part, left: int) -> Flow[None]:
        """Take of a window what is above ``left``: others have used it.  Twenty processes take it once."""
        used = self.count(part) - left
        if used < 1:
            return
        log.info("%s: the provider says that %d %s are left: no more is spent.", self.name, left, part.unit)
        parts = list(part.check.limit.parts)
        parts[part.number] = with_count(part.limit, used)
        limit = parts[0] if len(parts) == 1 else parse_limits(parts)
        yield Ask("take", (Check(part.check.space, part.check.key, limit, used),))

    def refused(self, parts: Sequence[Part], sent_under: Mapping[str | bytes, int]) -> Flow[None]:
        """Slow down after a refusal that nothing explains.

        The share goes to three quarters of the one that the refused call was sent under.  So twenty refusals of one
        burst slow everybody down once, and a call that is refused in spite of that slows everybody down again.
        """
        if self.cooldowns.interval is not None:  # another process of the same burst may have been quicker
            yield from self.refresh(parts)
        told = False
        for part in parts:
            before = sent_under.get(part.record, WHOLE)
            share = max(LEAST, before * REFUSED[0] // REFUSED[1])
            micros = (WHOLE - share) * FADES // WHOLE
            if micros <= self.cooldowns.remaining(part.record):
                continue
            if not told:
                told = True
                log.warning(
                    "%s: the provider refused a call in spite of the limits. Every process keeps to %d %% of them, and "
                    "to all of them again in %d s.", self.name, share * 100 // WHOLE, micros // SECOND,
                )  # fmt: skip
            yield from self.cooldowns.start(part.record, micros)


def lowered_count(count: int, share: int) -> int:
    """The count that a share leaves, rounded down to seven bits; at least 1."""
    if share >= WHOLE:
        return count
    lowered = max(1, count * share // WHOLE)
    spare = max(0, lowered.bit_length() - DIGITS)
    return lowered >> spare << spare


def with_count(limit: Limit, count: int) -> Limit:
    """A window with a lower count, which reads the same states; a bucket stays as it is."""
    if limit.algorithm in BUCKETS or count >= limit.count:
        return limit
    debt = None if limit.debt is None else min(MOST, limit.owes - count)
    if limit.calendar is not None:
        unit, zone = limit.calendar.unit, limit.calendar.timezone
        return Limit(count, unit, debt=debt, window="calendar", timezone=zone)
    window = "first-use" if limit.algorithm == "first_use_window" else None
    algorithm = None if window else limit.algorithm
    return Limit(count, limit.period, algorithm=algorithm, slices=limit.slices, debt=debt, window=window)  # type: ignore[arg-type]


def slower_bucket(check: Check, number: int, part: Limit, share: int) -> list[Check]:
    """A bucket of the same rate, counted more finely, in which each unit costs more than one.

    Its states depend on the rate alone: processes that know different shares still count together.
    """
    for scale in (SCALE, 1):
        each = -(-scale * WHOLE // share)
        try:
            limit = Limit(part.count * scale, part.period, burst=part.burst * each, algorithm=part.algorithm)  # type: ignore[arg-type]
        except InvalidLimit:  # too fine for a state
            continue
        return [Check(f"{check.space} slower {number}", check.key, limit, check.cost * each, check.on_store_error)]
    return []
