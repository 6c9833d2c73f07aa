"""Interleaved rounds, best of several, and ratios to a floor measured in the same run.

Machines are noisy and differ: read the ratios.  The floor F1 is ``d[key] += 1`` in a Python function, the least that
a counter in Python can cost.  Each round calls every contestant in turn, so that a busy moment hits all alike; the
best round of each counts.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

ROUNDS = 7


@dataclass
class Contestant:
    name: str
    call: Callable[[str], object]
    best: float = field(default=float("inf"), init=False)


def floor(keys: Iterable[str]) -> Callable[[str], object]:
    """F1: ``d[key] += 1`` in a Python function, on a dictionary that holds the keys already."""
    counts = dict.fromkeys(keys, 0)

    def increment(key: str) -> None:
        counts[key] += 1

    return increment


def race(contestants: Sequence[Contestant], keys: Sequence[str], rounds: int = ROUNDS) -> dict[str, float]:
    """Best seconds per call of each contestant."""
    for _ in range(rounds):
        for contestant in contestants:
            call = contestant.call
            began = time.perf_counter()
            for key in keys:
                call(key)
            contestant.best = min(contestant.best, (time.perf_counter() - began) / len(keys))
    return {contestant.name: contestant.best for contestant in contestants}


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under a title, in columns."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in [list(head), *cells]) for column in range(len(head))]
    print(f"\n{title}")
    for row in [list(head), ["-" * width for width in widths], *cells]:
        first, *rest = (
            cell.ljust(width) if not i else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join([first, *rest]))


def resident() -> int:
    """Bytes of memory that this process has, whoever in it asked for them."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def conditions() -> None:
    from ratekeeper import info

    facts = f"Python {platform.python_version()} on {platform.machine()}, {sys.platform}; {info()['engine']} core"
    print(f"{facts}; best of interleaved rounds")
