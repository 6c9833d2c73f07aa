"""Decision: the answer of one limit.  Verdict: the answer to a plan.

A Decision keeps the evidence (limit, state, instant, cost) and works out its answers when they are read, with the same
pure rule that decided.
"""

from __future__ import annotations

from ratekeeper import native
from ratekeeper.check import whole_cost
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
    """Answers that were given, in the place of a limit whose rule works them out."""

    __slots__ = ("capacity", "delay_given", "parts_given", "reason", "remaining_given", "reset_given", "retry_given")

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
        self.remaining_given = remaining
        self.retry_given = retry
        self.reset_given = reset
        self.delay_given = delay
        self.reason = reason
        self.parts_given = parts

    @property
    def rule(self) -> PresetDecision:
        return self

    def remaining(self, state: State, now: int, limit: PresetDecision) -> int:
        return self.remaining_given

    def retry_after(self, state: State, now: int, limit: PresetDecision, cost: int) -> int | None:
        return self.retry_given

    def reset_after(self, state: State, now: int, limit: PresetDecision) -> int:
        return self.reset_given

    def delay(self, state: State, now: int, limit: PresetDecision, cost: int) -> int:
        return self.delay_given


class Decision(tuple):  # type: ignore[type-arg]
    """One answer.  True where the call was admitted, so ``if limiter.check(key):`` reads as it should.

    A tuple only so as to be frozen and cheap; its items are nobody's business.  The answers are exact as of
    the instant of the decision.
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
        given = PresetDecision(
            limit, remaining, retry, to_micros(reset_after, "reset_after"), to_micros(delay, "delay")
        )
        return tuple.__new__(cls, (bool(allowed), given, None, 0, 0))

    def __bool__(self) -> bool:
        return self[0]

    @property
    def allowed(self) -> bool:
        """Whether the call was admitted."""
        return self[0]

    @property
    def limit(self) -> int:
        """The capacity: the most that could ever pass at once.  Of several limits, the binding one's."""
        if self[1].__class__ is LimitSet:
            return self.binding().limit
        return self[1].capacity

    @property
    def remaining(self) -> int:
        """How much cost would be admitted right after this decision.  Of several limits, the least."""
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
        """Seconds until the key is as good as new."""
        _, limit, state, now, _ = self
        return limit.rule.reset_after(state, now, limit) / SECOND

    @property
    def delay(self) -> float:
        """Seconds to wait for one's turn: an admitted call of a leaky bucket; else 0.0."""
        allowed, limit, state, now, cost = self
        return limit.rule.delay(state, now, limit, cost) / SECOND if allowed else 0.0

    @property
    def at(self) -> int:
        """The instant of the decision on the store's clock, in microseconds."""
        return self[3]

    @property
    def reason(self) -> str:
        """Empty where the store decided; else what stood in for it and why: ``"local: gave no answer in 50 ms"``."""
        return getattr(self[1], "reason", "")

    def parts(self) -> tuple[Decision, ...]:
        """Each limit's own decision, where several were decided as one; else just this one."""
        allowed, limit, state, now, cost = self
        if limit.__class__ is not LimitSet:
            return limit.parts_given if limit.__class__ is PresetDecision and limit.parts_given else (self,)
        return tuple(
            decided(Decision, (allowed or part.rule.decide(own, now, part, cost)[1], part, own, now, cost))
            for part, own in zip(limit.limits, state, strict=True)
        )

    def binding(self) -> Decision:
        """The part that decided: the refusal with the longest wait, else the one with least remaining."""
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


def binding(decisions: Iterable[Decision]) -> Decision:
    """The one that decides for all: the refusal with the longest wait, else the one with least remaining."""
    return max(decisions, key=weight)


def weight(decision: Decision) -> tuple[bool, float, int]:
    """Orders decisions by how much they hold a caller back."""
    if decision.allowed:
        return False, 0.0, -decision.remaining
    wait = decision.retry_after
    return True, FOREVER if wait is None else wait, 0


def longest_wait(decisions: Iterable[Decision]) -> float | None:
    """Seconds until all would be admitted: 0.0 if all were, None if one never can be."""
    longest = 0.0
    for decision in decisions:
        if not decision.allowed:
            wait = decision.retry_after
            if wait is None:
                return None
            longest = max(longest, wait)
    return longest


def decision_json(decision: Decision) -> dict[str, Any]:
    """A decision in the words of the product, with the mode of the fallback if the store did not decide."""
    mode = decision.reason.partition(":")[0]  # the rest may name hosts, which callers must not learn
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
decided = tuple.__new__  # decided(Decision, (allowed, limit, state, now, cost)): the rules' own way to make one

if not TYPE_CHECKING and core is not None:  # its C twin takes its place, and keeps what stores in Python decide in it
    core.learn(encode, whole_cost, to_micros, InvalidInput, Decision)
    Decision, decided = core.Decision, core.decided


class Verdict(Frozen):
    """The answer to a plan: admitted only if every check in it was.

    ``decisions`` are in the order of the plan, a limit each; ``names`` says which rule each belongs to.
    """

    __slots__ = ("allowed", "decisions", "names", "reason")
    allowed: bool
    decisions: tuple[Decision, ...]
    names: tuple[str, ...]
    reason: str

    def __init__(
        self, allowed: bool, decisions: tuple[Decision, ...], names: tuple[str, ...] = (), reason: str = ""
    ) -> None:
        self.fix(allowed=allowed, decisions=decisions, names=names, reason=reason)

    def __bool__(self) -> bool:
        return self.allowed

    @property
    def binding(self) -> Decision | None:
        """The refusal with the longest wait, else the decision with least remaining."""
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
        """Seconds: the longest of the refused; None if one of them can never pass."""
        return longest_wait(self.decisions)

    @property
    def remaining(self) -> int:
        """The least of all decisions."""
        return min((decision.remaining for decision in self.decisions), default=UNLIMITED)

    @property
    def reset_after(self) -> float:
        """Seconds: the longest of all decisions."""
        return max((decision.reset_after for decision in self.decisions), default=0.0)

    @property
    def delay(self) -> float:
        """Seconds: the longest of all decisions."""
        return max((decision.delay for decision in self.decisions), default=0.0)

    def __repr__(self) -> str:
        facts = f"rule={self.rule!r}, retry_after={self.retry_after}, remaining={self.remaining}"
        return f"Verdict(allowed={self.allowed}, {facts})"
