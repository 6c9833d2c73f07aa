"""The server's limits, read from a response: how long to wait, and how much of each quota is left.

Supported fields: Retry-After, retry-after-ms, RateLimit and RateLimit-Policy in all drafts, X-RateLimit-* and
X-Rate-Limit-*, and the similar fields of OpenAI, Anthropic and Kong; for gRPC the RetryInfo and the pushback.  Instants
are compared with the response's own Date, so the client's clock may be wrong.

Law: no value raises an exception; a wait is never below 0 or above 400 days; a malformed field is ignored, and so are
all fields of a cached response.  No clock, no I/O.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ratekeeper.outbound.dates import LONGEST, NUMBER, clamp, http_date, retry_after, wait_until
from ratekeeper.outbound.structured_fields import Item, parse_dictionary, parse_list
from ratekeeper.protobuf import read_fields
from ratekeeper.units import SECOND

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    Headers = Mapping[str, str] | Iterable[tuple[str, str]]

MOST_QUOTA = 999_999_999_999_999  # the largest whole number of a structured field
MOST_LINES = 64
WAITS = frozenset({"retry-after", "retry-after-ms"})
CONTEXT = frozenset({"date", "age", "x-from-cache"})  # fields that tell how to read the others
VENDOR = re.compile(r"(?:x-rate-?limit|ratelimit|anthropic-ratelimit)-([a-z0-9-]{1,64})")
PERIODS = {"second": 1.0, "minute": 60.0, "hour": 3_600.0, "day": 86_400.0}


@dataclass(frozen=True, slots=True)
class Quota:
    """One quota of the server: ``remaining`` is left for the next ``reset_after`` seconds."""

    name: str
    remaining: int
    reset_after: float | None = None
    limit: int | None = None
    window: float | None = None
    unit: str = "requests"


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """``retry_after`` is in seconds, None if the server sent none; ``never`` means that it forbids retries."""

    retry_after: float | None = None
    quotas: tuple[Quota, ...] = ()
    never: bool = False

    @property
    def wait(self) -> float | None:
        """Seconds to wait before the next request: Retry-After, or else the latest reset of an empty quota."""
        if self.retry_after is not None:
            return self.retry_after
        resets = [q.reset_after for q in self.quotas if q.remaining == 0 and q.reset_after is not None]
        return max(resets, default=None)

    @property
    def micros(self) -> int | None:
        """``wait`` in whole microseconds, rounded up."""
        return None if self.wait is None else -int(-self.wait * SECOND // 1)


NOTHING = ServerLimits()


def read(headers: Iterable[tuple[str, str]], present: float) -> ServerLimits:
    """The limits in these fields; ``present`` is the client's Unix time, for a response without a Date."""
    fields: dict[str, list[str]] = {}
    has_limits = False
    for name, value in headers:
        name = name.lower()
        if "ratelimit" in name or "rate-limit" in name or name in WAITS:
            has_limits = True
        elif name not in CONTEXT:
            continue
        lines = fields.setdefault(name, [])
        if len(lines) < MOST_LINES:
            lines.append(value)
    if not has_limits or is_cached(fields):  # most responses say nothing
        return NOTHING
    server_time = http_date(fields["date"][0].strip(), present) if "date" in fields else None
    if server_time is not None:
        present = server_time
    waits = [retry_after(line, present) for line in fields.get("retry-after", ())]
    waits += [milliseconds(line) for line in fields.get("retry-after-ms", ())]
    wait = max([wait for wait in waits if wait is not None], default=None)
    quotas = from_list(fields)
    if wait is not None and wait == int(wait):  # Retry-After has whole seconds; ratekeeper-t may say the same exactly
        wait = max([q.reset_after for q in quotas if q.reset_after and wait - 1 < q.reset_after < wait], default=wait)
    return ServerLimits(wait, tuple(quotas or from_dictionary(fields) or from_separate_fields(fields, present)))


def pairs_of(headers: Headers) -> list[tuple[str, str]]:
    """The header fields of any client library: a mapping, or pairs."""
    pairs = headers.items() if hasattr(headers, "items") else headers
    return [(str(name), str(value)) for name, value in pairs]


def is_cached(fields: Mapping[str, list[str]]) -> bool:
    """Whether the response comes from a cache, so that its limits are out of date."""
    age = "".join(fields.get("age", ())).strip()
    return bool(age.isascii() and age.isdecimal() and age.strip("0")) or "1" in fields.get("x-from-cache", ())


def milliseconds(text: str) -> float | None:
    text = text.strip()
    return clamp(float(text) / 1000) if NUMBER.fullmatch(text) else None


