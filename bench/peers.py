"""The same question put to other libraries: is this key still within its limit?

Each maker returns ``call(key)`` for a limit of ``count`` per ``seconds``, or None if the peer has no such algorithm
or is not installed.
"""

from __future__ import annotations

from collections.abc import Callable

Call = Callable[[str], object]


def limits_peer(algorithm: str, count: int, seconds: int) -> Call | None:
    try:
        import limits
    except ImportError:
        return None
    strategies = {
        "fixed_window": limits.strategies.FixedWindowRateLimiter,
        "sliding_log": limits.strategies.MovingWindowRateLimiter,
        "sliding_window": limits.strategies.SlidingWindowCounterRateLimiter,
    }
    if algorithm not in strategies:
        return None
    strategy = strategies[algorithm](limits.storage.MemoryStorage())
    item = limits.RateLimitItemPerSecond(count, seconds)
    hit = strategy.hit
    return lambda key: hit(item, key)


def throttled_peer(algorithm: str, count: int, seconds: int) -> Call | None:
    try:
        from datetime import timedelta

        import throttled
    except ImportError:
        return None
    using = {
        "fixed_window": "fixed_window",
        "sliding_window": "sliding_window",
        "token_bucket": "token_bucket",
        "leaky_bucket": "leaking_bucket",
        "gcra": "gcra",
    }.get(algorithm)
    if using is None:
        return None
    quota = throttled.per_duration(timedelta(seconds=seconds), count)
    throttle = throttled.Throttled(using=using, quota=quota, store=throttled.MemoryStore({"MAX_SIZE": 2_000_000}))
    return throttle.limit


def pyrate_peer(algorithm: str, count: int, seconds: int) -> Call | None:
    """One bucket for all keys: its buckets for many keys are the user's to write."""
    if algorithm != "sliding_log":
        return None
    try:
        import pyrate_limiter
    except ImportError:
        return None
    acquire = pyrate_limiter.Limiter(pyrate_limiter.Rate(count, seconds * 1000)).try_acquire
    return lambda key: acquire(key, blocking=False)


def token_bucket_peer(algorithm: str, count: int, seconds: int) -> Call | None:
    if algorithm != "token_bucket":
        return None
    try:
        import token_bucket
    except ImportError:
        return None
    return token_bucket.Limiter(count / seconds, count, token_bucket.MemoryStorage()).consume  # type: ignore[no-any-return]


PEERS: dict[str, Callable[[str, int, int], Call | None]] = {
    "limits": limits_peer,
    "throttled-py": throttled_peer,
    "pyrate-limiter": pyrate_peer,
    "token-bucket": token_bucket_peer,
}
