"""Options, the breaker, and the fallback of a store on compare-and-set."""

import logging
from itertools import count
from types import SimpleNamespace

import pytest

from ratekeeper import Limit, Limiter
from ratekeeper.errors import InvalidStore, StoreUnavailable
from ratekeeper.stores.compare_and_set import any_store
from tests.stores.backends import DictStore

prefixes = count()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"deadline": 0}, "store dict://: expected a deadline from 0.001 to 60 seconds, got 0."),
        ({"on_store_error": "hope"}, "store dict://: expected on_store_error to be local, allow or deny, got 'hope'."),
        ({"local_share": 2}, "store dict://: expected local_share above 0 and at most 1, got 2."),
        (
            {"prefix": "a b"},
            "store dict://: expected a prefix of 1 to 64 letters, digits, '-', '_', '.' or '/', got 'a b'.",
        ),
        ({"secret": 7}, "store dict://: expected a secret as text, got int."),
    ],
)
def test_a_wrong_option_is_told_at_once(options, message):
    with pytest.raises(InvalidStore) as caught:
        DictStore(**options)
    assert str(caught.value) == message


def test_prefetch_is_refused_as_nothing_would_come_of_it():
    with pytest.raises(InvalidStore, match="expected no prefetch, as only Redis has it, got 'auto'"):
        Limiter("5/minute", store=DictStore(), prefetch="auto")


@pytest.fixture
def time(monkeypatch):
    """The seconds of the breaker."""
    time = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(any_store, "monotonic", lambda: time.now)
    return time


def away(store):
    def fail(names):
        store.records.asked = getattr(store.records, "asked", 0) + 1
        raise ConnectionError("refused")

    store.records.on_read = fail


def test_while_the_backend_is_away_only_one_call_tries_it_now_and_then(time, caplog):
    store = DictStore(deadline=60, on_store_error="allow")
    limiter = Limiter("5/minute", store=store)
    table = store.table(limiter.name, limiter.limits)
    away(store)
    with caplog.at_level(logging.INFO, "ratekeeper.store"):
        assert [limiter.check("a").reason for _ in range(5)] == ["allow: gave an error (ConnectionError: refused)"] * 5
        assert store.records.asked == 1
        assert table.check_now("a").allowed  # answered here
        assert store.prepare((("s", limiter.limits, 1, "deny"),)).check_now(("a",))[0] is False
        time.now += 10
        assert table.check_now("a") is None
        limiter.check("a")
        limiter.check("a")
        assert store.records.asked == 2
        time.now += 30
        store.records.on_read = lambda names: None
        assert limiter.check("a").reason == ""
        assert not store.breaker.is_open
    assert [record.getMessage() for record in caplog.records] == [
        "dict://: gave an error (ConnectionError: refused). Using on_store_error=allow until it recovers",
        "dict://: answers again",
    ]


def test_a_backend_that_comes_and_goes_must_answer_several_times_in_a_row(time):
    store = DictStore(deadline=60, on_store_error="deny")
    limiter = Limiter("50/minute", store=store)
    for _ in range(2):
        away(store)
        limiter.check("a")
        store.records.on_read = lambda names: None
        time.now += 1.5
        limiter.check("a")
    assert store.breaker.is_open
    assert limiter.check("a").reason == ""
    assert not store.breaker.is_open


def test_the_fallback_starts_from_what_the_backend_last_said_and_is_charged_afterwards(time):
    store = DictStore(deadline=60)
    limiter = Limiter("10 per 50 days", store=store)
    for _ in range(8):
        assert limiter.check("a").reason == ""
    away(store)
    assert [limiter.check("a").allowed for _ in range(3)] == [True, False, False]  # half of the limit, less half of 8
    store.records.on_read = lambda names: None
    time.now += 30
    store.settle()
    assert limiter.peek("a").remaining == 1


def test_what_could_not_be_charged_is_noted_again(time):
    store = DictStore(deadline=60)
    limiter = Limiter("10 per 50 days", store=store)
    away(store)
    assert limiter.check("a")
    time.now += 30
    store.settle()
    assert store.fallback.owing
    store.records.on_read = lambda names: None
    time.now += 30
    store.settle()
    assert not store.fallback.owing
    assert limiter.peek("a").remaining == 9


def test_without_a_fallback_the_error_is_raised():
    store = DictStore(deadline=60, fallback=False)
    away(store)
    with pytest.raises(StoreUnavailable, match="dict://: gave an error"):
        Limiter("5/minute", store=store).check("a")


def test_unlimited_keys_are_never_asked_for():
    store = DictStore(deadline=60)
    limiter = Limiter("unlimited", store=store)
    assert limiter.check("a").allowed
    assert limiter.peek("a").allowed
    limiter.reset("a")
    limited = Limit.parse("5/minute")
    allowed, _ = store.prepare((("s", limited, 1, None), ("s", limiter.limits, 1, None))).check(("a", "b"))
    assert allowed
    assert (store.records.reads, store.records.writes) == (1, 1)


def test_release_forgets_what_is_known_here():
    store = DictStore(deadline=60)
    limit = Limit.parse("5/minute")
    stored = store.limits.layout("s", limit)
    assert store.release("s", limit) is True
    assert store.limits.layout("s", limit) is not stored


def test_the_time_of_day_decides_unless_the_backend_tells_the_time(monkeypatch):
    monkeypatch.setattr(any_store, "time_ns", lambda: 1_700_000_000_123_456_789)

    class Telling(DictStore):
        def get_all(self, names):
            return super().get_all(names)[0], 1_600_000_000_000_000

    limit = "5/minute"
    assert Limiter(limit, store=DictStore()).check("a").at == 1_700_000_000_123_456
    assert Limiter(limit, store=Telling()).check("a").at == 1_600_000_000_000_000


def test_a_store_may_not_redefine_what_it_needs():
    with pytest.raises(InvalidStore) as caught:
        type("MyStore", (DictStore,), {"run": lambda self, statement: None})
    assert str(caught.value) == (
        "class MyStore: expected another name for 'run', which the store itself uses. Rename yours."
    )
