"""Claim: a flood of new keys neither grows the memory past the bound, nor slows a decision much, nor frees anybody.

A table of 100,000 keys is flooded with 2,000,000 new ones, each seen once.  Timed are decisions on new keys while the
table has room and once it is full, and on a known key before and after.  One key in a thousand was exhausted before:
how many of them the flood unblocks is counted.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterable

from bench.harness import conditions, table
from ratekeeper import Limiter

MAX_KEYS = 100_000
FLOOD = 2_000_000
VICTIMS = 100
LIMIT = "5/day"


def seconds_each(limiter: Limiter, keys: Iterable[str]) -> float:
    check = limiter.check
    batch = list(keys)
    began = time.perf_counter()
    for key in batch:
        check(key)
    return (time.perf_counter() - began) / len(batch)


def best(limiter: Limiter, prefix: str, keys: int, rounds: int) -> float:
    """The best of several batches of new keys."""
    return min(seconds_each(limiter, (f"{prefix}{turn}:{key}" for key in range(keys))) for turn in range(rounds))


def exhausted(limiter: Limiter, spent: int = 5) -> list[str]:
    victims = [f"victim{number}" for number in range(VICTIMS)]
    for victim in victims:
        limiter.check(victim, cost=spent)
    return victims


def freed(hits_each: int) -> int:
    """How many exhausted keys a flood unblocks whose keys each make so many calls."""
    limiter = Limiter(LIMIT, max_keys=MAX_KEYS)
    victims = exhausted(limiter)
    for key in range(3 * MAX_KEYS):
        limiter.check(f"flood{key}", cost=hits_each)
    return sum(limiter.peek(victim).allowed for victim in victims)


def memory() -> tuple[float, float]:
    """Bytes a key of a full table, and after as many new keys again."""
    limiter = Limiter(LIMIT, max_keys=MAX_KEYS)
    tracemalloc.start()
    for key in range(MAX_KEYS):
        limiter.check(f"first:{key}")
    full, _ = tracemalloc.get_traced_memory()
    for key in range(MAX_KEYS):
        limiter.check(f"second:{key}")
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return full / MAX_KEYS, after / MAX_KEYS


def main() -> None:
    conditions()
    limiter = Limiter(LIMIT, max_keys=MAX_KEYS)
    victims = exhausted(limiter)
    known = best_known(limiter)
    room = best(limiter, "room", MAX_KEYS // 10, 9)
    for key in range(FLOOD - MAX_KEYS):
        limiter.check(f"flood{key}")
    full = best(limiter, "full", MAX_KEYS // 10, 9)
    after = best_known(limiter)
    rows = [
        ("known key, before the flood", f"{known * 1e9:.0f} ns", ""),
        ("known key, after it", f"{after * 1e9:.0f} ns", f"{after / known:.2f}x"),
        ("new key, table with room", f"{room * 1e9:.0f} ns", ""),
        ("new key, table full", f"{full * 1e9:.0f} ns", f"{full / room:.2f}x"),
    ]
    table(f"{FLOOD:,} new keys, max_keys {MAX_KEYS:,}", ["decision", "time", "ratio"], rows)
    unblocked = sum(limiter.peek(victim).allowed for victim in victims)
    print(f"\nkeys held: {limiter.store.size():,}; exhausted keys unblocked: {unblocked} of {VICTIMS}")
    first, second = memory()
    print(f"memory: {first:.0f} bytes a key when full, {second:.0f} after as many new keys again")
    costs = [(cost, freed(cost)) for cost in (1, 4, 5)]
    table(
        f"exhausted keys unblocked by {3 * MAX_KEYS:,} keys that spend more each, of {LIMIT}",
        ["spent by each key of the flood", f"unblocked, of {VICTIMS}"],
        costs,
    )


def best_known(limiter: Limiter) -> float:
    return min(seconds_each(limiter, ["victim0"] * 20_000) for _ in range(9))


if __name__ == "__main__":
    main()
