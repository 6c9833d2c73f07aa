"""Decisions -> HTTP header fields, in dialects by name.

``x-ratelimit``        X-RateLimit-Limit, -Remaining, -Reset; Reset is the Unix time of full recovery (GitHub's way)
``x-ratelimit-delta``  the same with Reset in seconds from now (Envoy's way)
``draft-11``           RateLimit and RateLimit-Policy, draft-ietf-httpapi-ratelimit-headers-08 to -11
``draft-7``            one RateLimit dictionary, and the Policy of -06
``draft-6``            RateLimit-Limit, -Remaining, -Reset and RateLimit-Policy, -04 to -06
``draft-3``            RateLimit-Limit with its windows, -Remaining, -Reset, up to -03

Law: whatever the verdict, each field parses by its own grammar (RFC 9651 where it is structured), Retry-After is a
whole number of at least 1 and never too early, and no field identifies the client.
"""

from __future__ import annotations

from math import ceil
from time import time

from ratekeeper.decision import weight

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ratekeeper.decision import Decision
    from ratekeeper.limit import Limit
    from ratekeeper.rules.rule import Rule

    Field = tuple[bytes, bytes]
    TextField = tuple[str, str]
    Limits = Sequence[tuple["LimitLabel", Decision]]
    Dialect = Callable[["LimitLabel", int, float, int, int, Limits], list[Field]]

LARGEST = 999_999_999_999_999  # of a structured field's integers; a larger one makes the whole field invalid
SECOND = 1_000_000
MOST_CACHED = 1024  # entries of each cache of a label
NO_STORE = (b"cache-control", b"no-store")
JSON = (b"content-type", b"application/json")
PROBLEM = (b"content-type", b"application/problem+json")
USUAL_BODY = (
    b'{"error": "rate_limited", "message": "Too many requests. Try again in %d second%b.", '
    b'"limit": %d, "retry_after": %d, "reset_at": %d}'
)
PRECISE_BELOW = 10_000  # milliseconds: a longer time is sent in whole seconds, which add a tenth at most
# Their quota returns all at once, not bit by bit.
WINDOWS = frozenset({"fixed_window", "calendar_window", "first_use_window", "sliding_log"})


