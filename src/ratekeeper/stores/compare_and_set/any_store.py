"""What the stores for threads and for event loops have in common: everything but how a backend is asked.  No I/O."""

from __future__ import annotations

import logging
from _thread import allocate_lock
from time import monotonic, time_ns

from ratekeeper.check import Check, to_cost
from ratekeeper.clock import MONOTONIC
from ratekeeper.errors import InvalidStore, StoreUnavailable, shown
from ratekeeper.keys import encode
from ratekeeper.stores.compare_and_set.record import KEPT_UNDER_GIVEN_TIME, PLAIN, StoredLimits
from ratekeeper.stores.compare_and_set.request import RecordRequest, answer
from ratekeeper.stores.fallback import Fallback, NoFallback
from ratekeeper.stores.options import LOCAL_SHARE, expect_options
from ratekeeper.stores.redis.breaker import Breaker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ratekeeper.check import Plan
    from ratekeeper.clock import Clock
    from ratekeeper.decision import Decision
    from ratekeeper.keys import Key
    from ratekeeper.limit import Limit, LimitSet
    from ratekeeper.stores.protocol import Answer, Row

MOST_CHARGES = 200  # keys that are charged at once
SETTLE_AGAIN = 0.2  # seconds between two attempts to charge what is owed
DEADLINE = 0.05  # seconds
log = logging.getLogger("ratekeeper.store")


