"""Every field emitted parses by its own grammar, says what is true, and Retry-After is never early."""

import random
from collections import Counter

import http_sf
import pytest

from ratekeeper import Policy, Request
from ratekeeper.http.headers import LARGEST
from ratekeeper.testing import FakeClock
from tests import tier


def parsed(kind, value):
    return http_sf.parse(value, tltype=kind)


def check_fields(verdict, dialect="draft-11"):
    fields = {name.decode(): value for name, value in verdict.headers}
    assert len(fields) == len(verdict.headers)
    for name, value in fields.items():
        assert name == name.lower()
        assert value.isascii()
        assert not set(value) & set(b"\r\n\0")
    reset = CHECKS[dialect](fields)
    if "x-ratelimit-warning" in fields:
        for _, about in parsed("list", fields["x-ratelimit-warning"]):
            assert set(about) in ({"used"}, {"grace"})
    if not verdict.allowed:
        if verdict.retry_after is None:
            assert "retry-after" not in fields
        else:
            after = int(fields["retry-after"])
            assert after >= 1
            assert fields["retry-after"].isdigit()
            refused = [(label.leased, decision.retry_after) for label, decision in verdict.limits if not decision]
            exact = max(0.0 if leased else wait for leased, wait in refused)  # a lease may come back at any moment
            assert exact <= after < exact + 1 or after == 1
            assert reset == after if dialect == "draft-11" else reset >= after
            ((_, more),) = parsed("list", fields["ratelimit"]) if dialect == "draft-11" else ((0, {}),)
            assert exact <= float(more.get("ratekeeper-t", after)) <= exact + 0.001 or "ratekeeper-t" not in more
        assert fields["cache-control"] == b"no-store"
    else:
        assert "retry-after" not in fields
    return fields


def whole(value, least=0):
    assert type(value) is int  # neither a decimal, a boolean nor a string
    assert least <= value <= LARGEST
    return value


def check_draft_11(fields):
    """Returns the seconds until more comes; None if the field names no time."""
    policies = {name: dict(more) for name, more in parsed("list", fields["ratelimit-policy"])}
    assert len(policies) >= 1
    for name, more in policies.items():
        assert type(name) is str
        whole(more.pop("q"))
        if more.pop("qu", "requests") == "requests":
            whole(more.pop("w"), 1)
        assert not more
    ((name, more),) = parsed("list", fields["ratelimit"])
    assert name in policies
    assert set(more) <= {"r", "t", "ratekeeper-t"}
    whole(more["r"])
    if "ratekeeper-t" in more:  # the same time, before it was rounded up
        assert 0 < more["ratekeeper-t"] < min(more["t"], 10)
        assert 0 <= more["ratekeeper-t"] * 1000 % 1 < 1e-6 or more["ratekeeper-t"] * 1000 % 1 > 1 - 1e-6
    assert "t" in more or b"concurrent-requests" in fields["ratelimit-policy"]
    if "x-ratelimit-warning" in fields:
        assert {name for name, _ in parsed("list", fields["x-ratelimit-warning"])} <= set(policies)
    return whole(more["t"], 1) if "t" in more else None


def check_windows(items):
    for value, more in items:
        whole(value)
        assert set(more) <= {"w"}
        if more:
            whole(more["w"], 1)


def check_draft_7(fields):
    values = {name: value for name, (value, more) in parsed("dictionary", fields["ratelimit"]).items() if not more}
    assert list(values) == ["limit", "remaining", "reset"]
    assert whole(values["remaining"]) <= whole(values["limit"])
    check_windows(parsed("list", fields["ratelimit-policy"]))
    return whole(values["reset"])


def check_plain(fields, prefix=""):
    values = {}
    for name in ("remaining", "reset"):
        values[name], more = parsed("item", fields[f"{prefix}ratelimit-{name}"])
        whole(values[name])
        assert not more
    (limit, more), *windows = parsed("list", fields[f"{prefix}ratelimit-limit"])
    assert not more
    assert values["remaining"] <= whole(limit)
    check_windows(windows)
    return values["reset"], windows


def check_draft_6(fields):
    reset, windows = check_plain(fields)
    assert not windows
    check_windows(parsed("list", fields["ratelimit-policy"]))
    return reset


def check_draft_3(fields):
    reset, windows = check_plain(fields)
    assert windows
    return reset


def check_x(fields):
    reset, windows = check_plain(fields, "x-")
    assert not windows
    return reset


