"""Claim: a flood of new keys frees nobody who is at the limit, and does not grow the memory past the bound.

A table of 100,000 keys, 50,000 of them at their limit, is flooded with 1,000,000 new keys, each seen once: how many of
the 50,000 are admitted again, and what that does to memory and to the time of a decision.  Then what a flood must spend
to free somebody: each of its keys takes one, most, or all of its limit.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable

from bench.harness import conditions, resident, table
from bench.inprocess import STORES
from ratekeeper import Limiter
from ratekeeper.algorithms import ALGORITHMS

MAX_KEYS = 100_000
VICTIMS = 50_000
FLOOD = 1_000_000
FEW = 100
LIMIT = "5/day"


def limiter_of(engine: str, algorithm: str) -> Limiter:
    return Limiter(LIMIT, algorithm=algorithm, store=STORES[engine](max_keys=MAX_KEYS))  # type: ignore[call-arg]


def exhausted(limiter: Limiter, count: int) -> list[str]:
    victims = [f"victim{number}" for number in range(count)]
    for victim in victims:
        limiter.check(victim, cost=5)
    return victims


def seconds_each(limiter: Limiter, keys: Iterable[str]) -> float:
    check = limiter.check
    batch = list(keys)
    began = time.perf_counter()
    for key in batch:
        check(key)
    return (time.perf_counter() - began) / len(batch)


def best(limiter: Limiter, prefix: str) -> float:
    """The best of nine batches of new keys."""
    return min(seconds_each(limiter, (f"{prefix}{turn}:{key}" for key in range(4_000))) for turn in range(9))


def best_known(limiter: Limiter) -> float:
    return min(seconds_each(limiter, ["victim0"] * 20_000) for _ in range(9))


def flood(engine: str, algorithm: str) -> list[str]:
    """A row of the table: in a process of its own, as memory that was given back may be used again."""
    limiter = limiter_of(engine, algorithm)
    victims = exhausted(limiter, VICTIMS)
    room = best(limiter, "room")
    for key in range(2 * MAX_KEYS):
        limiter.check(f"filling{key}")
    full_bytes, known = resident(), best_known(limiter)
    for key in range(FLOOD):
        limiter.check(f"flood{key}")
    grown = resident() / full_bytes
    freed = sum(limiter.check(victim).allowed for victim in victims)
    after, full = best_known(limiter), best(limiter, "full")
    return [
        f"{freed:,}",
        f"{limiter.store.size():,}",  # type: ignore[attr-defined]
        f"{grown:.2f}",
        f"{full * 1e9:.0f} ({full / room:.1f})",
        f"{after / known:.1f}",
    ]


def freed_by(engine: str, cost: int) -> int:
    """How many of a few exhausted keys a flood three times the table unblocks whose keys each take ``cost``."""
    limiter = limiter_of(engine, "gcra")
    victims = exhausted(limiter, FEW)
    for key in range(3 * MAX_KEYS):
        limiter.check(f"flood{key}", cost=cost)
    return sum(limiter.peek(victim).allowed for victim in victims)


def main() -> None:
    conditions()
    rows = []
    for engine in STORES:
        for algorithm in ALGORITHMS:
            command = [sys.executable, "-m", "bench.flood", engine, algorithm]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            rows.append([f"{engine} {algorithm}", *done.stdout.strip().split("|")])
    head = ["", f"freed of {VICTIMS:,}", "keys held", "memory : full", "new key, ns (: room)", "known key : before"]
    table(f"{FLOOD:,} new keys, max_keys {MAX_KEYS:,}", head, rows)
    spent = [[f"{cost} of 5", *(freed_by(engine, cost) for engine in STORES)] for cost in (1, 4, 5)]
    table(f"Exhausted keys freed, of {FEW}, by {3 * MAX_KEYS:,} keys that take", ["each", *STORES], spent)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print("|".join(flood(*sys.argv[1:])))
    else:
        main()
