"""State in this process: a bounded table for each limit, exact under any number of threads.

How a decision stays exact without holding a lock while it is worked out: read the state, then the clock, let the pure
rule decide, then take the lock, and write only if the state is still the one that was read.  Nothing is called while
the lock is held, so no thread is switched out while it holds the lock.  The clock is read after the state, so a
decision never sees a state from its own future.

A full table draws keys at random and forgets at most the quarter of them that is closest to fully recovered, one for
each new key.  To unblock an exhausted key an attacker must bring most of a table to its limit.  Expired keys are
dropped on the way: two are examined for each new key.  No background thread, no timer.
"""

from __future__ import annotations

from _thread import allocate_lock
from os import urandom

from ratekeeper.check import to_cost
from ratekeeper.clock import follow, wall
from ratekeeper.decision import Decision, new_decision
from ratekeeper.keys import LONGEST, digest, encode
from ratekeeper.limit import UNLIMITED, empty_state
from ratekeeper.stores.fork import keep_through_fork
from ratekeeper.stores.options import MAX_KEYS, MOST_TABLES, whole_max_keys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _thread import LockType

    from ratekeeper.check import Check, Plan
    from ratekeeper.clock import Clock
    from ratekeeper.keys import Key
    from ratekeeper.limit import Limit, LimitSet, State
    from ratekeeper.stores.protocol import Row

    # States by key, and the same keys in a list, from which keys are drawn.
    States = tuple[dict[str | bytes, State], list[str | bytes]]
    TableCheck = tuple["MemoryTable", str | bytes, int, Check | None]  # table, key, cost, and what names a lease

SAMPLE = 64  # keys compared when a full table must forget some
RUN = 4
ODDS = 6364136223846793005  # a full-period multiplier modulo 2^64


