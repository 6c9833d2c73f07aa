"""The words of the suite: a limit, an answer, and what a target promises."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

SECOND = 1_000_000  # all times of the suite are whole microseconds
NEVER = "never"  # the retry_after of a cost that no wait admits

ALGORITHMS = (
    "fixed_window",  # windows aligned to 1970
    "first_use_window",  # a window starts with the first call after the last one ended
    "sliding_log",
    "sliding_window",  # two counters, the older one weighted
    "token_bucket",
    "leaky_bucket",  # as a meter; a target may also make the admitted caller wait
    "gcra",
)
BUCKETS = ("token_bucket", "leaky_bucket", "gcra")

FEATURES = (
    "cost",  # a call may take more than one unit
    "positive_cost",  # a cost below 1 is an error or takes nothing; elsewhere it may be meant as a refund
    "remaining",
    "retry_after",
    "reset_after",
    "keys",  # one limiter counts many keys apart
    "aligned",  # sliding windows begin with the time of day, on real time too
    "several",  # several limits decided together
    "refusal_free",  # a refused call takes nothing
    "concurrent",  # callers of one process may call at the same time
    "processes",  # several processes share one limit through a store
    "expiry",  # every key of the store has an expiry time
    "bounded_memory",  # keys that have recovered are forgotten, or their number is bounded
    "clock_step",  # survives a step of its clock
    "outage",  # answers while its store is away
    "lost_reply",  # a reply that is lost on the way is not counted twice
    "http",  # 429, Retry-After
)


@dataclass(frozen=True)
class Limit:
    """``count`` per ``period`` microseconds; ``burst`` is the capacity of a bucket, and ``count`` elsewhere."""

    algorithm: str
    count: int
    period: int
    burst: int = 0

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise ValueError(f"algorithm: expected one of {', '.join(ALGORITHMS)}, got {self.algorithm!r}.")
        if not self.burst:
            object.__setattr__(self, "burst", self.count)
        elif self.algorithm not in BUCKETS and self.burst != self.count:
            raise ValueError(f"burst: expected none for {self.algorithm}, got {self.burst}. Only buckets have one.")

    def to_json(self) -> dict[str, Any]:
        return {"algorithm": self.algorithm, "count": self.count, "period": self.period, "burst": self.burst}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Limit:
        return cls(fields["algorithm"], fields["count"], fields["period"], fields.get("burst", 0))

    def __str__(self) -> str:
        burst = f" burst {self.burst}" if self.burst != self.count else ""
        return f"{self.algorithm} {self.count} per {Fraction(self.period, SECOND)} s{burst}"

    def most_in(self, interval: int) -> int:
        """The most that may be admitted within ``interval`` microseconds, first and last call included."""
        count, period = self.count, self.period
        if self.algorithm in BUCKETS:
            return self.burst + count * interval // period
        if self.algorithm == "sliding_log":
            return count * (interval // period + 1)
        if self.algorithm == "sliding_window":
            return count + count * interval // period
        return count * (interval // period + 2) if interval else count


@dataclass(frozen=True)
class Answer:
    """What a target said.  Times in microseconds; None: the target does not tell.  ``error``: it raised instead."""

    allowed: bool
    remaining: int | None = None
    retry_after: int | str | None = None
    reset_after: int | None = None
    error: str | None = None

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Answer:
        return cls(
            bool(fields.get("allowed")),
            fields.get("remaining"),
            fields.get("retry_after"),
            fields.get("reset_after"),
            fields.get("error"),
        )

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class Promises:
    """What a target says about itself; it is judged by this and nothing else.

    ``clock`` is ``virtual`` if the suite may set the time.  ``precision`` is how far, in microseconds, a decision may
    lie from the exact instant; ``resolution`` is the step to which it rounds its times up.  ``units`` are the periods
    that it knows, in seconds; none: any.  ``ahead`` are units that it admits in advance, and ``starts_full`` is False
    if a new bucket holds nothing yet.  ``on_outage`` is ``open``, ``closed``, ``local`` or ``error``, and
    ``deadline`` the microseconds within which it then answers.
    """

    algorithms: tuple[str, ...]
    features: frozenset[str]
    clock: str = "real"
    precision: int = 0
    resolution: int = 1
    units: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()
    has_burst: bool = True
    starts_full: bool = True
    ahead: int = 0
    on_outage: str = "error"
    deadline: int = SECOND
    store: str = "memory"
    note: str = ""

    def __post_init__(self) -> None:
        for word in self.features - set(FEATURES):
            raise ValueError(f"features: expected words of {', '.join(FEATURES)}, got {word!r}.")
        for word in set(self.algorithms) - set(ALGORITHMS):
            raise ValueError(f"algorithms: expected words of {', '.join(ALGORITHMS)}, got {word!r}.")
        if self.clock not in ("virtual", "real"):
            raise ValueError(f"clock: expected virtual or real, got {self.clock!r}.")
        if self.on_outage not in ("open", "closed", "local", "error"):
            raise ValueError(f"on_outage: expected open, closed, local or error, got {self.on_outage!r}.")

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Promises:
        unknown = set(fields) - set(cls.__dataclass_fields__)
        if unknown:
            raise ValueError(f"promises: got {', '.join(sorted(unknown))}. See conformance/README.md for the words.")
        found = dict(fields)
        found["algorithms"] = tuple(fields["algorithms"])
        found["features"] = frozenset(fields.get("features", ()))
        for name in ("units", "counts"):
            found[name] = tuple(fields.get(name, ()))
        return cls(**found)

    def to_json(self) -> dict[str, Any]:
        found = dict(vars(self))
        found["features"] = sorted(self.features)
        return found

    def takes(self, limit: Limit) -> bool:
        """Whether the target knows such a limit."""
        return (
            limit.algorithm in self.algorithms
            and (not self.units or limit.period in [unit * SECOND for unit in self.units])
            and (not self.counts or limit.count in self.counts)
            and (self.has_burst or limit.burst == limit.count)
        )


@dataclass
class Call:
    """One call of a recorded history.  The target decided between ``sent`` and ``received``."""

    sent: int
    received: int
    key: str
    cost: int
    answer: Answer
    limits: list[Limit] = field(default_factory=list)

    def told(self) -> str:
        """One line for a report."""
        words = "admitted" if self.answer.allowed else "refused"
        if self.answer.error:
            words = f"error: {self.answer.error}"
        for name in ("remaining", "retry_after", "reset_after"):
            value = getattr(self.answer, name)
            if value is not None:
                words += f", {name} {value}"
        cost = f" cost {self.cost}" if self.cost != 1 else ""
        key = self.key if len(self.key) < 24 else f"{self.key[:8]}...{self.key[-4:]}"
        return f"at {self.sent / SECOND:.6f} s, key {key}{cost}: {words}"
