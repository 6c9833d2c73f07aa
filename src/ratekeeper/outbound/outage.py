"""The store of outbound calls when it does not answer: calls wait for it, and nothing is sent meanwhile.

An inbound check must be answered within milliseconds, so it falls back to a share of the limit.  An outbound call waits
for its turn anyway, up to its own timeout.  So a store that outbound calls open has a deadline of its own and no
fallback, unless its URL names one.

Law: no call is sent without a decision of the store.  What was sent to a store that did not answer may be counted
twice, never not at all.  A server that restarts may have lost its counts: then what is left of each limit is taken, so
that one period passes before the next call, if a period is at most an hour.
"""

from __future__ import annotations

from logging import getLogger
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from ratekeeper.check import Check
from ratekeeper.errors import InvalidStore, StoreUnavailable
from ratekeeper.flow.acquire import OUTAGE_PAUSES
from ratekeeper.flow.effects import Sleep
from ratekeeper.flow.settle import ask
from ratekeeper.limit import UNLIMITED
from ratekeeper.stores import REMOTE, open_store
from ratekeeper.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratekeeper.check import Plan
    from ratekeeper.clock import Clock
    from ratekeeper.decision import Decision
    from ratekeeper.flow.effects import Flow
    from ratekeeper.stores.protocol import Store

log = getLogger("ratekeeper")

DEADLINE = 5.0  # seconds for one answer of the store
SETTLES_FOR = 30 * SECOND  # microseconds for which a settlement waits for the store
LONGEST_LOSS = 3_600 * SECOND  # microseconds: a longer period is not waited for after the server lost its counts

runs: WeakKeyDictionary[Any, str] = WeakKeyDictionary()  # the run of each store's server, when its counts were known


def open_outbound(url: str, clock: Clock | None, asynchronous: bool) -> Store:
    """The store of a URL, as outbound calls need it."""
    scheme, _, rest = url.partition("://")
    options: dict[str, Any] = {}
    if scheme in REMOTE:
        names = [pair.partition("=")[0] for pair in rest.partition("?")[2].split("&")]
        if "deadline" not in names:
            options["deadline"] = DEADLINE
        if "on_store_error" not in names:
            options["fallback"] = False
        elif "on_store_error=local" in rest and "local_share" not in names:
            raise InvalidStore(
                f"store {scheme}://: expected local_share beside on_store_error=local, got none. "
                "It is the share of each limit that one process may spend while the store is away: "
                "for 20 processes write local_share=0.05."
            )
    return open_store(url, clock=clock, asynchronous=asynchronous, **options)


def debit(plan: Plan, clock: Clock) -> Flow[None]:
    """Charge all of the plan's costs, however long the store takes to answer."""
    until = clock.nanos() // 1000 + SETTLES_FOR
    pauses = iter(OUTAGE_PAUSES)
    while True:
        try:
            yield from ask("debit", plan)
            return
        except StoreUnavailable:
            pause = next(pauses, OUTAGE_PAUSES[-1])
            if clock.nanos() // 1000 + pause > until:
                raise
        yield Sleep(pause)


def counted(store: Any, plan: Plan, acquire: Callable[[], Flow[tuple[Decision, ...]]]) -> Flow[tuple[Decision, ...]]:
    """The decisions of ``acquire``, unless the server that made them has lost its counts: then it acquires again."""
    if not may_lose_counts(store):
        return (yield from acquire())
    while True:
        known = runs.get(store)
        decisions = yield from acquire()
        run = store.server_run
        if known == run or known is None or not all(decisions):
            if known is None and run is not None:
                runs[store] = run
            return decisions
        parts = [Check(check.space, check.key, check.limit, most_of(check)) for check in plan if is_waited_for(check)]
        log.warning(
            "%s: the server restarted, and may have lost its counts. Outbound calls wait for one period; limits of "
            "more than an hour go on with what the server has.",
            store.settings.shown,
        )
        if parts:
            yield from ask("take", tuple(parts))
        runs[store] = run


def may_lose_counts(store: object) -> bool:
    """Whether the counts are on a server, which may restart."""
    return isinstance(getattr(type(store), "server_run", None), property)


def is_waited_for(check: Check) -> bool:
    return all(part.micros <= LONGEST_LOSS for part in check.limit.parts)


def most_of(check: Check) -> int:
    """More than any limit of the check has."""
    return min(UNLIMITED, max([part.capacity for part in check.limit.parts]))
