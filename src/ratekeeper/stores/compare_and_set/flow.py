"""How requests become reads and compare-and-sets: generators, written once for threads and event loops.  No I/O.

``decide_batch`` decides requests on the same records: read, decide all of them by the pure rules, write if nothing has
changed, else start over.  ``decide_several`` asks for a plan whose records cannot be written together.  The backend
writes them one after the other, in the order of their names, and what was taken is given back if one of them refuses.
That never admits too much.  It may refuse another caller between the two steps, and what was taken stays taken if this
process dies in between.
"""

from __future__ import annotations

from random import random
from time import monotonic
from typing import NamedTuple

from ratekeeper.check import LeaseCheck
from ratekeeper.errors import StoreUnavailable
from ratekeeper.stores.compare_and_set.record import encode_state, lifetime, read_state
from ratekeeper.stores.compare_and_set.request import READS, RecordRequest, answer, decide_plan, mend

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from typing import Any

    from ratekeeper.check import Plan
    from ratekeeper.decision import Decision
    from ratekeeper.limit import State
    from ratekeeper.stores.compare_and_set.record import StoredLimits
    from ratekeeper.stores.compare_and_set.request import States

MOST_ATTEMPTS = 100  # compare-and-sets of one batch; the deadline ends most contests earlier
SHORTEST_PAUSE, LONGEST_PAUSE = 0.000_2, 0.01  # seconds before another attempt, at most; jittered

Record = tuple[bytes | None, object]  # the value, None if there is none, and what compare_and_set compares


class Change(NamedTuple):
    """A record to write if its version is still the one that was read."""

    name: str
    version: object
    value: bytes
    seconds: int


class Read(NamedTuple):
    """Read these records; the outcome is what ``get_all`` returns."""

    names: tuple[str, ...]


class Write(NamedTuple):
    """Write these changes, all or none; the outcome says whether they were written."""

    changes: list[Change]


class Pause(NamedTuple):
    """Wait before another attempt."""

    seconds: float


class Hold(NamedTuple):
    """Keep other writers away until the end of the flow."""


def decide_batch(
    batch: Sequence[RecordRequest], limits: StoredLimits, clock: Any, *, is_exclusive: bool, least_life: int
) -> Generator[Any, Any, list[Any]]:
    """Answer requests on the same records together; an answer may be a StoreUnavailable.

    ``clock`` tells the microseconds of now if the backend does not.  A backend with a lock is read without it if all
    calls are likely to be refused, by what is known of their keys: a refusal writes nothing.
    """
    names = tuple(sorted({name for request in batch for name in request.records}))
    seed = batch[0].seed if len(batch) == 1 else None  # of many, some may have come after others were written
    until = max([request.until for request in batch])
    is_held = is_exclusive and any(is_likely_to_write(request, clock()) for request in batch)
    if is_held:
        yield Hold()
    for attempt in range(MOST_ATTEMPTS):
        records, now = seed if seed is not None else (yield Read(names)) if names else ((), None)
        seed = None
        for request in batch:
            if request.operation == "states":
                request.seed = dict(zip(names, records, strict=True)), now
        if now is None:
            now = clock()  # after the records were read: no decision meets a state from its own future
        versions = dict(zip(names, [version for _, version in records], strict=True))
        before, damaged = states_of(batch, names, records, limits.store)
        after: States = dict(before)
        answers = [
            answer(request, after, now) if damaged.keys().isdisjoint(request.names) else damage_of(request, damaged)
            for request in batch
        ]
        changed = [name for name in names if name in after and after[name] is not before[name]]
        changes = []
        if changed:
            limit_of = {
                name: stored.limit
                for request in batch
                for name, stored in zip(request.names, request.stored, strict=True)
            }
            changes = [
                Change(name, versions[name], encode_state(state), lifetime(state, now, limit_of[name], least_life))
                for name in changed
                if (state := after[name]) != before[name]
            ]
        if changes and is_exclusive and not is_held:
            is_held = True
            yield Hold()
            continue
        if changes:
            for request in batch:
                request.is_sent = True
        if not changes or (yield Write(changes)):
            remember(batch, after, now, limits)
            return answers
        for request in batch:
            request.is_sent = False
        if monotonic() >= until:
            break
        yield Pause(min(LONGEST_PAUSE, SHORTEST_PAUSE * 2**attempt) * random())
    raise StoreUnavailable(
        limits.store, f"other processes changed the same record before each of {attempt + 1} attempts to write it"
    )


def is_likely_to_write(request: RecordRequest, now: int) -> bool:
    """Whether a request will change something, by what the backend last said of its keys."""
    if request.operation != "check":
        return request.operation not in READS
    for check, stored in zip(request.plan, request.stored, strict=True):
        state = stored.recall(check.key)
        if (
            state is not None
            and not check.lease
            and not check.limit.rule.decide(state, now, check.limit, check.cost)[1]
        ):
            return False
    return True


