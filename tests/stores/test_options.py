"""Options that no store can follow are refused, whichever store it is."""

import pytest

from ratekeeper import (
    AsyncLimiter,
    InvalidStore,
    Limiter,
    MemoryStore,
)


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
@pytest.mark.parametrize("store", ["memory://", MemoryStore(), "redis://localhost:1"])
@pytest.mark.parametrize(
    ("option", "value", "wanted"),
    [
        ("deadline", 0, "a deadline from 0.001 to 60 seconds, got 0."),
        ("deadline", "50ms", "a deadline from 0.001 to 60 seconds, got '50ms'."),
        ("deadline", float("nan"), "a deadline from 0.001 to 60 seconds, got nan."),
        ("deadline", True, "a deadline from 0.001 to 60 seconds, got True."),
        ("local_share", 1.5, "local_share above 0 and at most 1, got 1.5."),
        ("local_share", "half", "local_share above 0 and at most 1, got 'half'."),
        ("prefetch", 1, "prefetch to be 'auto' or a whole number above 1, got 1."),
        ("prefetch", "always", "prefetch to be 'auto' or a whole number above 1, got 'always'."),
        ("on_store_error", "open", "on_store_error to be local, allow or deny, got 'open'."),
    ],
)
def test_an_option_is_no_less_wrong_where_it_is_not_needed(kind, store, option, value, wanted):
    with pytest.raises(InvalidStore) as caught:
        kind("2/minute", store=store, **{option: value})
    assert str(caught.value) == f"limiter: expected {wanted}"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"store": None}, "store: expected a URL such as 'redis://localhost:6379/0' or a store, got None."),
        ({"clock": 5}, "clock: expected one such as ratekeeper.testing.FakeClock(), got 5."),
        (
            {"store": "memory"},
            "store: expected a URL (memory://, shm://NAME, redis://HOST:PORT/0 or another of redis), got 'memory'. "
            "Did you mean 'memory://'?",
        ),
        (
            {"store": "redis:/localhost"},
            "store: expected a URL (memory://, shm://NAME, redis://HOST:PORT/0 or another of redis), "
            "got 'redis:/localhost'. Did you mean 'redis://localhost'?",
        ),
        (
            {"store": "redsi://ann:secret@localhost"},
            "store: expected a URL (memory://, shm://NAME, redis://HOST:PORT/0 or another of redis), "
            "got 'redsi...'. Did you mean 'redis://'?",
        ),
        (
            {"store": ""},
            "store: expected a URL (memory://, shm://NAME, redis://HOST:PORT/0 or another of redis), got ''.",
        ),
    ],
)
def test_what_is_no_store_and_no_clock_is_refused(options, message):
    with pytest.raises(InvalidStore) as caught:
        Limiter("2/minute", **options)
    assert str(caught.value) == message