class LimitLabel:
    """The parts of the headers that are the same for every decision of one limit."""

    __slots__ = (
        "algorithm", "capacity", "count", "hidden", "item", "leased", "limit_field", "name", "old_policy", "period",
        "policy", "policy_field", "rate", "refusals", "rule", "seconds", "usual_fields",
        "warn_below", "warns", "weight", "window",
    )  # fmt: skip

    def __init__(self, rule: Rule, limit: Limit, alone: bool) -> None:
        seconds = -(-limit.micros // SECOND)
        period = limit.period_name.replace(" ", "-")
        self.rule = rule
        self.algorithm = limit.algorithm
        self.name = rule.name if alone else f"{rule.name}-{period}"
        self.item = quoted(self.name)
        self.capacity = limit.capacity
        self.weight = 1 / (limit.capacity or 1)
        self.count = min(LARGEST, limit.count * seconds * SECOND // limit.micros)  # in whole seconds
        self.seconds = seconds
        self.rate = limit.count  # calls in a period
        self.period = limit.micros
        self.window = limit.algorithm in WINDOWS
        self.limit_field = (b"x-ratelimit-limit", b"%d" % limit.capacity)
        self.leased = limit.is_leased
        self.policy = b"%b;q=%d;w=%d" % (self.item, self.count, seconds)
        self.old_policy = b"%d;w=%d" % (self.count, seconds)
        if self.leased:  # a number of slots: there is no window
            self.policy = b'%b;q=%d;qu="concurrent-requests"' % (self.item, limit.count)
            self.old_policy = b"%d" % limit.count
        self.policy_field = (b"ratelimit-policy", self.policy)
        self.usual_fields: dict[int, tuple[tuple[Field, ...], tuple[TextField, ...]]] = {}  # by what remains
        self.refusals: dict[tuple[int, int, int], tuple[tuple[Field, ...], bytes]] = {}  # by wait, left, reset
        self.hidden = limit.is_unlimited or not rule.headers
        self.warn_below = -1 if rule.warn_at is None else limit.capacity - ceil(limit.capacity * rule.warn_at)
        self.warns = rule.warn_at is not None

    def make_usual_fields(self, left: int) -> tuple[tuple[Field, ...], tuple[TextField, ...]]:
        """Make the usual fields for what is left, and cache them: most responses have one of few numbers.

        They are made as bytes for ASGI, and as text for WSGI.
        """
        if len(self.usual_fields) >= MOST_CACHED:
            self.usual_fields.clear()
        ratelimit = b"%b;r=%d;t=%b" % (self.item, left, window_parameters(self, left, 0.0))
        remaining = (b"x-ratelimit-remaining", b"%d" % left)
        fields = (self.limit_field, remaining, (b"ratelimit", ratelimit))
        self.usual_fields[left] = made = fields, tuple([field_text(field) for field in fields])
        return made

    def make_refusal(
        self, millis: int, wait: int, left: int, reset_at: int, problem: bytes | None
    ) -> tuple[tuple[Field, ...], bytes]:
        """Make the usual fields and body of a refusal, and cache them: long waits share them for a second.

        ``problem`` is a body of its own media type.
        """
        if len(self.refusals) >= MOST_CACHED:
            self.refusals.clear()
        body = problem or USUAL_BODY % (wait, b"" if wait == 1 else b"s", self.capacity, wait, reset_at)
        fields = (
            self.limit_field,
            (b"x-ratelimit-remaining", b"%d" % left),
            (b"x-ratelimit-reset", b"%d" % reset_at),
            self.policy_field,
            (b"ratelimit", b"%b;r=%d;t=%d%b" % (self.item, left, wait, precise(millis))),
            (b"retry-after", b"%d" % wait),
            NO_STORE,
            JSON if problem is None else PROBLEM,
        )
        self.refusals[millis, left, reset_at] = fields, body
        return fields, body


def field_text(field: Field) -> TextField:
    name, value = field
    return name.decode("latin-1"), value.decode("latin-1")


def quoted(name: str) -> bytes:
    """A structured-field string; the schema of a rules file admits names of printable ASCII only."""
    return b'"%b"' % name.encode("ascii").replace(b"\\", b"\\\\").replace(b'"', b'\\"')


def binding(limits: Limits) -> tuple[LimitLabel, Decision]:
    """The refusal with the longest wait, else the limit with the smallest share left."""
    if len(limits) == 1:
        return limits[0]
    refused = [pair for pair in limits if not pair[1].allowed]
    if refused:
        return max(refused, key=lambda pair: weight(pair[1]))
    return min(limits, key=lambda pair: pair[1].remaining * pair[0].weight)


def x_ratelimit(label: LimitLabel, left: int, reset: float, wait: int, millis: int, limits: Limits) -> list[Field]:
    return [
        label.limit_field,
        (b"x-ratelimit-remaining", b"%d" % left),
        (b"x-ratelimit-reset", b"%d" % ceil(time() + (reset if reset > wait else wait))),
    ]


def x_ratelimit_delta(
    label: LimitLabel, left: int, reset: float, wait: int, millis: int, limits: Limits
) -> list[Field]:
    return [
        label.limit_field,
        (b"x-ratelimit-remaining", b"%d" % left),
        (b"x-ratelimit-reset", b"%d" % max(wait, ceil(reset))),
    ]


def draft_11(label: LimitLabel, left: int, reset: float, wait: int, millis: int, limits: Limits) -> list[Field]:
    window = b"%d%b" % (wait, precise(millis)) if wait else window_parameters(label, left, reset)
    if len(limits) == 1:
        policy = label.policy_field
    else:
        policy = (b"ratelimit-policy", b", ".join([label.policy for label, _ in limits]))
    if label.leased and not wait:
        return [policy, (b"ratelimit", b"%b;r=%d" % (label.item, left))]
    return [policy, (b"ratelimit", b"%b;r=%d;t=%b" % (label.item, left, window))]


def window_parameters(label: LimitLabel, left: int, reset: float) -> bytes:
    """The seconds in which a client should use no more than what is left, and the same exactly if that is short."""
    if label.window:
        return b"%d%b" % (ceil(reset) or label.seconds, precise(ceil(reset * 1000)))
    left = left or 1  # with nothing left, the time in which one comes back
    return b"%d%b" % (
        -(-left * label.seconds // (label.count or 1)),
        precise(-(-left * label.period // ((label.rate or 1) * 1000))),
    )


def precise(millis: int) -> bytes:
    """The parameter ``ratekeeper-t``: a short time in seconds with up to three decimals, for our own clients.

    The draft has whole seconds, which are far too long for a limit of ten a second.  It lets a server add parameters
    that begin with its vendor's name, and clients that do not know a parameter ignore it.
    """
    if millis >= PRECISE_BELOW or millis % 1000 == 0:
        return b""
    return (b";ratekeeper-t=%d.%03d" % divmod(millis, 1000)).rstrip(b"0")


def draft_7(label: LimitLabel, left: int, reset: float, wait: int, millis: int, limits: Limits) -> list[Field]:
    after = max(wait, ceil(reset))
    return [
        (b"ratelimit", b"limit=%d, remaining=%d, reset=%d" % (label.capacity, left, after)),
        (b"ratelimit-policy", old_policies(limits)),
    ]


def draft_6(label: LimitLabel, left: int, reset: float, wait: int, millis: int, limits: Limits) -> list[Field]:
    return [*separate_fields(b"%d" % label.capacity, left, reset, wait), (b"ratelimit-policy", old_policies(limits))]


def draft_3(label: LimitLabel, left: int, reset: float, wait: int, millis: int, limits: Limits) -> list[Field]:
    return separate_fields(b"%d, %b" % (label.capacity, old_policies(limits)), left, reset, wait)


def separate_fields(limit: bytes, left: int, reset: float, wait: int) -> list[Field]:
    return [
        (b"ratelimit-limit", limit),
        (b"ratelimit-remaining", b"%d" % left),
        (b"ratelimit-reset", b"%d" % max(wait, ceil(reset))),
    ]


def old_policies(limits: Limits) -> bytes:
    return b", ".join([label.old_policy for label, _ in limits])


DIALECTS: dict[str, Dialect] = {
    "x-ratelimit": x_ratelimit,
    "x-ratelimit-delta": x_ratelimit_delta,
    "draft-11": draft_11,
    "draft-7": draft_7,
    "draft-6": draft_6,
    "draft-3": draft_3,
}
HEADER_WORDS = {  # what a header field with a name of the application's own may tell
    "limit": "The most that can pass at once.",
    "remaining": "What is left of it.",
    "reset": "When the full limit is available again, in Unix seconds.",
    "reset_after": "In how many seconds the full limit is available again.",
    "retry_after": "In how many seconds to try again, beside Retry-After; on refusals only.",
    "policy": "The name of the rule that is closest to refusing.",
}


def renamed_fields(names: Mapping[str, str]) -> Dialect:
    """A dialect with names of the application's own, by the words above."""
    named = {word: name.lower().encode("latin-1") for word, name in names.items()}

    def fields(label: LimitLabel, left: int, reset: float, wait: int, millis: int, limits: Limits) -> list[Field]:
        values = {
            "limit": label.capacity,
            "remaining": left,
            "reset": ceil(time() + max(reset, wait)),
            "reset_after": max(wait, ceil(reset)),
            "retry_after": wait,
        }
        written = [(word, b"%d" % value) for word, value in values.items() if value or word != "retry_after"]
        written.append(("policy", label.item))
        return [(named[word], value) for word, value in written if word in named]

    return fields


EXPOSED = (
    b"Retry-After, RateLimit, RateLimit-Policy, RateLimit-Limit, RateLimit-Remaining, RateLimit-Reset, "
    b"X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset, X-RateLimit-Warning"
)


def warning(limits: Limits, graced: Sequence[str]) -> list[Field]:
    """X-RateLimit-Warning: a list of limits, each with ``;used=`` and its used share in percent, or with ``;grace``."""
    items = []
    for label, decision in limits:
        if label.rule.name in graced:
            items.append(b"%b;grace" % label.item)
        elif decision.remaining <= label.warn_below:
            items.append(b"%b;used=%d" % (label.item, 100 - 100 * decision.remaining // label.capacity))
    return [(b"x-ratelimit-warning", b", ".join(items))] if items else []
