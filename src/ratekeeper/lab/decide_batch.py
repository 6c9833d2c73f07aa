"""Many decisions in one call, each at an instant of its own.

A *way* is a prepared plan, or None where nothing is limited, with the keys of each subject for it.  What is decided is
what the store decides when its clock stands at that instant.  ``native/each.c`` does the same, without a call for each.
"""

from __future__ import annotations

from array import array
from functools import partial
from itertools import repeat
from operator import mul
from typing import TYPE_CHECKING, Any

from ratekeeper.native import core
from ratekeeper.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ratekeeper.decision import Decision
    from ratekeeper.lab.clock import VirtualClock
    from ratekeeper.stores.protocol import Store

    Way = tuple[Any, Mapping[str, tuple[str, ...]] | None, Any]
    # A byte for each that was admitted or not; when it has its turn; and of each refusal its place, the row of the plan
    # that refuses for longest, and for how long, or FOR_EVER.  All numbers of 64 bits, times in microseconds.
    Found = tuple[bytes, bytes, bytes]
    CheckEach = Callable[[list[Way], list[str], list[int]], Found]

FOR_EVER = -1  # a wait where time does not help


def check_each(clock: VirtualClock, ways: list[Way], subjects: list[str], times: list[int]) -> Found:
    """Decide one after the other, on a store whose time is ``clock``."""
    hand = clock.hand
    allowed, turns, refused = bytearray(), array("q"), array("q")
    # `for ..., hand[0], ...` moves the clock to each before it is decided.
    nanos = map(mul, times, repeat(1000))
    for place, hand[0], (plan, keys, *_), subject in zip(range(len(times)), nanos, ways, subjects, strict=True):
        passed, turn = True, times[place]
        if plan is not None:
            passed, decisions = plan.check(keys[subject])  # type: ignore[index]
            if passed:
                turn += round(max([decision.delay for decision in decisions], default=0.0) * SECOND)
            else:
                refused.extend((place, *worst(decisions)))
        allowed.append(passed)
        turns.append(turn)
    return bytes(allowed), turns.tobytes(), refused.tobytes()


def worst(decisions: tuple[Decision, ...]) -> tuple[int, int]:
    """Which of the decisions refuses for longest, and for how long."""
    found, longest = 0, -1
    for row, decision in enumerate(decisions):
        if not decision.allowed:
            wait = micros_of(decision.retry_after)
            if wait == FOR_EVER:
                return row, FOR_EVER
            if wait > longest:
                found, longest = row, wait
    return found, longest


def micros_of(wait: float | None) -> int:
    return FOR_EVER if wait is None else round(wait * SECOND)


def each_of(clock: VirtualClock, *stores: Store) -> CheckEach:
    """The faster way to decide on these stores."""
    if core is not None and all(isinstance(store, core.Store) for store in stores):
        return core.check_each
    return partial(check_each, clock)
