"""Records as several releases meet them on one server: their bytes are a format, and formats have versions."""

import pytest

from ratekeeper.algorithms import BUCKETS
from ratekeeper.check import Check
from ratekeeper.limit import Limit, parse_limits
from ratekeeper.stores.redis import layout as layouts
from ratekeeper.stores.redis.store import RedisStore
from ratekeeper.testing import FakeClock

KEPT = 60_000  # milliseconds

# Name and bytes of what version 1 left after two checks of a key, as it is found on servers.
VERSION_1 = [
    ("3/minute", "{wbH_KKbJ1oisjrvzGF5C_Q}", "000000003dfd240000000000"),
    ("3/minute fixed_window", "{AG5RzC2L9aVdHD9PEUr5ew}", "00000000000000100000000000000002"),
    ("3/minute sliding_window", "{KHyyaIyq8uk9aJxXnKnRQA}", "0000000000000010" + "00" + "0000000000000002" + "00" * 8),
    ("3/minute sliding_log", "{Yq5SV5u3S9GWgPFc0nDD9g}.0", "0000003b9aca00" + "0000003b9e9a90"),
    ("3 concurrent", "{fbvembX3xUxt3JRMhKjRJA}.0", "0000003b9aca00" + "0000003b9e9a90"),
    (
        "130/minute sliding_log",
        "{Yq5SV5u3S9GWgPFc0nDD9g}.0r",
        "000002" + "000000" + "000002" + "0000003b9e9a90" + "0000003b9aca00" + "0000003b9e9a90",
    ),
    (
        ["3/second", "7/minute fixed_window"],
        "{fJ_6rIdM_PvxFCewkDgUwg}",
        "000000003ba4f62a" + "00000002" + "00000000000000100000000000000002",
    ),
]

# The same of version 2.
VERSION_2 = [
    ("3/minute", "{E4NULvEPff2-J0RNAfbyeg}", "000000003dfd2400" + "00000000"),
    ("3/minute fixed_window", "{6_sKeVRpn4uY-u9VdksguA}", "00000000000010" + "0000000002"),
    ("3/minute sliding_window", "{5yKtvVUfYjAA8u0L3Uealg}", "00000000000010" + "00" + "0000000002" + "00" * 5),
    ("3/minute sliding_log", "{fBC0fX2ZsOrgWduGou2n4w}.0", "0000003b9aca00" + "0000003b9e9a90"),
    (
        ["3/second", "7/minute fixed_window"],
        "{oIZMJdgQ-13oTY6QZfX-kA}",
        "000000003ba4f62a00000002" + "00000000000010" + "0000000002",
    ),
]
# The same of version 3, where the layout of leases had no number.
VERSION_3 = [("3 concurrent", "{XyeRRpYSCaY1DTMP0XHN0A}.0", "0000003b9aca00" + "0000003b9e9a90")]
OLD = [
    *[(b"1", *each) for each in VERSION_1],
    *[(b"2", *each) for each in VERSION_2],
    *[(b"3", *each) for each in VERSION_3],
]

# The same of this version.  If these change, stores of two releases would read each other's records as nonsense: give
# layout.VERSION another value, and keep a line of the old ones above.
NOW = "000000003b9e9a90"
PRESENT = [
    ("3/minute", "", NOW + "000000003dfd2400" + "00000000"),
    ("3/minute token_bucket", "", NOW + "000000003dfd2400" + "00000000"),
    ("3/minute leaky_bucket", "", NOW + "000000003dfd2400" + "00000000"),
    ("3/minute fixed_window", "", NOW[2:] + "0000000002"),
    ("3/month", "", NOW[2:] + "0000000002"),
    ("3/minute first-use", "", NOW[2:] + "0000003b9aca00" + "0000000002"),
    ("3/minute sliding_window", "", NOW[2:] + "0000000002" + "00" * 5),
    ("3/minute sliding_window slices 2", "", NOW[2:] + "0000000002" + "00" * 10),
    ("3/minute sliding_log", ".0", "0000003b9aca00" + NOW[2:]),
    ("3 concurrent", ".0", "00" + "0000003f2e5100" + "0000003f322190" + "00" * 16),  # notes; when they end; ids
    (
        "130/minute sliding_log",
        ".0r",
        # capacity, head, size; newest, kept until; how many in the back, what is live in the front: from, to
        ("000002" + "000000" + "000001" + NOW[2:] + "000001e8c21200" + "010001")
        + (NOW[2:] + "00" * 35)  # the back
        + ("0000003b9aca00" + "00" * 35)  # the front
        + ("0000003b9aca00" + "00" * 7),  # the slots
    ),
    (["3/second", "7/minute fixed_window"], "", NOW + "000000003ba4f62a00000002" + NOW[2:] + "0000000002"),
    (["7/minute fixed_window", "3/second"], "", NOW[2:] + "0000000002" + "000000003ba4f62a00000002"),
]