CHECKS = {
    "draft-11": check_draft_11,
    "draft-7": check_draft_7,
    "draft-6": check_draft_6,
    "draft-3": check_draft_3,
    "x-ratelimit-delta": check_x,
    "x-ratelimit": check_x,  # its reset is Unix time: beyond any wait
}


LIMITS = [
    "5/minute", "1/second", "10/second burst 20", "1000000000000/day", "3 per 7 seconds sliding_log",
    "7/hour fixed_window",
    "100/minute sliding_window",
    "9 per 100 milliseconds", "1 per 400 days", "1 per 1.5 seconds token_bucket",
    "20/minute sliding_window slices 7", "999999 per 3 microseconds", "5/second leaky_bucket",
]  # fmt: skip
NAMES = ["a", "per-ip", "with space", "#!$%&'()*+,-./:;<=>?@[]^_`{|}~", "x" * 64, "comma, and; more=1"]


def random_policy(rng):
    rules = []
    for number in range(rng.choice([1, 1, 2, 4])):
        limit = rng.choice([rng.choice(LIMITS), rng.sample(LIMITS, 2)])
        rule = {"name": rng.choice(NAMES)[:60] + str(number), "limit": limit}
        if rng.random() < 0.5:
            rule["warn_at"] = rng.random()
        if rng.random() < 0.3:
            rule["grace"] = 2
        if rng.random() < 0.3:
            rule["cost"] = {"from": "header:X-Cost", "missing": 1}
        rules.append(rule)
    if rng.random() < 0.1:
        rules.append({"name": "held", "limit": "2 concurrent"})
    clock = FakeClock(rng.random() * 10**9)
    dialect = rng.choice(["draft-11", *CHECKS])
    return Policy.parse({"response": {"headers": [dialect]}, "rules": rules}, clock=clock), clock, dialect


def test_an_independent_parser_takes_every_field():
    """A hundred thousand verdicts, from a few hundred policies, in every dialect."""
    rng = random.Random(9651)
    refused = warned = never = 0
    distinct = {}
    dialects = Counter()
    for _ in range(tier.steps(250)):
        policy, clock, dialect = random_policy(rng)
        for _ in range(400):
            clock.advance(rng.choice([0, 0, 0, 0.000001, rng.random(), rng.random() * 100]))
            cost = rng.choice([1, 1, 1, rng.randrange(1, 20), 10**14])
            verdict = policy.check(Request(peer="203.0.113.9", headers={"X-Cost": str(cost)}))
            fields = tuple(verdict.headers)
            refused += not verdict.allowed
            if fields not in distinct:  # the same bytes need no second parse
                distinct[fields] = True
                fields = check_fields(verdict, dialect)
                dialects[dialect] += 1
                warned += "x-ratelimit-warning" in fields
                never += "retry-after" not in fields and not verdict.allowed
    assert refused > tier.steps(20_000)
    assert len(distinct) > tier.steps(2000)
    assert all(dialects[dialect] > tier.steps(200, 20) for dialect in CHECKS)
    assert warned > tier.steps(100)
    assert never > tier.steps(20, 1)


def headers_of(limit, dialects, advance=0.0, times=1, **rule):
    clock = FakeClock(1_000_000.0)
    policy = Policy.parse(
        {"response": {"headers": dialects}, "rules": [{"name": "r", "limit": limit, **rule}]}, clock=clock
    )
    for _ in range(times):
        verdict = policy.check(Request(peer="203.0.113.9"))
    return [f"{name.decode()}: {value.decode()}" for name, value in verdict.headers]


@pytest.mark.parametrize(
    ("limit", "times", "expected"),
    [
        ("600/minute", 1, '"r";r=599;t=60'),  # not r=599;t=1: that would invite 599 a second
        ("600/minute", 300, '"r";r=300;t=30'),
        ("600/minute", 600, '"r";r=0;t=1;ratekeeper-t=0.1'),
        ("600/minute", 601, '"r";r=0;t=1;ratekeeper-t=0.1'),
        ("10/second burst 20", 1, '"r";r=19;t=2;ratekeeper-t=1.9'),
        ("5 per 100 milliseconds", 1, '"r";r=4;t=1;ratekeeper-t=0.08'),
        ("60/minute fixed_window", 1, '"r";r=59;t=20'),  # the window ends in 20 seconds
        ("60/minute sliding_log", 1, '"r";r=59;t=60'),
        ("10/minute", 10, '"r";r=0;t=6'),  # not t=1: that would invite a call that is refused
        ("1/day", 1, '"r";r=0;t=86400'),
        ("1/day", 2, '"r";r=0;t=86400'),
    ],
)
def test_the_effective_window(limit, times, expected):
    assert f"ratelimit: {expected}" in headers_of(limit, ["draft-11"], times=times)