class AnyCompareAndSetStore:
    """The options, the fallback and the operations of a store on ``get`` and ``compare_and_set``."""

    blocking = True
    is_async = False
    needs_heartbeats = True
    errors: tuple[type[Exception], ...] = (OSError,)  # what the backend's client raises when it gets no answer
    longest_record: int | None = None  # bytes; None: any length
    table_type: Any
    plan_type: Any

    def __init__(
        self,
        name: str,
        *,
        clock: Clock | None = None,
        deadline: float | None = None,
        on_store_error: str | None = None,
        local_share: float | None = None,
        prefix: str | None = None,
        secret: str | None = None,
        fallback: bool = True,
    ) -> None:
        """``name`` is what logs and errors call the store: a URL without its password."""
        place = f"store {name}"
        expect_options(place, on_store_error=on_store_error, deadline=deadline, local_share=local_share)
        prefix = "rk" if prefix is None else prefix
        if not (isinstance(prefix, str) and 0 < len(prefix) <= 64 and set(prefix) <= PLAIN):
            raise InvalidStore(
                f"{place}: expected a prefix of 1 to 64 letters, digits, '-', '_', '.' or '/', got {shown(prefix)}."
            )
        if not isinstance(secret or "", str):
            raise InvalidStore(f"{place}: expected a secret as text, got {type(secret).__name__}.")
        self.name = name
        self.deadline = DEADLINE if deadline is None else float(deadline)
        self.clock = MONOTONIC if clock is None else clock
        self.gives_time = clock is not None
        self.needs_heartbeats = not self.gives_time  # a test's clock has no heartbeats
        self.least_life = KEPT_UNDER_GIVEN_TIME if self.gives_time else 1
        self.renewer: Any = None  # renews the leases of this process
        self.limits = StoredLimits(name, prefix, secret or "", self.longest_record)
        self.on_store_error = on_store_error or "local"
        self.local_share = LOCAL_SHARE if local_share is None else local_share
        make_fallback = Fallback if fallback else NoFallback
        self.fallback = make_fallback(self.on_store_error, self.local_share, self.limits, self.clock)  # type: ignore[arg-type]
        self.breaker = Breaker()
        self.proofs = 0  # successes in a row while the breaker is open
        self.lock = allocate_lock()
        self.settle_at = 0.0

    def now(self) -> int:
        """The microseconds that decide if the backend has no clock: the host's time of day."""
        return self.clock.nanos() // 1000 if self.gives_time else time_ns() // 1000

    # The breaker.

    def away(self) -> str:
        """Why the backend is not asked at this moment; "" if it is."""
        breaker = self.breaker
        return breaker.why if breaker.is_open and breaker.is_waiting(monotonic()) else ""

    def expect_present(self) -> None:
        """Raise StoreUnavailable while the breaker is open, unless this call is to try the backend again."""
        if self.breaker.is_open:
            with self.lock:
                if self.breaker.is_open and not self.breaker.is_due(monotonic()):
                    raise StoreUnavailable(self.name, self.breaker.why)

    def unavailable(self, error: Exception, *, is_write: bool) -> StoreUnavailable:
        """The error of a backend that gave no answer; ``charged`` is unknown if it was asked to write."""
        if isinstance(error, TimeoutError):
            why = f"gave no answer in {self.deadline * 1000:g} ms"
        else:
            why = f"gave an error ({type(error).__name__}: {shown(str(error), 200)[1:-1]})"
        with self.lock:
            self.proofs = 0
            changed = self.breaker.trip(monotonic(), why)
        if changed:
            share = f" ({self.local_share:.0%} of each limit, per process)" if self.on_store_error == "local" else ""
            mode = f"on_store_error={self.on_store_error}{share}"
            log.warning("%s: %s. Using %s until it recovers", self.name, why, mode)
        return StoreUnavailable(self.name, why, charged=None if is_write else False)

    def note_answer(self) -> bool:
        """Note that the backend answered; whether something is owed to it, and may be charged now."""
        if self.breaker.is_open:
            with self.lock:
                self.proofs += 1
                now = monotonic()
                if self.proofs < self.breaker.proofs:
                    self.breaker.probe_at = now
                    return False
                changed = self.breaker.close(now)
            if changed:
                log.info("%s: answers again", self.name)
        if not self.fallback.owing or monotonic() < self.settle_at:
            return False
        self.settle_at = monotonic() + SETTLE_AGAIN
        return True

    def charges(self) -> list[tuple[RecordRequest, Any]]:
        """Requests that charge for what the fallback admitted, with what to note again if one fails."""
        charges = []
        for stored, key, costs in self.fallback.collect(MOST_CHARGES):
            check = Check(stored.space, key, stored.limit, 1)
            charges.append((RecordRequest("charge", (check,), self.limits, None, costs), (stored, key, costs)))
        return charges

    # What limiters and policies call.

    def run(self, request: RecordRequest) -> Any:
        """Answer a request, or return something to await; raises StoreUnavailable."""
        raise NotImplementedError

    def table(
        self,
        space: str,
        limit: Limit | LimitSet,
        on_store_error: str | None = None,
        *,
        prefetch: str | int | None = None,
        strict: bool = False,
    ) -> Any:
        """The states of one limit."""
        if prefetch is not None:
            raise InvalidStore(f"store {self.name}: expected no prefetch, as only Redis has it, got {shown(prefetch)}.")
        return self.table_type(self, space, limit, on_store_error)

    def prepare(self, rows: tuple[Row, ...]) -> Any:
        """A plan of (space, limit, cost, on_store_error) that waits for keys: ``prepare(rows).check(keys)``."""
        return self.plan_type(self, rows)

    def release(self, space: str, limit: Limit | LimitSet) -> bool:
        """Forget what this process knows of the states that ``limit`` reads; those on the backend expire."""
        self.limits.release(space, limit)
        self.fallback.release(space, limit)
        return True

    def fall_back(
        self, operation: str, error: StoreUnavailable | None, plan: Plan, at: int | None = None
    ) -> tuple[Decision, ...]:
        """Answer in this process, as ``on_store_error`` says, what the store cannot."""
        return self.fallback.answer(operation, error, plan, at)

    def check(self, plan: Plan) -> Any:
        """Take every cost of the plan, or none."""
        return self.run(RecordRequest("check", plan, self.limits))

    def peek(self, plan: Plan) -> Any:
        """Say what ``check`` would, and take nothing."""
        return self.run(RecordRequest("peek", plan, self.limits))

    def take(self, plan: Plan) -> Any:
        """Take of each cost what is there, up to all of it: to charge for what has been used already."""
        return self.run(RecordRequest("take", plan, self.limits))

    def debit(self, plan: Plan) -> Any:
        """Take all of each cost, though less is left: the key is in debt, and recovers in time."""
        return self.run(RecordRequest("debit", plan, self.limits))

    def refund(self, plan: Plan, at: int | None = None) -> Any:
        """Give each cost, taken at the instant ``at``, back: never above the capacity."""
        return self.run(RecordRequest("refund", plan, self.limits, at))

    def renew(self, plan: Plan) -> Any:
        """Hold each lease of the plan, by itself, from now on: whether it is held; None: that is not known."""
        return self.run(RecordRequest("renew", plan, self.limits))

    def end_leases(self, plan: Plan) -> Any:
        """Let each lease of the plan keep only ``cost`` places: 0 ends it."""
        return self.run(RecordRequest("end_leases", plan, self.limits))

    def reset(self, plan: Plan) -> Any:
        """Forget what the plan's keys used."""
        return self.run(RecordRequest("reset", plan, self.limits))

    def states(self, plan: Plan) -> Any:
        """Now, and the state of each check: to foresee a wait."""
        return self.run(RecordRequest("states", plan, self.limits))

    def without_backend(self, request: RecordRequest) -> Any:
        """The answer to a request about unlimited keys, of which nothing is kept."""
        return answer(request, {"": 0}, self.now())