@pytest.fixture
def store(any_server):
    any_server.client().flushdb()
    made = RedisStore(any_server.url, deadline=10, clock=FakeClock(start=1000.0))
    yield made
    made.close()
    any_server.client().flushdb()


def plan_of(limit, cost=1):
    return (Check("records", "k", parse_limits(limit), cost),)


@pytest.mark.parametrize(("limit", "suffix", "record"), PRESENT)
def test_the_bytes_of_a_record_change_with_its_version_only(any_server, store, limit, suffix, record):
    assert layouts.VERSION == b"3"
    store.check(plan_of(limit))
    store.clock.advance(0.25)
    store.check(plan_of(limit))
    client = any_server.client()
    (name,) = client.scan_iter("*")
    assert name.decode().partition("}")[2] == suffix
    assert client.get(name).hex() == record


def write_old(client):
    for _, _, name, record in OLD:
        client.set(f"rk:records:{name}", bytes.fromhex(record), px=KEPT)


@pytest.mark.parametrize("limit", [each[0] for each in VERSION_1])  # which has them all
def test_a_record_of_another_version_neither_fails_nor_counts(any_server, store, limit):
    client = any_server.client()
    write_old(client)
    before = {name: client.get(name) for name in client.scan_iter("*")}
    capacity = min(part.capacity for part in getattr(parse_limits(limit), "limits", (parse_limits(limit),)))
    assert store.peek(plan_of(limit))[0].remaining == capacity
    assert all(store.check(plan_of(limit, capacity)))
    assert not all(store.check(plan_of(limit)))
    store.refund(plan_of(limit))
    store.reset(plan_of(limit))
    assert {name: client.get(name) for name in client.scan_iter("*")} == before  # it ends by itself
    assert all(0 < client.pttl(name) <= KEPT for name in before)


@pytest.mark.parametrize(("version", "limit", "name", "_"), OLD)
def test_these_are_the_names_of_old_versions(monkeypatch, version, limit, name, _):
    """Else the test above would prove nothing."""
    monkeypatch.setattr(layouts, "VERSION", version)
    present = Limit.layout.fget

    def old_layout(limit):
        if limit.algorithm in BUCKETS:
            return f"bucket:{limit.unit}:{limit.drain}"
        return "leases" if limit.is_leased else present(limit)

    monkeypatch.setattr(Limit, "layout", property(old_layout))
    layout = layouts.RecordLayout("records", parse_limits(limit))
    assert (layout.name("k") + layout.subjects[0].suffix).decode() == f"rk:records:{name}"


CHANGES = [
    ("3/minute", "3/hour"),
    ("3/minute", "3/minute fixed_window"),
    ("3/month", "3/month calendar Europe/Berlin"),
    ("3/day calendar", "3/day first-use"),
    ("9/month", "2/month"),
    ("3/minute fixed_window", "3/minute sliding_window"),
    ("3/minute sliding_window", "3/minute sliding_window slices 2"),
    ("3/minute sliding_window", "3/minute sliding_log"),
    ("3/minute sliding_log", "3/hour sliding_log"),
    ("3/minute sliding_log", "130/minute sliding_log"),
    ("130/minute sliding_log", "3/minute sliding_log"),
    ("3/minute sliding_log", "3 concurrent"),
    ("3/minute", "3/minute token_bucket"),
    ("3/minute", "1/minute"),
    ("9/minute", "2/minute"),
    ("7/minute burst 5", "1000/minute"),
    ("3/minute leaky_bucket", "7/minute token_bucket"),
    (["3/minute", "9/hour"], ["70/minute", "100/hour"]),
    ("9/minute fixed_window", "2/minute fixed_window"),
    ("9/minute sliding_window", "2/minute sliding_window"),
    ("9/minute sliding_log", "2/minute sliding_log"),
    ("200/minute sliding_log", "150/minute sliding_log"),
    ("3/minute", ["3/minute", "9/hour"]),
    (["3/minute", "9/hour"], ["9/hour", "3/minute"]),
    (["3/minute", "9/hour fixed_window"], ["3/minute", "9/hour sliding_log"]),
]


