"""State in this process, decided by the C core: the same promises as ``memory.py``, at a fraction of the cost.

The core's ``Store`` answers plans; this file only finds the table of each limit.  A table's ``check`` is the C function
itself.  The native table holds at least ``max_keys`` keys, and at most twice that.  It allocates memory as keys come,
and when it is full it forgets the keys closest to recovered.
"""

from __future__ import annotations

from _thread import allocate_lock
from os import urandom

from ratekeeper.clock import MonotonicClock, follow
from ratekeeper.native.core import KeyTable, Store, Table, shape
from ratekeeper.stores.fork import keep_through_fork
from ratekeeper.stores.options import MAX_KEYS, MOST_TABLES, whole_max_keys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ratekeeper.clock import Clock
    from ratekeeper.limit import Limit, LimitSet

MOST_KEYS = 10**12  # more than any memory holds


class TableStore(Store):
    """What the stores of the core have in common: tables, their states, and one clock for all of them."""

    blocking = False

    def __init__(self, clock: Clock) -> None:
        self.lock = allocate_lock()
        self.states_by_layout: dict[Any, KeyTable] = {}
        self.tables: dict[tuple[str, Limit | LimitSet], Table] = {}
        self.limits_by_place: dict[tuple[str, str], list[Limit | LimitSet]] = {}  # those with a table
        self.clock = clock
        self.nanos = nanos_of(clock)
        keep_through_fork(self)

    def put_table(self, space: str, limit: Limit | LimitSet, states: KeyTable) -> Table:
        """Add a table of ``limit`` on these states.  The lock is held."""
        if len(self.tables) >= MOST_TABLES:  # the application makes limits at run time; their states are kept
            self.tables.clear()
            self.limits_by_place.clear()
            self.forget_tables()
        self.limits_by_place.setdefault((space, limit.layout), []).append(limit)
        return self.tables.setdefault((space, limit), Table(states, limit, self.nanos))

    def drop_tables(self, space: str, limit: Limit | LimitSet) -> None:
        """Drop the tables on the states of ``limit``.  The lock is held."""
        for each in self.limits_by_place.pop((space, limit.layout), ()):
            self.tables.pop((space, each), None)
        self.forget_tables()

    def use_clock(self, clock: Clock) -> None:
        """Read the time from another clock from now on; processes that share states must use the same."""
        with self.lock:
            self.clock = clock
            self.nanos = nanos_of(clock)
            for table in self.tables.values():
                table.nanos = self.nanos

    def size(self) -> int:
        """How many keys have a state in the tables that this process uses, recovered ones among them."""
        return sum(states.keys for states in self.states_by_layout.values())

    def clear(self) -> None:
        """Forget all keys of the tables that this process uses: for all processes, if they share them."""
        with self.lock:
            for states in self.states_by_layout.values():
                states.clear()

    def close(self) -> None:
        """Drop the tables and their states."""
        with self.lock:
            self.tables, self.states_by_layout, self.limits_by_place = {}, {}, {}
            self.forget_tables()


class NativeStore(TableStore):
    """State in this process, decided in C.  ``max_keys`` bounds the table of each limit."""

    def __init__(self, *, clock: Clock | None = None, max_keys: int = MAX_KEYS) -> None:
        self.max_keys = whole_max_keys(max_keys, "memory://")
        self.shapes_by_place: dict[tuple[str, str], list[str]] = {}  # of the states there
        self.seed = urandom(16)  # of all tables, so that a key in several of them is hashed once
        super().__init__(follow(self) if clock is None else clock)

    def table(
        self,
        space: str,
        limit: Limit | LimitSet,
        on_store_error: str | None = None,
        *,
        prefetch: str | int | None = None,
        strict: bool = False,
        max_keys: int | None = None,
    ) -> Table:
        """The table of the states that ``limit`` reads; a changed limit finds those it still understands.

        ``max_keys`` bounds a new table, in place of the store's own bound.
        """
        table = self.tables.get((space, limit))
        if table is None:
            with self.lock:
                form = shape(limit, False)
                place = space, limit.layout, form
                states = self.states_by_layout.get(place)
                if states is None:
                    self.shapes_by_place.setdefault(place[:2], []).append(form)
                    states = self.states_by_layout[place] = KeyTable(
                        limit, min(max_keys or self.max_keys, MOST_KEYS), self.seed
                    )
                table = self.put_table(space, limit, states)
        return table

    def release(self, space: str, limit: Limit | LimitSet) -> bool:
        """Drop the states that ``limit`` reads, whose tables are not used any more; whether they are gone."""
        with self.lock:
            self.drop_tables(space, limit)
            for form in self.shapes_by_place.pop((space, limit.layout), ()):
                self.states_by_layout.pop((space, limit.layout, form), None)
        return True


def nanos_of(clock: Clock) -> Callable[[], int] | None:
    """The clock as the core needs it; None is the machine's own, which C reads by itself."""
    return None if type(clock) is MonotonicClock else clock.nanos
