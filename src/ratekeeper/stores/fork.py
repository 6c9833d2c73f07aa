"""Locks that survive a fork."""

from __future__ import annotations

from os import register_at_fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _thread import LockType
    from typing import Any

# A fork copies a lock as it is.  We hold the lock during the fork, so that the child never inherits a lock that is held
# by a thread it does not have, nor data that another thread has half changed.

owners: dict[int, Any] = {}


def keep_through_fork(owner: Any) -> None:
    """Keep ``owner.lock`` usable in a child process, where ``owner.in_child`` is called if there is one."""
    from _weakref import ref

    number = id(owner)
    owners[number] = ref(owner, lambda _: owners.pop(number, None))


def alive() -> list[Any]:
    return [owner for reference in list(owners.values()) if (owner := reference()) is not None]


held: list[LockType] = []


def before_fork() -> None:
    for owner in alive():
        owner.lock.acquire()
        held.append(owner.lock)


def after_fork() -> None:
    while held:
        held.pop().release()


def after_fork_in_child() -> None:
    after_fork()
    for owner in alive():
        if hasattr(owner, "in_child"):
            owner.in_child()


register_at_fork(before=before_fork, after_in_parent=after_fork, after_in_child=after_fork_in_child)
