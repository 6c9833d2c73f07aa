"""Decision: the answer of one limit.  Verdict: the answer to a plan.

A Decision stores the evidence (limit, state, instant, cost).  It works out each answer when it is read, with the same
pure rule that decided.
"""

from __future__ import annotations

from time import time_ns

from ratekeeper import native
from ratekeeper.check import to_cost
from ratekeeper.errors import InvalidInput
from ratekeeper.keys import encode
from ratekeeper.limit import UNLIMITED, Frozen, LimitSet
from ratekeeper.units import SECOND, to_micros

core = native.core

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    State = Any  # one whole number or a tuple of them: only the rule that wrote it reads it


class PresetDecision:
    """Known answers, in the place of the limit of a Decision whose rule would work them out."""

    __slots__ = (
        "capacity",
        "known_delay",
        "known_parts",
        "known_remaining",
        "known_reset",
        "known_retry",
        "reason",
    )

    def __init__(
        self,
        capacity: int,
        remaining: int,
        retry: int | None,
        reset: int,
        delay: int,
        reason: str = "",
        parts: tuple[Decision, ...] = (),
    ) -> None:
        self.capacity = capacity
        self.known_remaining = remaining
        self.known_retry = retry
        self.known_reset = reset
        self.known_delay = delay
        self.reason = reason
        self.known_parts = parts

    @property
    def rule(self) -> PresetDecision:
        return self

    def remaining(self, state: State, now: int, limit: PresetDecision) -> int:
        return self.known_remaining

    def retry_after(self, state: State, now: int, limit: PresetDecision, cost: int) -> int | None:
        return self.known_retry

    def reset_after(self, state: State, now: int, limit: PresetDecision) -> int:
        return self.known_reset

    def delay(self, state: State, now: int, limit: PresetDecision, cost: int) -> int:
        return self.known_delay