def test_dialects():
    assert headers_of("10/minute", ["x-ratelimit-delta"], times=4) == [
        "x-ratelimit-limit: 10", "x-ratelimit-remaining: 6", "x-ratelimit-reset: 24",
    ]  # fmt: skip
    assert headers_of(["10/minute", "50/hour"], ["draft-7"]) == [
        "ratelimit: limit=10, remaining=9, reset=6", "ratelimit-policy: 10;w=60, 50;w=3600",
    ]  # fmt: skip
    assert headers_of("10/minute", ["draft-6"]) == [
        "ratelimit-limit: 10", "ratelimit-remaining: 9", "ratelimit-reset: 6", "ratelimit-policy: 10;w=60",
    ]  # fmt: skip
    assert headers_of(["10/minute", "50/hour"], ["draft-3"]) == [
        "ratelimit-limit: 10, 10;w=60, 50;w=3600", "ratelimit-remaining: 9", "ratelimit-reset: 6",
    ]  # fmt: skip
    assert (
        headers_of(["10/minute", "50/hour"], ["draft-11"])[0]
        == 'ratelimit-policy: "r-minute";q=10;w=60, "r-hour";q=50;w=3600'
    )
    assert headers_of("10/minute", []) == []


def test_reset_is_the_time_of_full_recovery(monkeypatch):
    monkeypatch.setattr("ratekeeper.http.headers.time", lambda: 1_700_000_000.25)
    assert headers_of("10/minute", ["x-ratelimit"], times=4)[2] == "x-ratelimit-reset: 1700000025"


def test_a_rule_that_hides_is_not_shown():
    clock = FakeClock(100.0)
    rules = [
        {"name": "secret", "limit": "1/minute", "by": "all", "headers": False},
        {"name": "open", "limit": "9/minute"},
    ]
    policy = Policy.parse({"rules": rules}, clock=clock)
    request = Request(peer="203.0.113.9")
    allowed, refused = policy.check(request), policy.check(request)
    for verdict in (allowed, refused):
        assert b"secret" not in b"".join(value for _, value in verdict.headers)
    assert b"secret" not in refused.body
    assert (b"retry-after", b"60") in refused.headers
    assert (b"x-ratelimit-remaining", b"8") in refused.headers


def test_jitter_is_never_early_and_bounded():
    clock = FakeClock(100.0)
    policy = Policy.parse(
        {"response": {"jitter": "5 seconds"}, "rules": [{"name": "r", "limit": "1/minute"}]}, clock=clock
    )
    request = Request(peer="203.0.113.9")
    policy.check(request)
    waits = set()
    for _ in range(300):
        verdict = policy.check(request)
        headers = dict(verdict.headers)
        assert headers[b"ratelimit"] == b'"r";r=0;t=' + headers[b"retry-after"]
        assert int(headers[b"retry-after"]) == verdict.wait
        assert verdict.retry_after == 60.0
        waits.add(verdict.wait)
    assert waits == {60, 61, 62, 63, 64, 65}


@pytest.mark.parametrize(
    "limit", ["3/minute", "1 per 1.5 seconds", "10/second burst 20", "5/hour sliding_window", "1/second"]
)
def test_the_quick_way_says_what_the_careful_way_says(limit, monkeypatch):
    """Usual answers are written by a shorter path: the same fields and the same body."""
    monkeypatch.setattr("ratekeeper.http.headers.time", lambda: 1_700_000_000.25)
    monkeypatch.setattr("ratekeeper.http.verdict.time", lambda: 1_700_000_000.25)
    clock = FakeClock(1_000_000.0)
    policies = [
        Policy.parse({"response": {"cors": cors}, "rules": [{"name": "r", "limit": limit}, *more]}, clock=clock)
        for more in ([], [{"name": "s", "by": "all", "limit": "8/minute"}])
        for cors in ([], ["https://nobody.example"])
    ]
    rng = random.Random(3)
    statuses = set()
    for _ in range(120):
        clock.advance(rng.choice([0, 0, 0.3, 1, 7.25]))
        verdicts = [policy.check(Request(peer="203.0.113.9")) for policy in policies]
        for quick, careful in (verdicts[:2], verdicts[2:]):
            assert not careful.response.is_usual
            assert quick.response.is_usual
            assert sorted(quick.headers) == sorted(careful.headers)
            assert quick.body == careful.body
            statuses.add(quick.status)
    assert statuses == {200, 429}
