"""The words of the product as values: Limit, Check, Plan, Decision, Verdict.

All are frozen.  Instants and durations are whole microseconds inside and seconds at the public edge.
A Decision keeps the evidence (limit, state, instant, cost) and works out its answers when they are read,
with the same pure rule that decided.
"""

from __future__ import annotations

from ratekeeper import native
from ratekeeper.algorithms import BUCKETS, RULES, rule_of, several, unlimited
from ratekeeper.errors import InvalidCost, InvalidInput, InvalidLimit, did_you_mean, shown
from ratekeeper.keys import encode
from ratekeeper.units import LEASE, SECOND, format_period, parse_limit, parse_period, to_micros

core = native.core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import ModuleType
    from typing import Any, NoReturn

    from ratekeeper.units import Seconds

    State = Any  # one whole number or a tuple of them: only the rule that wrote it reads it
    Plan = tuple["Check", ...]

MOST = 10**12  # the largest count and burst: a terabyte a month, counted in bytes
UNLIMITED = 10**15 - 1  # what "unlimited" reports; the largest whole number of an HTTP structured field
LONGEST_PERIOD = 400 * 86_400 * SECOND
LONGEST_LOG = 2**20
MOST_SLICES = 100
MOST_LEASES = 2**16
# Bounds that let a 64-bit word and a double hold the same numbers as a Python integer.
MOST_DRAIN = 2**26
MOST_TICKS = 2**52
LONGEST_RECOVERY = 2**51


