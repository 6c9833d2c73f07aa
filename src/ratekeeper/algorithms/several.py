"""Several limits on one key, decided as one: all or nothing.

Not an algorithm of its own: the same functions as each of them, over a tuple of their states.

Law: a refusal by one limit changes the state of none; waiting the longest of the refused limits' waits
admits, one microsecond less does not.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ratekeeper.limit import LimitSet, State

    States = tuple[State, ...]


def decide(state: States, now: int, limit: LimitSet, cost: int) -> tuple[States, bool]:
    after: list[State] = []
    before: list[State] = []
    allowed = True
    repaired = False
    for part, old in zip(limit.limits, state, strict=True):
        new, fits = part.rule.decide(old, now, part, cost)
        after.append(new)
        if fits:
            before.append(old)
        else:  # differs from the old state only where a clock stepped back or a limit was lowered
            allowed = False
            before.append(new)
            repaired = repaired or new is not old
    if allowed:
        return tuple(after), True
    return (tuple(before) if repaired else state), False


def remaining(state: States, now: int, limit: LimitSet) -> int:
    return min(part.rule.remaining(its_state, now, part) for part, its_state in zip(limit.limits, state, strict=True))


def retry_after(state: States, now: int, limit: LimitSet, cost: int) -> int | None:
    longest = 0
    for part, its_state in zip(limit.limits, state, strict=True):
        wait = part.rule.retry_after(its_state, now, part, cost)
        if wait is None:
            return None
        longest = max(longest, wait)
    return longest


def reset_after(state: States, now: int, limit: LimitSet) -> int:
    return max(part.rule.reset_after(its_state, now, part) for part, its_state in zip(limit.limits, state, strict=True))


def delay(state: States, now: int, limit: LimitSet, cost: int) -> int:
    return max(part.rule.delay(its_state, now, part, cost) for part, its_state in zip(limit.limits, state, strict=True))


def refund(state: States, now: int, limit: LimitSet, cost: int, at: int) -> States:
    return tuple(
        part.rule.refund(its_state, now, part, cost, at) for part, its_state in zip(limit.limits, state, strict=True)
    )


def debit(state: States, now: int, limit: LimitSet, cost: int) -> States:
    return tuple(
        part.rule.debit(its_state, now, part, cost) for part, its_state in zip(limit.limits, state, strict=True)
    )


def debt(state: States, now: int, limit: LimitSet) -> int:
    """How long the limit that is used most takes to give back what was used, in 2^-20 microseconds.

    Not the time until all is forgotten: a log forgets the newest unit last, so the key that came last would owe most.
    """
    return max(
        -(-(part.capacity - part.rule.remaining(its_state, now, part)) * part.micros * 2**20 // part.count)
        for part, its_state in zip(limit.limits, state, strict=True)
    )
