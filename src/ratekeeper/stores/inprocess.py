"""What the stores of this process have in common, in Python and in C: their bounds, and locks that survive a fork."""

from __future__ import annotations

from os import register_at_fork

from ratekeeper.errors import InvalidStore, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _thread import LockType

    from ratekeeper.stores.memory import MemoryStore
    from ratekeeper.stores.native import TableStore

MAX_KEYS = 1_000_000
MOST_TABLES = 1024


def whole_max_keys(max_keys: object, place: str) -> int:
    if isinstance(max_keys, int) and not isinstance(max_keys, bool) and max_keys >= 1:
        return max_keys
    raise InvalidStore(f"{place}: expected max_keys as a whole number of at least 1, got {shown(max_keys)}.")


# A fork copies the lock as it is.  It is taken around the fork, so that the child never inherits it held by
# a thread it does not have, nor a table half changed.

stores_alive: dict[int, object] = {}


def keep_through_fork(store: MemoryStore | TableStore) -> None:
    from _weakref import ref

    number = id(store)
    stores_alive[number] = ref(store, lambda _: stores_alive.pop(number, None))


def alive() -> list[MemoryStore | TableStore]:
    return [store for reference in list(stores_alive.values()) if (store := reference()) is not None]  # type: ignore[operator]


held: list[LockType] = []


def before_fork() -> None:
    for store in alive():
        store.lock.acquire()
        held.append(store.lock)


def after_fork() -> None:
    while held:
        held.pop().release()


register_at_fork(before=before_fork, after_in_parent=after_fork, after_in_child=after_fork)