class Frozen:
    """Attributes are set once, by ``__init__`` through ``fix``."""

    __slots__ = ()

    def fix(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be changed: make a new {type(self).__name__}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be deleted")

    def __setstate__(self, state: tuple[None, dict[str, object]]) -> None:
        """Copied or unpickled: the one other time that attributes are set."""
        self.fix(**state[1])


class Limit(Frozen):
    """So many per so long: ``Limit(100, "minute")``, ``Limit(10, 1, burst=20, algorithm="token_bucket")``.

    ``Limit("100/minute")`` reads a text, as ``parse`` does.
    ``period`` is in seconds, a timedelta, or text such as ``"10 seconds"``.  ``burst`` is what a bucket holds,
    by default ``count``; windows have none.  ``slices`` cuts a ``sliding_window`` into that many parts.
    """

    __slots__ = (
        "algorithm",  # its name, and
        "burst",
        "capacity",  # the most that can pass at once: burst, or a window's count
        "count",
        "drain",  # ticks in a microsecond
        "full",  # ticks in a burst
        "micros",  # the period
        "rule",  # the module of pure functions that decides
        "slices",
        "unit",  # ticks in one unit of cost
    )
    count: int
    micros: int
    burst: int
    algorithm: str
    slices: int
    capacity: int
    unit: int
    drain: int
    full: int
    rule: ModuleType

    def __init__(
        self,
        count: int | str,
        period: Seconds | str | None = None,
        *,
        burst: int | None = None,
        algorithm: str | None = None,
        slices: int = 1,
    ) -> None:
        if period is None:
            self._copy(Limit.parse(count, algorithm), burst, slices)  # type: ignore[arg-type]
            return
        place = f"limit {shown(count)} per {shown(period)}"
        micros = parse_period(period, place) if isinstance(period, str) else to_micros(period, place)
        self._build(place, count, micros, burst, "gcra" if algorithm is None else algorithm, slices)  # type: ignore[arg-type]

    def _copy(self, read: Limit, burst: int | None, slices: int) -> None:
        if burst is not None or slices != 1:
            raise InvalidLimit(
                f"limit {str(read)!r}: expected burst and slices in the text, got them beside it. "
                f"Write '{read} burst 20', or give the period as well."
            )
        self.fix(**{name: getattr(read, name) for name in self.__slots__})

    def _build(self, place: str, count: int, micros: int, burst: int | None, algorithm: str, slices: int) -> None:
        if algorithm not in RULES:
            near = did_you_mean(str(algorithm), RULES)
            raise InvalidLimit(f"{place}: expected an algorithm ({', '.join(RULES)}), got {shown(algorithm)}.{near}")
        most = {"sliding_log": LONGEST_LOG, "concurrency": MOST_LEASES}.get(algorithm, MOST)
        whole(place, "a count", count, most, zero="To refuse everybody, take the route away.")
        if not 1 <= micros <= LONGEST_PERIOD:
            raise InvalidLimit(
                f"{place}: expected a period from 1 microsecond to 400 days, got {micros / SECOND:.9g} seconds."
            )
        if algorithm in BUCKETS:
            whole(
                place, "a burst", count if burst is None else burst, MOST, zero="To allow no bursts, write 'burst 1'."
            )
        elif burst is not None and burst != count:
            raise InvalidLimit(
                f"{place}: expected no burst, as {algorithm} admits its count at once, got burst {shown(burst)}. "
                f"Use gcra, token_bucket or leaky_bucket for a burst."
            )
        whole(place, "slices", slices, MOST_SLICES, zero="The classic two counters are 'slices 1'.")
        if slices != 1 and algorithm != "sliding_window":
            raise InvalidLimit(f"{place}: expected slices with sliding_window only, got {algorithm}.")
        capacity = count if burst is None else burst
        if count > MOST_DRAIN * micros:
            raise InvalidLimit(f"{place}: expected at most {MOST_DRAIN:,} per microsecond, got {count:,} per {micros}.")
        unit, drain = ticks(place, count, micros, capacity) if algorithm in BUCKETS else (1, 1)
        self.fix(
            count=count,
            micros=micros,
            burst=capacity,
            algorithm=algorithm,
            slices=slices,
            capacity=capacity,
            unit=unit,
            drain=drain,
            full=capacity * unit,
            rule=rule_of(algorithm),
        )

    @classmethod
    def parse(cls, text: str | Limit, algorithm: str | None = None) -> Limit:
        """``"100/minute"``, ``"10/s burst 20"``, ``"5 per 10 seconds sliding_log"``, ``"unlimited"``.

        ``algorithm`` is taken for a text that does not name one.
        """
        if isinstance(text, Limit):
            if algorithm not in (None, text.algorithm) and not text.is_unlimited:
                raise InvalidLimit(
                    f"limit {str(text)!r}: expected its own algorithm {text.algorithm}, got {shown(algorithm)} "
                    f"beside it. Make the Limit with algorithm={shown(algorithm)}."
                )
            return text
        if not isinstance(text, str):
            raise InvalidLimit(
                f"limit: expected text such as '100/minute' or a Limit, got {shown(text)} ({type(text).__name__})."
            )
        if text.strip().lower() == "unlimited":
            return UNLIMITED_LIMIT
        found: dict[str, Any] = parse_limit(text)
        place = f"limit {shown(text)}"
        if algorithm is not None and found.setdefault("algorithm", algorithm) != algorithm:
            raise InvalidLimit(
                f"{place}: expected one algorithm, got {found['algorithm']} in the text "
                f"and {shown(algorithm)} beside it."
            )
        made = cls.__new__(cls)
        made._build(
            place,
            found["count"],
            found["micros"],
            found.get("burst"),
            found.get("algorithm", "gcra"),
            found.get("slices", 1),
        )
        return made

    @property
    def period(self) -> float:
        """Seconds."""
        return self.micros / SECOND

    @property
    def is_unlimited(self) -> bool:
        """Whether everything is admitted."""
        return self.algorithm == "unlimited"

    @property
    def is_leased(self) -> bool:
        """Whether what is taken is held, and given back: ``"20 concurrent"``."""
        return self.algorithm == "concurrency"

    @property
    def layout(self) -> str:
        """Names the meaning of a state: two limits may share states only if this is equal."""
        if self.algorithm in BUCKETS:
            return f"bucket:{self.unit}:{self.drain}"
        if self.algorithm in ("sliding_log", "concurrency"):
            return "log" if self.algorithm == "sliding_log" else "leases"
        return f"{self.algorithm}:{self.micros}:{self.slices}"

    def __str__(self) -> str:
        if self.is_unlimited:
            return "unlimited"
        period = format_period(self.micros)
        if self.is_leased:
            lasts = "" if self.micros == LEASE else f" for {period}" if " " in period else f" for 1 {period}"
            return f"{self.count} concurrent{lasts}"
        words = [f"{self.count} per {period}" if " " in period else f"{self.count}/{period}"]
        if self.burst != self.count:
            words.append(f"burst {self.burst}")
        if self.algorithm != "gcra":
            words.append(self.algorithm)
        if self.slices != 1:
            words.append(f"slices {self.slices}")
        return " ".join(words)

    def __repr__(self) -> str:
        return f"Limit.parse({str(self)!r})"

    def _identity(self) -> tuple[object, ...]:
        return self.count, self.micros, self.burst, self.algorithm, self.slices

    def __eq__(self, other: object) -> bool:
        return self._identity() == other._identity() if isinstance(other, Limit) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._identity())

    def __reduce__(self) -> tuple[object, ...]:
        return Limit.parse, (str(self),)


