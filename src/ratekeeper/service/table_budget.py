"""How much memory the limits that callers name may take in all, decided before any of it is reserved.

A table is bounded by the keys that it holds, so its size is known before it is made.  Each new table gets a sixteenth
of what is left beside small tables for all limits that callers may still name: the first limits have room for many
keys, a caller that names hundreds gets smaller and smaller ones, and the sum never exceeds the budget.  A limit whose
smallest table does not fit is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratekeeper.errors import InvalidInput, shown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ratekeeper.limit import Limit, LimitSet

    Place = tuple[str, str]  # a space, and the layout of its states

SHARE = 16
LEAST_KEYS = 256
SAMPLE_KEYS = 1024  # of the table that is measured to find the bytes of a key
KEY_BYTES = 512  # of a key in the pure Python store
INSTANT_BYTES = 40  # of each instant in a log there
LOGS = ("sliding_log", "concurrency")


class NoRoom(InvalidInput):
    """A caller asks for more than the service may keep."""


class TableBudget:
    """The memory of the tables of callers."""

    def __init__(self, most_bytes: int, longest_log: int, most_limits: int = 1) -> None:
        self.most_bytes = most_bytes
        self.most_limits = most_limits  # that callers may name
        self.longest_log = longest_log
        self.reserved: dict[Place, int] = {}  # bytes of each table
        self.total = 0

    def expect_short_log(self, limit: Limit | LimitSet) -> None:
        """Raise if a limit keeps an instant for each of many calls: a key of it would take megabytes."""
        for part in limit.parts:
            if part.algorithm in LOGS and part.count > self.longest_log:
                raise NoRoom(
                    f"limit: expected a {part.algorithm} of at most {self.longest_log:,}, got {shown(str(part))}. "
                    "Use sliding_window, or put the limit into the rules file."
                )

    def reserve(self, store: Any, space: str, limit: Limit | LimitSet) -> int | None:
        """The most keys that the table of ``limit`` may hold; None if the store keeps its states elsewhere."""
        self.expect_short_log(limit)
        if not hasattr(store, "max_keys"):
            return None
        place = space, limit.layout
        if place in self.reserved:
            return LEAST_KEYS  # the table is there already, and keeps its size
        each = bytes_of_key(limit)
        room = self.most_bytes - self.total
        others = max(0, self.most_limits - len(self.reserved) - 1) * LEAST_KEYS * each  # room for small tables of all
        keys = min(store.max_keys, max(LEAST_KEYS, (room - others) // SHARE // each))
        if keys * each > room:
            raise NoRoom(
                f"limit: expected limits whose tables take at most {self.most_bytes:,} bytes in all, got "
                f"{shown(str(limit))}, which takes {keys * each:,} more, and {self.total:,} are taken. "
                "Raise --table-memory, or name fewer limits."
            )
        self.reserved[place] = keys * each
        self.total += keys * each
        return int(keys)

    def clear(self) -> None:
        self.reserved.clear()
        self.total = 0

    def release(self, space: str, limit: Limit | LimitSet) -> None:
        self.total -= self.reserved.pop((space, limit.layout), 0)


def share_of_rules(places: Iterable[tuple[str, Limit | LimitSet]], most_bytes: int) -> int:
    """The bytes that each table of the rules may take in shared memory, so that all fit into ``most_bytes``.

    Raises InvalidInput if not even the smallest tables fit.  A fifth is left for rules that a reload adds.
    """
    from ratekeeper.stores.shared_files import LEAST_KEYS as FEWEST
    from ratekeeper.stores.shared_files import MOST_TABLE_BYTES, table_bytes

    smallest = {
        (space, limit.layout): table_bytes(limit, FEWEST) for space, limit in places if not limit.parts[0].is_unlimited
    }
    needed = sum(smallest.values())
    if needed > most_bytes:
        megabyte = 1_048_576
        raise InvalidInput(
            f"--rule-memory: expected at least {-(-needed // megabyte):,} MB for the {len(smallest):,} limits of the "
            f"rules, got {most_bytes // megabyte:,}. Raise it, use fewer rules or shorter logs, or a Redis store."
        )
    spare = max(0, most_bytes * 4 // 5 - needed)
    return min(MOST_TABLE_BYTES, spare // len(smallest) + min(smallest.values())) if smallest else MOST_TABLE_BYTES


def bytes_of_key(limit: Limit | LimitSet) -> int:
    """The most that one key of ``limit`` takes in a table."""
    parts: Any = limit.parts
    if parts[0].is_unlimited:
        return 1
    try:
        from ratekeeper.native.core import shared_size
    except ImportError:
        return KEY_BYTES + sum([INSTANT_BYTES * part.count for part in parts if part.algorithm in LOGS])
    return -(-shared_size(limit, SAMPLE_KEYS) // SAMPLE_KEYS)