def from_list(fields: Mapping[str, list[str]]) -> list[Quota]:
    """RateLimit as a list: drafts 08 to 11, and the parameter names that follow them (a, w for r, t).

    A server of ours adds ``ratekeeper-t``: the same time as ``t``, before it was rounded up to whole seconds.
    """
    quotas = []
    policies: dict[object, Item] = {}
    for item in parse_list(", ".join(fields.get("ratelimit-policy", ()))) or ():
        policies[item.value, item.parameters.get("pk")] = item
        policies.setdefault((item.value, None), item)
    for item in parse_list(", ".join(fields.get("ratelimit", ()))) or ():
        if not isinstance(item.value, str):
            return []
        remaining = whole(item.parameters.get("r", item.parameters.get("a")))
        if remaining is None:
            continue
        reset: float | None = whole(item.parameters.get("t", item.parameters.get("w")))
        exactly = item.parameters.get("ratekeeper-t")
        if reset is not None and isinstance(exactly, float) and 0 < exactly < reset:
            reset = exactly
        policy = policies.get((item.value, item.parameters.get("pk"))) or policies.get((item.value, None))
        parameters: dict[str, object] = policy.parameters if policy is not None else {}
        window, unit = whole(parameters.get("w")), parameters.get("qu", "requests")
        quotas.append(
            Quota(
                str(item.value),
                remaining,
                None if reset is None else clamp(reset),
                whole(parameters.get("q")),
                None if window is None else clamp(window),
                str(unit),
            )
        )
    return quotas


def from_dictionary(fields: Mapping[str, list[str]]) -> list[Quota]:
    """RateLimit as a dictionary: draft 07."""
    entries = parse_dictionary(", ".join(fields.get("ratelimit", ()))) or {}
    values = {name: whole(item.value) for name, item in entries.items()}
    remaining, reset, limit = (values.get(name) for name in ("remaining", "reset", "limit"))
    if remaining is None:
        return []
    return [Quota("", remaining, None if reset is None else clamp(reset), limit, old_window(fields, limit))]


def from_separate_fields(fields: Mapping[str, list[str]], present: float) -> list[Quota]:
    """One field each for limit, remaining and reset: drafts up to 06, and the conventions before them."""
    groups: dict[str, dict[str, str]] = {}
    for name, lines in fields.items():
        if match := VENDOR.fullmatch(name):
            words = match[1].split("-")
            for kind in ("limit", "remaining", "reset"):
                if kind in words:
                    words.remove(kind)
                    groups.setdefault("-".join(words), {})[kind] = lines[0] if kind != "limit" else ", ".join(lines)
                    break
    quotas = []
    for name, group in groups.items():
        remaining = digits(group.get("remaining", ""))
        if remaining is None:
            continue
        reset = wait_until(group["reset"], present) if "reset" in group else None
        limit = digits(group.get("limit", "").partition(",")[0].partition(";")[0])
        window = PERIODS.get(name.rpartition("-")[2])
        if window is None:
            window = old_window(fields, limit, group.get("limit", "").partition(",")[2])
        unit = "tokens" if "token" in name else "requests"
        quotas.append(Quota(name, remaining, reset, limit, window, unit))
    return quotas


def old_window(fields: Mapping[str, list[str]], limit: int | None, text: str = "") -> float | None:
    """The window of ``limit`` in a list such as ``10;w=1, 1000;w=3600``."""
    for item in parse_list(text or ", ".join(fields.get("ratelimit-policy", ()))) or ():
        window = whole(item.parameters.get("w"))
        if window is not None and item.value == limit:
            return clamp(window)
    return None


def whole(value: object) -> int | None:
    """``value`` if it is a whole number of at least 0; booleans and decimals are not."""
    return min(value, MOST_QUOTA) if value.__class__ is int and value >= 0 else None


def digits(text: str) -> int | None:
    text = text.strip()
    if not (text.isascii() and text.isdecimal()):
        return None
    return min(int(text[:20]), MOST_QUOTA)


def read_grpc(metadata: Iterable[tuple[str, str | bytes]], present: float = 0.0) -> ServerLimits:
    """The limits in the trailing metadata of a gRPC call: the pushback, else google.rpc.RetryInfo, else the fields."""
    pushback: float | None = None
    wait: float | None = None
    texts: list[tuple[str, str]] = []
    for name, value in metadata:
        if name == "grpc-retry-pushback-ms":
            text = value.decode("ascii", "replace") if isinstance(value, bytes) else value
            if not (text.isascii() and text.isdecimal()):
                return ServerLimits(never=True)  # gRPC: a negative or malformed value forbids retries
            pushback = clamp(float(text[:18]) / 1000)
        elif name == "grpc-status-details-bin" and isinstance(value, bytes):
            wait = retry_info(value)
        elif isinstance(value, str):
            texts.append((name, value))
    limits = read(texts, present)
    if pushback is not None:
        wait = pushback
    return limits if wait is None else ServerLimits(wait, limits.quotas)


def retry_info(status: bytes) -> float | None:
    """Seconds of the RetryInfo in a serialized google.rpc.Status; None if it has none."""
    try:
        for number, detail in messages(status):
            if number != 3:
                continue
            parts = dict(messages(detail))
            if bytes(parts.get(1, b"")).rpartition(b"/")[2] != b"google.rpc.RetryInfo":
                continue
            for inner, duration in messages(parts.get(2, b"")):
                if inner == 1:
                    clock = dict(numbers(duration))
                    return clamp(min(clock.get(1, 0), LONGEST) + min(clock.get(2, 0), 10**9) / 1e9)
    except ValueError:
        pass
    return None


def messages(data: bytes) -> Iterable[tuple[int, bytes]]:
    """The length-delimited fields of a protocol-buffer message."""
    return [(number, value) for number, value in read_fields(data) if isinstance(value, bytes)]


def numbers(data: bytes) -> Iterable[tuple[int, int]]:
    """The integer fields of a protocol-buffer message; negative ones count as 0."""
    return [(number, value if value < 2**63 else 0) for number, value in read_fields(data) if isinstance(value, int)]
