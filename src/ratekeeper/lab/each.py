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

    from ratekeeper.lab.clock import VirtualClock
    from ratekeeper.model import Decision
    from ratekeeper.stores import Store

    Way = tuple[Any, Mapping[str, tuple[str, ...]] | None, Any]
    Refused = list[tuple[int, tuple[Decision, ...]]]
    # A byte for each that was admitted or not, and when it has its turn: microseconds, as numbers of 64 bits.
    Found = tuple[bytes, bytes]
    CheckEach = Callable[[list[Way], list[str], list[int], Refused | None], Found]


def check_each(
    clock: VirtualClock, ways: list[Way], subjects: list[str], times: list[int], refused: Refused | None
) -> Found:
    """Decide one after the other, on a store whose time is ``clock``; refusals are added to ``refused``."""
    hand = clock.hand
    allowed, turns = bytearray(), array("q")
    # `for ..., hand[0], ...` moves the clock to each before it is decided.
    nanos = map(mul, times, repeat(1000))
    for place, hand[0], (plan, keys, *_), subject in zip(range(len(times)), nanos, ways, subjects, strict=True):
        passed, turn = True, times[place]
        if plan is not None:
            passed, decisions = plan.check(keys[subject])  # type: ignore[index]
            if passed:
                turn += round(max([decision.delay for decision in decisions], default=0.0) * SECOND)
            elif refused is not None:
                refused.append((place, decisions))
        allowed.append(passed)
        turns.append(turn)
    return bytes(allowed), turns.tobytes()


def each_of(clock: VirtualClock, *stores: Store) -> CheckEach:
    """The faster way to decide on these stores."""
    if core is not None and all(isinstance(store, core.Store) for store in stores):
        return core.check_each
    return partial(check_each, clock)