class MemoryTable:
    """The states of one limit, or of several that are decided as one."""

    __slots__ = ("decide", "doomed", "empty", "hand", "keys", "limit", "lock", "max_keys", "nanos", "odds", "states")

    def __init__(self, limit: Limit | LimitSet, states: States, lock: LockType, clock: Clock, max_keys: int) -> None:
        self.limit = limit
        self.decide = limit.rule.decide
        self.states, self.keys = states
        self.lock = lock
        self.nanos = wall(clock) if limit.is_aligned else clock.nanos
        self.max_keys = max_keys
        self.doomed: list[tuple[int, str | bytes, State]] = []
        self.empty = empty_state(limit)
        self.hand = 0
        self.odds = int.from_bytes(urandom(8), "little") | 1

    def check(self, key: Key, cost: int = 1) -> Decision:
        """Take ``cost`` if it fits.  This is the whole hot path."""
        if key.__class__ is not str or not key:
            key = encode(key)
        if cost.__class__ is not int or not 0 < cost <= UNLIMITED:
            cost = to_cost(cost)
        states = self.states
        limit = self.limit
        while True:
            try:
                state = states[key]
            except KeyError:
                return self.check_new(key, cost)
            now = self.nanos() // 1000
            new, allowed = self.decide(state, now, limit, cost)
            if new is state:
                break
            with self.lock:
                try:
                    if states[key] is state:
                        states[key] = new
                        break
                except KeyError:
                    pass
        return new_decision(Decision, (allowed, limit, new, now, cost))

    check_now = check

    def check_new(self, key: str | bytes, cost: int) -> Decision:
        limit = self.limit
        if len(key) > LONGEST:
            key = digest(key)
        while True:
            state = self.states.get(key, self.empty)
            now = self.nanos() // 1000
            new, allowed = limit.rule.decide(state, now, limit, cost)
            if new is state or self.swap(key, state, new, now):
                return new_decision(Decision, (allowed, limit, new, now, cost))

    def swap(self, key: str | bytes, old: State, new: State, now: int) -> bool:
        """Write ``new`` if the state of ``key`` is still ``old``; whether it was."""
        states = self.states
        with self.lock:
            if key in states:
                if states[key] is not old:
                    return False
                states[key] = new
                return True
            if old is not self.empty:
                return False
            self.enter(key, new, now)
            return True

    def enter(self, key: str | bytes, state: State, now: int) -> None:
        """Add a new key; a full table forgets another for it.  The lock is held."""
        keys, states = self.keys, self.states
        limit, debt = self.limit, self.limit.rule.debt
        count = len(keys)
        if count < self.max_keys:
            for _ in range(min(2, count)):
                self.hand = hand = self.hand + 1 if self.hand + 1 < len(keys) else 0
                if debt(states[keys[hand]], now, limit) == 0:
                    del states[keys[hand]]
                    last = keys.pop()
                    if hand < len(keys):
                        keys[hand] = last
            keys.append(key)
            states[key] = state
            return
        while True:
            if not self.doomed:
                self.draw(now)
            place, victim, seen = self.doomed.pop()
            if keys[place] is victim and states[victim] is seen:  # the key has not been used since it was drawn
                break
        del states[victim]
        keys[place] = key
        states[key] = state

    def draw(self, now: int) -> None:
        """Choose the next keys to forget: the quarter of a random sample that is closest to recovered.

        A key that owes more than half of what the worst of them owes is kept, even if only one is left to forget: fewer
        than a quarter of a sample may be not exhausted.  Short runs of neighbours are drawn, as they lie close in
        memory; there are so many runs that a crowd of exhausted neighbours fills few of them.
        """
        keys, states = self.keys, self.states
        limit, debt = self.limit, self.limit.rule.debt
        sample: dict[int, str | bytes] = {}
        for _ in range(SAMPLE // RUN):
            self.odds = (self.odds * ODDS + 1) & 0xFFFF_FFFF_FFFF_FFFF
            start = (self.odds >> 32) * len(keys) >> 32
            sample.update(enumerate(keys[start : start + RUN], start))
        ranked = sorted([(debt(states[key], now, limit), place) for place, key in sample.items()])
        halfway = (ranked[0][0] + ranked[-1][0]) // 2
        chosen = [entry for entry in ranked[: len(ranked) // 4] if entry[0] <= halfway] or ranked[:1]
        self.doomed = [(place, keys[place], states[keys[place]]) for _, place in reversed(chosen)]


class MemoryStore:
    """State in this process.  ``max_keys`` bounds the table of each limit."""

    blocking = False

    def __init__(self, *, clock: Clock | None = None, max_keys: int = MAX_KEYS) -> None:
        self.max_keys = whole_max_keys(max_keys, "memory://")
        self.lock = allocate_lock()
        self.states_by_layout: dict[tuple[str, str], States] = {}
        self.tables: dict[tuple[str, Limit | LimitSet], MemoryTable] = {}
        self.by_identity: dict[tuple[str, int], MemoryTable] = {}
        self.limits_by_place: dict[tuple[str, str], list[Limit | LimitSet]] = {}  # those with a table
        self.clock = follow(self) if clock is None else clock
        keep_through_fork(self)

    def table(
        self,
        space: str,
        limit: Limit | LimitSet,
        on_store_error: str | None = None,
        *,
        prefetch: str | int | None = None,
        strict: bool = False,
        max_keys: int | None = None,
    ) -> MemoryTable:
        """The table of the states that ``limit`` reads; a changed limit finds those it still understands.

        ``max_keys`` bounds the table, in place of the store's own bound.
        """
        cached = self.by_identity.get((space, id(limit)))  # hashing a limit takes longer than all the rest
        if cached is not None and cached.limit is limit:
            return cached
        table = self.tables.get((space, limit))
        if table is None:
            with self.lock:
                states = self.states_by_layout.setdefault((space, limit.layout), ({}, []))
                if len(self.tables) >= MOST_TABLES:  # the application makes limits at run time; their states are kept
                    self.tables.clear()
                    self.by_identity.clear()
                    self.limits_by_place.clear()
                self.limits_by_place.setdefault((space, limit.layout), []).append(limit)
                table = MemoryTable(limit, states, self.lock, self.clock, max_keys or self.max_keys)
                table = self.tables.setdefault((space, limit), table)
        if table.limit is limit:  # the limit lives as long as its table, so that no other object gets its identity
            if len(self.by_identity) >= MOST_TABLES:
                self.by_identity.clear()
            self.by_identity[space, id(limit)] = table
        return table

    def check(self, plan: Plan) -> tuple[Decision, ...]:
        """Take every cost of the plan, or none."""
        return self.commit(plan, peek=False)

    def peek(self, plan: Plan) -> tuple[Decision, ...]:
        return self.commit(plan, peek=True)

    def take(self, plan: Plan) -> tuple[Decision, ...]:
        """Take of each cost what is there, up to all of it: to charge for what has been used already."""
        return tuple([self.change(check, take) for check in plan])

    def debit(self, plan: Plan) -> tuple[Decision, ...]:
        """Take all of each cost, though less is left: the key is in debt, and recovers in time."""

        def debit(state: State, now: int, check: Check) -> State:
            return check.limit.rule.debit(state, now, check.limit, check.cost)

        return tuple([self.change(check, debit) for check in plan])

    def refund(self, plan: Plan, at: int | None = None) -> tuple[Decision, ...]:
        """Give each cost, taken at the instant ``at``, back: never above the capacity."""

        def give(state: State, now: int, check: Check) -> State:
            return check.limit.rule.refund(state, now, check.limit, check.cost, now if at is None else at)

        return tuple([self.change(check, give) for check in plan])

    def renew(self, plan: Plan) -> tuple[Decision, ...]:
        """Hold each lease of the plan, by itself, from now on; the decisions say which are held."""
        return tuple([self.commit((check,), peek=False)[0] for check in plan])

    def end_leases(self, plan: Plan) -> tuple[Decision, ...]:
        """Let each lease of the plan keep only ``cost`` places: 0 ends it."""

        def end(state: State, now: int, check: Check) -> State:
            limit = check.limit
            return limit.rule.give_back(state, now, limit, check.cost, check.lease, check.lasts)

        return tuple([self.change(check, end) for check in plan])

    def reset(self, plan: Plan) -> None:
        """Forget what the plan's keys used."""
        for check in plan:
            self.change(check, lambda state, now, check: empty_state(check.limit))

    def states(self, plan: Plan) -> tuple[tuple[int, ...], tuple[State, ...]]:
        """The instant and the state of each check: to foresee a wait."""
        tables = [self.table(check.space, check.limit) for check in plan]
        states = tuple([table.states.get(check.key, table.empty) for table, check in zip(tables, plan, strict=True)])
        steady, aligned = self.instants()
        return tuple([aligned if check.limit.is_aligned else steady for check in plan]), states

    def prepare(self, rows: tuple[Row, ...]) -> Prepared:
        """A plan of (space, limit, cost, on_store_error) that waits for keys: ``prepare(rows).check(keys)``."""
        return Prepared(self, rows)

    def release(self, space: str, limit: Limit | LimitSet) -> bool:
        """Drop the states that ``limit`` reads, whose tables are not used any more; whether they are gone."""
        with self.lock:
            for each in self.limits_by_place.pop((space, limit.layout), ()):
                self.tables.pop((space, each), None)
            self.by_identity.clear()
            self.states_by_layout.pop((space, limit.layout), None)
        return True

    def use_clock(self, clock: Clock) -> None:
        """Read the time from another clock from now on."""
        with self.lock:
            self.clock = clock
            for table in self.tables.values():
                table.nanos = wall(clock) if table.limit.is_aligned else clock.nanos

    def size(self) -> int:
        """How many keys have a state, recovered ones among them."""
        return sum(len(states) for states, _ in self.states_by_layout.values())

    def clear(self) -> None:
        """Forget all keys."""
        with self.lock:
            for states, keys in self.states_by_layout.values():
                states.clear()
                keys.clear()

    def close(self) -> None:
        self.tables, self.by_identity, self.states_by_layout = {}, {}, {}
        self.limits_by_place = {}

    def instants(self) -> tuple[int, int]:
        # Now, in microseconds of the monotonic clock and of the time of day.
        clock = self.clock
        now = clock.nanos() // 1000
        return now, wall(clock)() // 1000 if hasattr(clock, "wall_nanos") else now

    def change(self, check: Check, alter: Alter) -> Decision:
        """Replace the state of one check by what ``alter`` returns; the decision says what remains."""
        table = self.table(check.space, check.limit)
        while True:
            state = table.states.get(check.key, table.empty)
            now = table.nanos() // 1000
            new = alter(state, now, check)
            if new is state or new == state or table.swap(check.key, state, new, now):
                return new_decision(Decision, (True, check.limit, new, now, 0))

    def commit(self, plan: Plan, *, peek: bool) -> tuple[Decision, ...]:
        return self.decide(
            [
                (self.table(check.space, check.limit), check.key, check.cost, check if check.lease else None)
                for check in plan
            ],
            peek,
        )[1]

    def decide(self, rows: list[TableCheck], peek: bool) -> tuple[bool, tuple[Decision, ...]]:
        """Decide all rows as one: whether all were admitted, and each decision."""
        while True:
            before: dict[tuple[MemoryTable, str | bytes], State] = {}
            for table, key, _, _ in rows:
                before[table, key] = table.states.get(key, table.empty)
            steady, aligned = self.instants()
            after = dict(before)  # a key that is twice in a plan pays twice
            answers = []
            fits = True
            for table, key, cost, lease in rows:
                state = after[table, key]
                now = aligned if table.limit.is_aligned else steady
                if lease is None:
                    new, allowed = table.decide(state, now, table.limit, cost)
                else:
                    new, allowed = hold(state, now, lease)
                after[table, key] = new
                fits = fits and allowed
                answers.append((allowed, table.limit, state, new, now, cost))
            if fits and not peek:
                if self.swap_all(before, after, steady, aligned):
                    return True, tuple(
                        [
                            new_decision(Decision, (True, limit, new, now, cost))
                            for _, limit, _, new, now, cost in answers
                        ]
                    )
                continue
            if not peek:  # only a state from the future, or above a lowered limit, is written on a refusal
                mended = {
                    (table, key): new
                    for (table, key, _, _), (allowed, _, state, new, _, _) in zip(rows, answers, strict=True)
                    if not allowed and new is not state and state is before[table, key]
                }
                if mended and not self.swap_all({place: before[place] for place in mended}, mended, steady, aligned):
                    continue
            return fits, tuple(
                [
                    new_decision(Decision, (allowed, limit, state, now, 0 if allowed else cost))
                    for allowed, limit, state, _, now, cost in answers
                ]
            )

    def swap_all(
        self,
        before: dict[tuple[MemoryTable, str | bytes], State],
        after: dict[tuple[MemoryTable, str | bytes], State],
        steady: int,
        aligned: int,
    ) -> bool:
        """Write all the new states if none of the old ones has changed; whether they were written."""
        fresh = []
        with self.lock:
            for place, old in before.items():
                table, key = place
                state = table.states.get(key, self)  # the store itself is never a state: it stands for a missing key
                if state is old:
                    continue
                if state is not self or old is not table.empty:
                    return False
                fresh.append(place)
            for place, new in after.items():
                if not fresh or place not in fresh:
                    place[0].states[place[1]] = new
            for place in fresh:  # last, as a full table may forget one of the other keys for a new one
                place[0].enter(place[1], after[place], aligned if place[0].limit.is_aligned else steady)
            return True


class Prepared:
    """A plan with its spaces, limits and costs, which only waits for keys."""

    __slots__ = ("rows", "store")

    def __init__(self, store: MemoryStore, rows: tuple[Row, ...]) -> None:
        self.store = store
        self.rows = [(store.table(space, limit), to_cost(cost)) for space, limit, cost, *_ in rows]

    def check(self, keys: tuple[Key, ...]) -> tuple[bool, tuple[Decision, ...]]:
        """Take every cost for its key, or none: whether they were taken, and the decisions."""
        if len(keys) != len(self.rows):
            raise TypeError(f"check: expected a tuple of {len(self.rows)} keys, got {keys!r}")
        return self.store.decide(
            [(table, encode(key), cost, None) for (table, cost), key in zip(self.rows, keys, strict=True)], False
        )

    check_now = check


def take(state: State, now: int, check: Check) -> State:
    limit = check.limit
    there = min(check.cost, limit.rule.remaining(state, now, limit))
    return limit.rule.decide(state, now, limit, there)[0] if there > 0 else state


def hold(state: State, now: int, check: Check) -> tuple[State, bool]:
    limit = check.limit
    new, held = limit.rule.hold(state, now, limit, check.cost, check.lease, check.lasts or limit.micros)  # type: ignore[union-attr]
    return new, bool(held)


if TYPE_CHECKING:
    from collections.abc import Callable

    Alter = Callable[[State, int, Check], State]
