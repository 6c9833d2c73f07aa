"""Many decisions in one call, each at its own instant.

A store makes the same decisions one by one when its clock stands at these instants.  ``native/each.c`` is the twin of
``check_each``, without a Python call for each decision.
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

    # A prepared plan (None: not limited), the plan's keys of each client, and anything the caller wants to keep there.
    KeyedPlan = tuple[Any, Mapping[str, tuple[str, ...]] | None, Any]
    # One byte for each decision: admitted or not.  When each call has its turn.  And three numbers for each refusal:
    # its place in the batch, the row of the plan that refuses for longest, and the wait (or FOREVER).  All numbers
    # have 64 bits, all times are microseconds.
    BatchResult = tuple[bytes, bytes, bytes]
    CheckEach = Callable[[list[KeyedPlan], list[str], list[int]], BatchResult]

FOREVER = -1  # the wait of a refusal that time does not lift


def check_each(clock: VirtualClock, plans: list[KeyedPlan], clients: list[str], times: list[int]) -> BatchResult:
    """Decide the calls one after the other, on stores that run on ``clock``."""
    hand = clock.hand
    allowed, turns, refusals = bytearray(), array("q"), array("q")
    nanos = map(mul, times, repeat(1000))
    # `for ..., hand[0], ...` moves the clock to each call before it is decided.
    for place, hand[0], (plan, keys, *_), client in zip(range(len(times)), nanos, plans, clients, strict=True):
        admitted, turn = True, times[place]
        if plan is not None:
            admitted, decisions = plan.check(keys[client])  # type: ignore[index]
            if admitted:
                turn += round(max([decision.delay for decision in decisions], default=0.0) * SECOND)
            else:
                refusals.extend((place, *longest_refusal(decisions)))
        allowed.append(admitted)
        turns.append(turn)
    return bytes(allowed), turns.tobytes(), refusals.tobytes()


def longest_refusal(decisions: tuple[Decision, ...]) -> tuple[int, int]:
    """Return the row of the decision that refuses for longest, and its wait."""
    longest_row, longest = 0, -1
    for row, decision in enumerate(decisions):
        if not decision.allowed:
            wait = wait_micros(decision.retry_after)
            if wait == FOREVER:
                return row, FOREVER
            if wait > longest:
                longest_row, longest = row, wait
    return longest_row, longest


def wait_micros(retry_after: float | None) -> int:
    return FOREVER if retry_after is None else round(retry_after * SECOND)


def batch_checker(clock: VirtualClock, *stores: Store) -> CheckEach:
    """Choose the fastest ``check_each`` for these stores."""
    if core is not None and all(isinstance(store, core.Store) for store in stores):
        return core.check_each
    return partial(check_each, clock)