class AnyRecordTable:
    """One limit in one space."""

    def __init__(self, store: Any, space: str, limit: Limit | LimitSet, on_store_error: str | None) -> None:
        self.store = store
        self.space = space
        self.limit = limit
        self.on_store_error = on_store_error
        store.limits.layout(space, limit)  # raises if the backend has no room for it

    def plan(self, key: Key, cost: int) -> Plan:
        return (Check(self.space, encode(key), self.limit, to_cost(cost), self.on_store_error),)

    def check_now(self, key: Key, cost: int = 1) -> Decision | None:
        """Answer for the backend while it is known to be away; None: it must be asked."""
        why = self.store.away()
        if not why:
            return None
        decision: Decision = self.store.fall_back(
            "check", StoreUnavailable(self.store.name, why), self.plan(key, cost)
        )[0]
        return decision


class AnyRecordPlan:
    """Several limits, decided all or nothing, that only wait for a key each."""

    def __init__(self, store: Any, rows: tuple[Row, ...]) -> None:
        self.store = store
        self.rows = [(space, limit, to_cost(cost), on_store_error) for space, limit, cost, on_store_error in rows]
        for space, limit, _, _ in self.rows:
            store.limits.layout(space, limit)

    def plan(self, keys: tuple[Key, ...]) -> Plan:
        if len(keys) != len(self.rows):
            raise TypeError(f"check: expected a tuple of {len(self.rows)} keys, got {keys!r}")
        return tuple(
            [
                Check(space, encode(key), limit, cost, on_store_error)
                for (space, limit, cost, on_store_error), key in zip(self.rows, keys, strict=True)
            ]
        )

    def check_now(self, keys: tuple[Key, ...]) -> Answer | None:
        """Answer for the backend while it is known to be away; None: it must be asked."""
        why = self.store.away()
        return (
            joined(self.store.fall_back("check", StoreUnavailable(self.store.name, why), self.plan(keys)))
            if why
            else None
        )


# What the author of a store may write; every other name of these classes is ours.
OPEN = {
    "after_fork", "compare_and_set", "compare_and_set_all", "disconnect", "errors", "exclusive", "get", "get_all",
    "longest_record", "now",
}  # fmt: skip


def expect_own_names(cls: type, *ours: type) -> None:
    """Raise InvalidStore for a store that redefines a method that it needs."""
    for name in vars(cls):
        if not name.startswith("__") and name not in OPEN and any(name in vars(each) for each in ours):
            raise InvalidStore(
                f"class {cls.__name__}: expected another name for {name!r}, which the store itself uses. Rename yours."
            )


def joined(decisions: tuple[Decision, ...]) -> Answer:
    return all(decision.allowed for decision in decisions), decisions
