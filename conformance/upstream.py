"""What is known about failures of peers: a neutral sentence, and the thread of the project, if there is one.

By target and law.
"""

from __future__ import annotations

ROUNDED = "The weighted count of the older window is rounded down, so one call more passes right after an edge."
EVERY_RESPONSE = "With its headers enabled it sends the field with every response, as the time until the window ends."
WHOLE_SECONDS = (
    "Tokens are refilled by whole seconds of the clock, so a full refill can follow a burst at once; "
    "its sliding window rounds the weighted count down."
)
NEXT_WINDOW = "The time until the next window is told, at which the older window still counts in full."
LRU = "Its default memory store keeps the 1,024 keys that were used last; the option MAX_SIZE raises that."

NOTES: dict[tuple[str, str], tuple[str, str]] = {
    ("limits", "bound"): (ROUNDED, ""),
    ("limits-redis", "bound"): (ROUNDED, ""),
    ("limits", "concurrent"): (
        "The counter in memory is created and read without a lock; 99 and 200 of 100 were seen. A lock is merged.",
        "https://github.com/alisaifee/limits/pull/352",
    ),
    ("slowapi", "retry-after-field"): (EVERY_RESPONSE, ""),
    ("flask-limiter", "retry-after-field"): (EVERY_RESPONSE, ""),
    ("flask-limiter", "retry-after"): (
        "The seconds are rounded down, so a caller that waits for them may come a moment too early.",
        "https://github.com/alisaifee/flask-limiter/issues/62",
    ),
    ("throttled-py", "bound"): (WHOLE_SECONDS, ""),
    ("throttled-py-redis", "bound"): (WHOLE_SECONDS, ""),
    ("throttled-py", "flood"): (LRU, ""),
    ("throttled-py", "retry-after"): (NEXT_WINDOW, ""),
    ("throttled-py-redis", "retry-after"): (NEXT_WINDOW, ""),
    ("throttled-py-redis", "expiry"): (
        "The expiry time is set before the key is written for the first time, so a key of one call has none.",
        "",
    ),
    ("traffik", "retry-after"): (
        "A counter lives for at least two seconds, and starts with its first call; the wait is told for windows of the "
        "clock.",
        "",
    ),
    ("traffik", "retry-after-field"): (
        "A counter lives for at least two seconds, and starts with its first call; the wait is told for windows of the "
        "clock.",
        "",
    ),
    ("pyrate-limiter-redis", "expiry"): (
        "The sorted set of a bucket is trimmed by the process that made it, and has no expiry time of its own.",
        "https://github.com/vutran1710/PyrateLimiter/issues/187",
    ),
}
