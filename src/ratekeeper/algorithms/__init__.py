"""The rules, each a module of pure functions over one key's state.

Every module has the same face:

    EMPTY                                   the state of a key never seen, and of one fully recovered
    decide(state, now, limit, cost)         -> (new state, allowed); refused: the state as it was
    remaining(state, now, limit)            -> how much cost would be admitted at once
    retry_after(state, now, limit, cost)    -> least microseconds until ``cost`` is admitted; None: never
    reset_after(state, now, limit)          -> microseconds until fully recovered
    delay(state, now, limit, cost)          -> microseconds until the turn of a call just admitted
    refund(state, now, limit, cost, at)     -> state with ``cost``, taken at ``at``, given back
    debit(state, now, limit, cost)          -> state with all of ``cost`` taken, though less was left: see below
    debt(state, now, limit)                 -> how far from recovered, to compare keys of one limit; 0 is EMPTY

A debit makes a key owe more than its capacity, up to ``limit.owes``: docs/decisions/0018-debt.md.
A key's clock, the latest instant at which it admitted anything, does not follow a small step back of ``now``.
A refusal returns the very state it was given, with one exception: a state from too far in the future, or as far above
a burst that was lowered, is brought to the worst that the present allows, so that no key is locked out for longer
than one period.  What is too far, and all bounds: docs/decisions/0003-states-from-the-future.md.
"""

from __future__ import annotations

from _thread import RLock
from os import register_at_fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Literal

    Algorithm = Literal[
        "fixed_window", "sliding_log", "sliding_window", "token_bucket", "leaky_bucket", "gcra",
        "calendar_window", "first_use_window", "concurrency",
    ]  # fmt: skip

ALGORITHMS: tuple[Algorithm, ...] = (
    "fixed_window",
    "sliding_log",
    "sliding_window",
    "token_bucket",
    "leaky_bucket",
    "gcra",
)

# Fixed windows that start elsewhere than at multiples of their period: chosen by `calendar` and `first-use`.
WINDOWS: tuple[Algorithm, ...] = ("calendar_window", "first_use_window")

# All that a limit may name.  `concurrency` is apart from the others, because its leases are given back.
RULES: tuple[Algorithm, ...] = (*ALGORITHMS, *WINDOWS, "concurrency")

# These hold `burst` and drain at a constant rate; the others count what was admitted in a window.
BUCKETS: frozenset[Algorithm] = frozenset({"token_bucket", "leaky_bucket", "gcra"})


# Without this lock, a child forked while another thread imports a rule would wait for that thread for ever.
importing = RLock()
register_at_fork(before=importing.acquire, after_in_parent=importing.release, after_in_child=importing.release)


def rule_of(name: str) -> ModuleType:
    """The module of a rule, imported when the first limit names it: a program pays only for the rules it uses."""
    with importing:
        rule: ModuleType = __import__(f"ratekeeper.algorithms.{name}", fromlist=["decide"])  # importlib is slow
    return rule