@pytest.mark.parametrize(("old", "new"), [pair for change in CHANGES for pair in (change, change[::-1])], ids=str)
def test_a_changed_limit_is_no_error_and_locks_nobody_out_longer_than_it_would(any_server, store, old, new):
    """Exhausted under the old limit: after the new one's own period at most, all of it is there again."""
    for _ in range(300):
        if not all(store.check(plan_of(old))):
            break
    after = parse_limits(new)
    parts = getattr(after, "limits", (after,))
    store.peek(plan_of(new))
    (decision,) = store.check(plan_of(new))
    longest = max(recovery(part) for part in parts)
    assert decision.retry_after is not None
    assert decision.retry_after * 10**6 <= longest
    store.clock.advance(longest / 10**6)
    assert store.peek(plan_of(new))[0].remaining == min(part.capacity for part in parts)
    assert all(any_server.client().pttl(name) > 0 for name in any_server.client().scan_iter("*"))


def recovery(limit: Limit):
    """Microseconds after which a limit has forgotten whatever happened."""
    if limit.algorithm == "sliding_window":
        return limit.micros * (limit.slices + 1) // limit.slices
    return max(limit.micros, -(-limit.full // limit.drain)) if limit.algorithm in BUCKETS else limit.micros


BERLIN = "5/day calendar Europe/Berlin"
MIDNIGHT = 1_774_738_800_000_000  # in Berlin, before a day of 23 hours


@pytest.mark.parametrize("behind", [-3, -1, 0, 1, 3])
def test_a_client_with_a_wrong_clock_counts_in_the_windows_of_the_server(redis_server, monkeypatch, behind):
    """Its first request has edges by its own clock, and all later ones by what the server said."""
    clock = FakeClock(start=MIDNIGHT / 1e6 - 1.0)
    store = RedisStore(redis_server.url, clock=clock, deadline=10)
    limit = Limit.parse(BERLIN)
    layout = store.translator.layout("zones", limit)
    layout.gives_time = False  # as if the server had a clock of its own, ``behind`` days ahead of ours
    monkeypatch.setattr(layouts, "time_ns", lambda: (clock.micros - behind * 86_400 * 10**6) * 1000)
    key = f"wrong by {behind}"
    assert store.table("zones", limit).check(key, 5).retry_after == 0.0
    assert store.table("zones", limit).check(key).retry_after == 1.0
    clock.advance(1.0)
    decision = store.table("zones", limit).check(key, 4)
    assert (decision.allowed, decision.remaining, decision.reset_after) == (True, 1, 23 * 3600.0)
    (planned,) = store.check((Check("zones", key, limit, 2),))
    assert (planned.allowed, planned.retry_after) == (False, 23 * 3600.0)
    store.close()


def test_the_words_of_a_calendar_are_made_once_for_each_window(redis_server):
    clock = FakeClock(start=MIDNIGHT / 1e6 - 1.0)
    store = RedisStore(redis_server.url, clock=clock, deadline=10)
    layout = store.translator.layout("zones", parse_limits([BERLIN, "100/month"]))
    words = layout.check_words(1)
    assert layout.check_words(1) is words
    clock.advance(1.0)
    assert layout.check_words(1) is not words
    clock.advance(-1.0)
    assert layout.check_words(1) == words
    store.close()


def test_without_a_clock_the_edges_are_those_of_the_present():
    layout = layouts.RecordLayout("zones", Limit.parse("5/month"))
    assert layout.words_from == 0
    layout.check_words(1)
    assert layout.words_from < layout.server_time() < layout.words_until