def make_unlimited() -> Limit:
    made = Limit.__new__(Limit)
    made.fix(
        count=UNLIMITED,
        micros=SECOND,
        burst=UNLIMITED,
        algorithm="unlimited",
        slices=1,
        capacity=UNLIMITED,
        unit=1,
        drain=1,
        full=UNLIMITED,
        rule=unlimited,
    )
    return made


UNLIMITED_LIMIT = make_unlimited()


def whole(place: str, what: str, value: object, most: int, zero: str) -> None:
    if value.__class__ is not int:
        raise InvalidLimit(f"{place}: expected {what} as a whole number, got {shown(value)}.")
    if not 1 <= value <= most:
        advice = f" {zero}" if value == 0 else ""
        raise InvalidLimit(f"{place}: expected {what} from 1 to {most:,}, got {shown(value)}.{advice}")


def ticks(place: str, count: int, micros: int, burst: int) -> tuple[int, int]:
    """The ticks of one unit of cost and of one microsecond: ``unit / drain`` microseconds a unit, exactly.

    Where that fraction is too fine for the fixed-size words of the other twins it is rounded up, against the
    caller, by less than one part in 10^9; a limit that cannot be held that closely is refused.
    """
    from math import gcd  # built in, but not loaded by a bare interpreter

    shared = gcd(count, micros)
    unit, drain = micros // shared, count // shared
    most = min(MOST_DRAIN, MOST_TICKS // burst)
    if drain > most:
        unit, drain = fraction_above(micros, count, most)
        if (unit * count - micros * drain) * 10**9 >= micros * drain:
            raise InvalidLimit(
                f"{place}: expected a rate that can be held to one part in 10^9, "
                f"got {count} per {micros} microseconds. "
                "Round the count to fewer digits, or lower the burst."
            )
    recovery = -(-burst * unit // drain)
    if recovery > LONGEST_RECOVERY:
        raise InvalidLimit(
            f"{place}: expected a burst that is recovered within 70 years, "
            f"got {recovery // (365 * 86_400 * SECOND)} years. "
            "Lower the burst."
        )
    return unit, drain


def fraction_above(numerator: int, denominator: int, most: int) -> tuple[int, int]:
    """The least fraction not below ``numerator / denominator`` whose denominator is at most ``most``."""
    low, low_of = numerator // denominator, 1
    high, high_of = low + 1, 1
    below = numerator - denominator * low  # how far the number lies above the lower bound, and below the upper one
    above = denominator * high - numerator
    while below and above and high_of + low_of <= most:
        # Add the upper bound to the lower one as often as that stays below the number, then the other way round.
        steps = min(below // above, (most - low_of) // high_of)
        low, low_of, below = low + steps * high, low_of + steps * high_of, below - steps * above
        if below:
            steps = min(above // below, (most - high_of) // low_of)
            high, high_of, above = high + steps * low, high_of + steps * low_of, above - steps * below
    return (high, high_of) if below else (low, low_of)


class Several(Frozen):
    """Limits that are decided as one, all or nothing; stands where a Limit stands."""

    __slots__ = ("limits",)
    limits: tuple[Limit, ...]
    rule = several
    is_leased = False

    def __init__(self, limits: Sequence[Limit]) -> None:
        self.fix(limits=tuple(limits))

    @property
    def layout(self) -> str:
        return ",".join(limit.layout for limit in self.limits)

    def __str__(self) -> str:
        return ", ".join(str(limit) for limit in self.limits)

    def __repr__(self) -> str:
        return f"Several({list(self.limits)!r})"

    def __eq__(self, other: object) -> bool:
        return self.limits == other.limits if isinstance(other, Several) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.limits)


def parse_limits(
    limits: str | Limit | Several | Iterable[str | Limit], algorithm: str | None = None
) -> Limit | Several:
    """One limit, or several that hold together; "unlimited" among others adds nothing."""
    if isinstance(limits, Several):
        return limits
    if isinstance(limits, (str, Limit, bytes, dict)):  # the last two would be taken for lists, of what they are not
        return Limit.parse(limits, algorithm)  # type: ignore[arg-type]
    try:
        found = [Limit.parse(limit, algorithm) for limit in limits]
    except TypeError as error:
        if isinstance(error, InvalidLimit):
            raise
        raise InvalidLimit(f"limits: expected a limit or a list of them, got {shown(limits)}.") from None
    if not found:
        raise InvalidLimit(
            "limits: expected at least one limit, got an empty list. Write 'unlimited' to limit nothing."
        )
    kept = [limit for limit in dict.fromkeys(found) if not limit.is_unlimited]
    if not kept:
        return UNLIMITED_LIMIT
    if len(kept) > 1 and any(limit.is_leased for limit in kept):
        raise InvalidLimit(
            f"limits: expected '{next(limit for limit in kept if limit.is_leased)}' alone, as it is given back and the "
            "others are not, got a list. Put it into a limiter or a rule of its own."
        )
    return kept[0] if len(kept) == 1 else Several(kept)


def doubled(limit: Any) -> Limit:
    """``limit`` with room for twice as many leases: its states are the same."""
    return Limit(2 * limit.count, limit.period, algorithm=limit.algorithm)


def empty_state(limit: Limit | Several) -> State:
    """The state of a key that nobody has used."""
    limits = getattr(limit, "limits", None)
    return limit.rule.EMPTY if limits is None else tuple([part.rule.EMPTY for part in limits])


def whole_cost(cost: object, least: int = 1) -> int:
    """``cost`` as a whole number, or InvalidCost; other integer types (numpy's) are taken at their word."""
    if cost.__class__ is int and least <= cost <= UNLIMITED:
        return cost
    if not isinstance(cost, bool):
        index = getattr(type(cost), "__index__", None)
        number = index(cost) if index is not None else None
        if number is not None and least <= number <= UNLIMITED:
            return int(number)
    raise InvalidCost(f"cost: expected a whole number from {least} to {UNLIMITED:,}, got {shown(cost)}.")


class Check(Frozen):
    """One subject of a plan: ``cost`` for ``key`` under ``limit``, counted in the space of that name.

    ``on_store_error`` says what decides if the store cannot: local, allow or deny; None leaves it to the store.
    """

    __slots__ = ("cost", "key", "limit", "on_store_error", "space")
    space: str
    key: str | bytes  # encoded: see keys.py
    limit: Limit | Several
    cost: int
    on_store_error: str | None

    def __init__(
        self, space: str, key: str | bytes, limit: Limit | Several, cost: int, on_store_error: str | None = None
    ) -> None:
        fix = object.__setattr__
        fix(self, "space", space)
        fix(self, "key", key)
        fix(self, "limit", limit)
        fix(self, "cost", cost)
        fix(self, "on_store_error", on_store_error)

    def __repr__(self) -> str:
        return f"Check({self.space!r}, <key>, {str(self.limit)!r}, cost={self.cost})"


class Given:
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
    def rule(self) -> Given:
        return self

    def remaining(self, state: State, now: int, limit: Given) -> int:
        return self.remaining_given

    def retry_after(self, state: State, now: int, limit: Given, cost: int) -> int | None:
        return self.retry_given

    def reset_after(self, state: State, now: int, limit: Given) -> int:
        return self.reset_given

    def delay(self, state: State, now: int, limit: Given, cost: int) -> int:
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
        given = Given(limit, remaining, retry, to_micros(reset_after, "reset_after"), to_micros(delay, "delay"))
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
        if self[1].__class__ is Several:
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
        if limit.__class__ is not Several:
            return limit.parts_given if limit.__class__ is Given and limit.parts_given else (self,)
        return tuple(
            decided(Decision, (allowed or part.rule.decide(own, now, part, cost)[1], part, own, now, cost))
            for part, own in zip(limit.limits, state, strict=True)
        )

    def binding(self) -> Decision:
        """The part that decided: the refusal with the longest wait, else the one with least remaining."""
        parts = self.parts()
        refused = [part for part in parts if not part.allowed]
        if refused:
            return max(refused, key=lambda part: float("inf") if part.retry_after is None else part.retry_after)
        return min(parts, key=lambda part: part.remaining)

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
        index = self._binding_index()
        return None if index is None else self.decisions[index]

    @property
    def rule(self) -> str | None:
        """The name of the binding rule."""
        index = self._binding_index()
        return self.names[index] if index is not None and self.names else None

    @property
    def retry_after(self) -> float | None:
        """Seconds: the longest of the refused; None if one of them can never pass."""
        waits = [decision.retry_after for decision in self.decisions if not decision.allowed]
        return None if None in waits else max((wait for wait in waits if wait is not None), default=0.0)

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

    def _binding_index(self) -> int | None:
        def weight(index: int) -> tuple[bool, float, int]:
            decision = self.decisions[index]
            wait = float("inf") if decision.retry_after is None else decision.retry_after
            return not decision.allowed, wait, -decision.remaining

        return max(range(len(self.decisions)), key=weight, default=None)

    def __repr__(self) -> str:
        facts = f"rule={self.rule!r}, retry_after={self.retry_after}, remaining={self.remaining}"
        return f"Verdict(allowed={self.allowed}, {facts})"