class Decision(tuple):  # type: ignore[type-arg]
    """The answer to one call.  It is true if the call was admitted: ``if limiter.check(key): ...``.

    The answers are exact as of the instant of the decision.  Do not index it; use the attributes.
    """

    __slots__ = ()

    def __new__(
        cls,
        allowed: bool,
        limit: int,
        remaining: int,
        retry_after: float | None = 0.0,
        reset_after: float = 0.0,
        delay: float = 0.0,
    ) -> Decision:
        retry = None if retry_after is None else to_micros(retry_after, "retry_after")
        preset = PresetDecision(
            limit, remaining, retry, to_micros(reset_after, "reset_after"), to_micros(delay, "delay")
        )
        return tuple.__new__(cls, (bool(allowed), preset, None, 0, 0))

    def __bool__(self) -> bool:
        return self[0]

    @property
    def allowed(self) -> bool:
        """Whether the call was admitted."""
        return self[0]

    @property
    def limit(self) -> int:
        """The capacity: the most that can pass at once.  Of several limits, that of the binding one."""
        if self[1].__class__ is LimitSet:
            return self.binding().limit
        return self[1].capacity

    @property
    def remaining(self) -> int:
        """How much cost would be admitted right after this decision.  Of several limits, the smallest."""
        _, limit, state, now, _ = self
        return limit.rule.remaining(state, now, limit)

    @property
    def retry_after(self) -> float | None:
        """Seconds until the same call would be admitted: 0.0 if it was, None if it never can be."""
        allowed, limit, state, now, cost = self
        if allowed:
            return 0.0
        wait = limit.rule.retry_after(state, now, limit, cost)
        return None if wait is None else wait / SECOND

    @property
    def reset_after(self) -> float:
        """Seconds until the full limit is available again."""
        _, limit, state, now, _ = self
        return limit.rule.reset_after(state, now, limit) / SECOND

    @property
    def reset_at(self) -> float:
        """The instant at which the full limit is available again, in seconds since 1970.

        Exact for limits that follow the time of day; of the others it is the present instant and ``reset_after``.
        """
        _, limit, state, now, _ = self
        return reset_instant(
            now if getattr(limit, "is_aligned", False) else 0, limit.rule.reset_after(state, now, limit)
        )

    @property
    def delay(self) -> float:
        """Seconds that a call admitted by a leaky bucket has to wait for its turn; else 0.0."""
        allowed, limit, state, now, cost = self
        return limit.rule.delay(state, now, limit, cost) / SECOND if allowed else 0.0

    @property
    def at(self) -> int:
        """The instant of the decision on the store's clock, in microseconds."""
        return self[3]

    @property
    def reason(self) -> str:
        """Empty if the store decided; else its fallback and why: ``"local: gave no answer in 50 ms"``."""
        return getattr(self[1], "reason", "")

    def parts(self) -> tuple[Decision, ...]:
        """The decision of each limit, if several were decided as one; else this decision alone."""
        allowed, limit, state, now, cost = self
        if limit.__class__ is not LimitSet:
            return limit.known_parts if limit.__class__ is PresetDecision and limit.known_parts else (self,)
        return tuple(
            new_decision(
                Decision, (allowed or part.rule.decide(its_state, now, part, cost)[1], part, its_state, now, cost)
            )
            for part, its_state in zip(limit.limits, state, strict=True)
        )

    def binding(self) -> Decision:
        """The part that decided: the refusal with the longest wait, else the part with the least remaining."""
        return binding(self.parts())

    def _answers(self) -> tuple[bool, int, int, float | None, float, float]:
        return self.allowed, self.limit, self.remaining, self.retry_after, self.reset_after, self.delay

    def __eq__(self, other: object) -> bool:
        return self._answers() == other._answers() if isinstance(other, Decision) else NotImplemented

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self._answers())

    def __repr__(self) -> str:
        return (
            f"Decision(allowed={self.allowed}, limit={self.limit}, remaining={self.remaining}, "
            f"retry_after={self.retry_after}, reset_after={self.reset_after}, delay={self.delay})"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return Decision, self._answers()


def reset_instant(now: int, micros: int) -> float:
    """Seconds since 1970, ``micros`` after ``now``; 0 is the present."""
    return ((now or time_ns() // 1000) + micros) / SECOND


def binding(decisions: Iterable[Decision]) -> Decision:
    """The decision that binds: the refusal with the longest wait, else the decision with the least remaining."""
    return max(decisions, key=weight)


def weight(decision: Decision) -> tuple[bool, float, int]:
    """A sort key: the heavier a decision, the more it holds its caller back."""
    if decision.allowed:
        return False, 0.0, -decision.remaining
    wait = decision.retry_after
    return True, FOREVER if wait is None else wait, 0


def longest_wait(decisions: Iterable[Decision]) -> float | None:
    """Seconds until all of them would be admitted: 0.0 if all were, None if one never can be."""
    longest = 0.0
    for decision in decisions:
        if not decision.allowed:
            wait = decision.retry_after
            if wait is None:
                return None
            longest = max(longest, wait)
    return longest


def decision_json(decision: Decision) -> dict[str, Any]:
    """A decision as JSON, in the words of its attributes; ``reason`` is the mode of the fallback, if that decided."""
    mode = decision.reason.partition(":")[0]  # the rest may name hosts, which callers must not see
    return {
        "allowed": decision.allowed,
        "limit": decision.limit,
        "remaining": decision.remaining,
        "retry_after": decision.retry_after,
        "reset_after": decision.reset_after,
        "delay": decision.delay,
        **({"reason": mode} if mode else {}),
    }


FOREVER = float("inf")
new_decision = tuple.__new__  # new_decision(Decision, (allowed, limit, state, now, cost)): a Decision from its evidence

if not TYPE_CHECKING and core is not None:  # the C twin replaces Decision; stores in Python make the C one too
    core.learn(encode, to_cost, to_micros, InvalidInput, Decision)
    Decision, new_decision = core.Decision, core.new_decision


class Verdict(Frozen):
    """The answer to a plan: ``allowed`` only if every check in it was.

    ``decisions`` has one decision for each limit, in the order of the plan, and ``names`` the name of its rule.
    ``reason`` is empty if the store decided, else its fallback and why.
    """

    __slots__ = ("allowed", "decisions", "names", "reason")
    allowed: bool
    decisions: tuple[Decision, ...]
    names: tuple[str, ...]
    reason: str

    def __init__(
        self, allowed: bool, decisions: tuple[Decision, ...], names: tuple[str, ...] = (), reason: str = ""
    ) -> None:
        self._set(allowed=allowed, decisions=decisions, names=names, reason=reason)

    def __bool__(self) -> bool:
        return self.allowed

    @property
    def binding(self) -> Decision | None:
        """The refusal with the longest wait, else the decision with the least remaining."""
        return binding(self.decisions) if self.decisions else None

    @property
    def rule(self) -> str | None:
        """The name of the binding rule."""
        decisions = self.decisions
        if not decisions or not self.names:
            return None
        return self.names[max(range(len(decisions)), key=lambda index: weight(decisions[index]))]

    @property
    def retry_after(self) -> float | None:
        """Seconds until the same request would be admitted: the longest of all refusals; None if one never can be."""
        return longest_wait(self.decisions)

    @property
    def remaining(self) -> int:
        """The smallest of all decisions."""
        return min((decision.remaining for decision in self.decisions), default=UNLIMITED)

    @property
    def reset_after(self) -> float:
        """Seconds until the full limit is available again: the longest of all decisions."""
        return max((decision.reset_after for decision in self.decisions), default=0.0)

    @property
    def reset_at(self) -> float:
        """The instant at which the full limit is available again, in seconds since 1970: the latest instant."""
        return max((decision.reset_at for decision in self.decisions), default=time_ns() / 1e9)

    @property
    def delay(self) -> float:
        """Seconds to wait for the turn of an admitted request: the longest of all decisions."""
        return max((decision.delay for decision in self.decisions), default=0.0)

    def __repr__(self) -> str:
        facts = f"rule={self.rule!r}, retry_after={self.retry_after}, remaining={self.remaining}"
        return f"Verdict(allowed={self.allowed}, {facts})"