def states_of(
    batch: Sequence[RecordRequest], names: Sequence[str], records: Sequence[Record], store: str
) -> tuple[States, dict[str, StoreUnavailable]]:
    """The states of the records by name, and why some of them cannot be read."""
    values = {name: value for name, (value, _) in zip(names, records, strict=True)}
    states: States = {}
    damaged: dict[str, StoreUnavailable] = {}
    for request in batch:
        for name, stored in zip(request.names, request.stored, strict=True):
            if name in states or name in damaged:
                continue
            value = values.get(name)
            if value is None:
                states[name] = stored.empty
                continue
            try:
                states[name] = read_state(value, stored.limit)
            except ValueError as error:
                if request.operation == "reset":
                    states[name] = None  # whatever it is, it is replaced
                else:
                    damaged[name] = StoreUnavailable(store, f"has a record that is no state of ours: {error}")
    return states, damaged


def damage_of(request: RecordRequest, damaged: dict[str, StoreUnavailable]) -> StoreUnavailable:
    return next(damaged[name] for name in request.names if name in damaged)


def remember(batch: Sequence[RecordRequest], states: dict[str, State], now: int, limits: StoredLimits) -> None:
    """Note the states for the fallback."""
    from time import monotonic_ns

    nanos = monotonic_ns()
    for request in batch:
        for name, stored, check in zip(request.names, request.stored, request.plan, strict=True):
            if name in states:
                stored.remember(check.key, states[name], now, nanos)


def decide_several(request: RecordRequest, limits: StoredLimits) -> Generator[Any, Any, Any]:
    """Answer a request on several records that cannot be written together.

    Yields requests on one record each, and reads of all; is sent their answers, or StoreUnavailable.
    """
    operation, plan = request.operation, request.plan
    if operation != "check":
        return (yield from decide_each(request, limits))
    look = RecordRequest("states", plan, limits)
    seen = yield look
    if isinstance(seen, StoreUnavailable):
        raise seen
    records, server_time = look.seed
    (now, *_), states = seen
    decisions = list(decide_plan(plan, request.names, dict(zip(request.names, states, strict=True)), now, is_peek=True))
    if not all(decisions):
        # Nothing is written for a refused plan, unless a state from the future must be mended.
        for place, decision in enumerate(decisions):
            if not decision and mend(states[place], now, plan[place]) is not states[place]:
                yield RecordRequest("mend", (plan[place],), limits)
        return tuple(decisions)
    taken: list[tuple[list[int], Plan]] = []
    for name in request.records:
        places, part = request.part(name)
        step = RecordRequest("check", part, limits)
        step.seed = [records[name]], server_time
        answers = yield step
        failed = isinstance(answers, StoreUnavailable)
        if not failed:
            for place, decision in zip(places, answers, strict=True):
                decisions[place] = decision
        if failed or not all(answers):
            has_returned = yield from give_back(taken, decisions, limits)
            if failed:
                charged = False if answers.charged is False and has_returned else None
                raise StoreUnavailable(answers.store, answers.why, charged)
            return tuple(decisions)
        taken.append((places, part))
    return tuple(decisions)


def give_back(
    taken: Sequence[tuple[list[int], Plan]], decisions: list[Decision], limits: StoredLimits
) -> Generator[Any, Any, bool]:
    """Give back what a plan took of some records; whether all of it arrived.  ``decisions`` then say what remains."""
    has_returned = True
    for places, part in taken:
        rates = [(place, check) for place, check in zip(places, part, strict=True) if not check.lease]
        leases = [(place, check) for place, check in zip(places, part, strict=True) if check.lease]
        for operation, group in (("refund", rates), ("end_leases", leases)):
            if not group:
                continue
            checks = [
                LeaseCheck(check.space, check.key, check.limit, 0, check.on_store_error, check.lease, 0)
                if operation == "end_leases"
                else check
                for _, check in group
            ]
            at = decisions[group[0][0]].at if operation == "refund" else None
            answers = yield RecordRequest(operation, tuple(checks), limits, at)
            if isinstance(answers, StoreUnavailable):
                has_returned = False
                continue
            for (place, _), decision in zip(group, answers, strict=True):
                decisions[place] = decision
    return has_returned


def decide_each(request: RecordRequest, limits: StoredLimits) -> Generator[Any, Any, Any]:
    """Answer an operation that treats each check by itself, record by record."""
    operation = request.operation
    is_independent = operation in ("renew", "end_leases") and len(request.plan) > 1
    outcomes: list[Any] = [None] * len(request.plan)
    last_error: StoreUnavailable | None = None
    answered = False
    for name in dict.fromkeys(request.names):
        places, part = request.part(name)
        answers = yield RecordRequest(operation, part, limits, request.at)
        if isinstance(answers, StoreUnavailable):
            if not is_independent:
                raise answers
            last_error = answers
            continue
        answered = True
        for place, outcome in zip(places, answers or [None] * len(places), strict=True):
            outcomes[place] = outcome
    if last_error is not None and not answered:
        raise last_error
    return None if operation == "reset" else tuple(outcomes)
