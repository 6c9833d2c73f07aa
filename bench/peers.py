"""The same question put to other libraries: is this key still within its limit?

Each maker returns ``call(key)`` for a limit of ``count`` per ``seconds``, or None if the peer has no such algorithm
or is not installed.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress

Call = Callable[[str], object]


# What the others call our algorithms, where they have them.
LIMITS_NAMES = {
    "fixed_window": "FixedWindowRateLimiter",
    "sliding_log": "MovingWindowRateLimiter",
    "sliding_window": "SlidingWindowCounterRateLimiter",
}
THROTTLED_NAMES = {
    "fixed_window": "fixed_window",
    "sliding_window": "sliding_window",
    "token_bucket": "token_bucket",
    "leaky_bucket": "leaking_bucket",
    "gcra": "gcra",
}


def limits_peer(algorithm: str, count: int, seconds: int) -> Call | None:
    try:
        import limits
    except ImportError:
        return None
    if algorithm not in LIMITS_NAMES:
        return None
    strategy = getattr(limits.strategies, LIMITS_NAMES[algorithm])(limits.storage.MemoryStorage())
    item = limits.RateLimitItemPerSecond(count, seconds)
    hit = strategy.hit
    return lambda key: hit(item, key)


def throttled_peer(algorithm: str, count: int, seconds: int) -> Call | None:
    try:
        from datetime import timedelta

        import throttled
    except ImportError:
        return None
    using = THROTTLED_NAMES.get(algorithm)
    if using is None:
        return None
    quota = throttled.per_duration(timedelta(seconds=seconds), count)
    store = throttled.MemoryStore(options={"MAX_SIZE": 2_000_000})  # 1,024 keys otherwise
    return throttled.Throttled(using=using, quota=quota, store=store).limit


def pyrate_peer(algorithm: str, count: int, seconds: int) -> Call | None:
    """A bucket for each key, by a factory as its manual describes: it has none of its own for many keys."""
    if algorithm != "sliding_log":
        return None
    try:
        import pyrate_limiter
    except ImportError:
        return None
    rates = [pyrate_limiter.Rate(count, seconds * 1000)]

    class EachKey(pyrate_limiter.BucketFactory):  # type: ignore[misc]
        def __init__(self) -> None:
            self.clock = pyrate_limiter.MonotonicClock()
            self.buckets: dict[str, object] = {}

        def wrap_item(self, name: str, weight: int = 1) -> object:
            return pyrate_limiter.RateItem(name, self.clock.now(), weight=weight)

        def get(self, item: object) -> object:
            name = item.name  # type: ignore[attr-defined]
            if name not in self.buckets:
                self.buckets[name] = pyrate_limiter.InMemoryBucket(rates)
            return self.buckets[name]

    acquire = pyrate_limiter.Limiter(EachKey()).try_acquire
    return lambda key: acquire(key, blocking=False)


def token_bucket_peer(algorithm: str, count: int, seconds: int) -> Call | None:
    if algorithm != "token_bucket":
        return None
    try:
        import token_bucket
    except ImportError:
        return None
    return token_bucket.Limiter(count / seconds, count, token_bucket.MemoryStorage()).consume  # type: ignore[no-any-return]


def aiolimiter_peer(algorithm: str, count: int, seconds: int) -> Call | None:
    """A limiter for each key, as it has none; to be called in an event loop.  What has room does not wait."""
    if algorithm != "leaky_bucket":
        return None
    try:
        import aiolimiter
    except ImportError:
        return None
    limiters: dict[str, Callable[[], Coroutine[None, None, None]]] = {}

    def call(key: str) -> None:
        if key not in limiters:
            limiters[key] = aiolimiter.AsyncLimiter(count, seconds).acquire
        with suppress(StopIteration):
            limiters[key]().send(None)

    return call


PEERS: dict[str, Callable[[str, int, int], Call | None]] = {
    "limits": limits_peer,
    "throttled-py": throttled_peer,
    "pyrate-limiter": pyrate_peer,
    "token-bucket": token_bucket_peer,
}
AWAITED: dict[str, Callable[[str, int, int], Call | None]] = {"aiolimiter": aiolimiter_peer}
