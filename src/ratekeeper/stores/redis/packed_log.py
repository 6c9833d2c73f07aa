"""Logs and leases as the server sends them, in place of the tuples that the Python rules make."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ratekeeper.limit import Limit, LimitSet, State


FOR_EVER = 1 << 53  # microseconds
MOST_LIVE = 1 << 21  # more instants than any limit has


class PackedLog:
    """A sliding log as the server keeps it.  Acts as the tuple of its instants, unpacked when they are read."""

    __slots__ = ("record",)

    def __init__(self, record: bytes) -> None:
        self.record = record

    def __len__(self) -> int:
        return len(self.record) // 7

    def __getitem__(self, index: Any) -> Any:
        if index.__class__ is slice:
            return self.instants()[index]
        at = index * 7 if index >= 0 else len(self.record) + index * 7
        if not 0 <= at < len(self.record):
            raise IndexError(index)
        return int.from_bytes(self.record[at : at + 7], "big")

    def instants(self) -> tuple[int, ...]:
        record = self.record
        return tuple([int.from_bytes(record[at : at + 7], "big") for at in range(0, len(record), 7)])


class LogSummary:
    """What the server sends of a long log: how many instants count, the oldest, the one that blocks, the newest.

    Stands for the tuple of its live instants until the oldest has left the window: until then every place that the
    rules read is one of these.
    """

    SIZE = 24
    __slots__ = ("blocking", "live", "newest", "oldest")

    def __init__(self, record: bytes) -> None:
        self.live = int.from_bytes(record[:3], "big")
        self.oldest = int.from_bytes(record[3:10], "big")
        self.blocking = int.from_bytes(record[10:17], "big")
        self.newest = int.from_bytes(record[17:], "big")
        if not (self.oldest <= self.blocking <= self.newest and self.live <= MOST_LIVE):
            raise ValueError("a summary that no log has")

    def __len__(self) -> int:
        return self.live

    def __getitem__(self, index: Any) -> Any:
        if index.__class__ is slice:
            return ()
        if index >= self.live:
            raise IndexError(index)  # else a loop over a log would never end
        # A search for the first instant that counts finds that all do; a wait reads the one that blocks.
        return self.newest if index == -1 else self.blocking


class PackedLeases:
    """Leases as the server keeps them: acts as the three tuples of the rule, but has no notes."""

    __slots__ = ("ends", "ids")

    def __init__(self, record: bytes) -> None:
        many, rest = divmod(len(record), 15)
        if rest:
            raise ValueError(f"a record of {len(record)} bytes")
        self.ends = PackedLog(record[: many * 7])
        self.ids = record[many * 7 :]

    def __getitem__(self, index: int) -> Any:
        return self.ends if index == 0 else self.parts()[index]

    def parts(self) -> tuple[Any, ...]:
        ids = [int.from_bytes(self.ids[at : at + 8], "big") for at in range(0, len(self.ids), 8)]
        return self.ends.instants(), tuple(ids), ()


def plain(state: State) -> State:
    """A state as the Python rules make it: tuples and whole numbers only."""
    if isinstance(state, PackedLeases):
        return state.parts()
    if isinstance(state, PackedLog):
        return state.instants()
    return tuple([plain(part) for part in state]) if state.__class__ is tuple else state


def is_partial(state: State) -> bool:
    """Whether a state has only what the wait of one cost needs."""
    parts = state if state.__class__ is tuple else (state,)
    return any(part.__class__ is LogSummary for part in parts)


def whole_for(state: State, now: int, limit: Limit | LimitSet) -> int:
    """Microseconds for which a partial state tells the same as the whole one: until an instant leaves a window."""
    parts = state if state.__class__ is tuple else (state,)
    return min(
        [
            part.oldest + its_limit.micros - now
            for part, its_limit in zip(parts, limit.parts, strict=True)
            if part.__class__ is LogSummary and part.live
        ],
        default=FOR_EVER,
    )
