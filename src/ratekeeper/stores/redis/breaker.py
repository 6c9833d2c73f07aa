"""Circuit breaker: when to stop asking a store that does not answer, and when to try it again.  No clock, no I/O.

Closed, every call may ask.  One failure opens it.  Then no call waits for the store, until a probe succeeds: one at a
time, at jittered intervals from ``SOONEST`` to ``LATEST``.

A probe has less time than a decision (``HASTE``), so that a store that is too slow does not come and go.  If it fails
soon after a probe succeeded, the next probe must succeed several times in a row, twice as often each time.
"""

from __future__ import annotations

from random import random

SOONEST = 0.05  # seconds
LATEST = 1.0
HASTE = 0.8  # of the deadline
STABLE_FOR = 10.0  # seconds after which a success was none by chance
MOST_PROOFS = 16


class Breaker:
    """Open or closed, for one server.  Instants are seconds on any one clock."""

    __slots__ = ("closed_at", "is_open", "pause", "probe_at", "proofs", "why")

    def __init__(self) -> None:
        self.is_open = False
        self.pause = 0.0
        self.probe_at = 0.0
        self.why = ""
        self.closed_at = float("-inf")
        self.proofs = 1  # successes in a row that a probe needs

    def trip(self, now: float, why: str) -> bool:
        """Note a failure; says whether that changed the state."""
        changed = not self.is_open
        if changed and now > self.probe_at + LATEST:  # the store had recovered; else the last probe was mistaken
            self.pause = 0.0
        if changed:
            self.proofs = min(MOST_PROOFS, self.proofs * 2) if now < self.closed_at + STABLE_FOR else 1
        self.is_open = True
        self.why = why
        self.pause = min(LATEST, max(SOONEST, self.pause * 2))
        self.probe_at = now + self.pause * (0.5 + random() / 2)  # jitter, so that a fleet does not return at once
        return changed

    def close(self, now: float) -> bool:
        """Note that the store answers; says whether that changed the state."""
        changed = self.is_open
        if changed:
            self.closed_at = now
        self.is_open = False
        return changed

    def quick_enough(self, deadline: float) -> float:
        """How many seconds a round trip may take for the store to be used."""
        return deadline * HASTE if self.is_open else deadline

    def is_due(self, now: float) -> bool:
        """Whether a probe may be sent now.  If so, the next one is due when this one must have failed."""
        if now < self.probe_at:
            return False
        self.probe_at = now + LATEST
        return True

    def is_waiting(self, now: float) -> bool:
        """Whether no call may ask, not even as a probe."""
        return self.is_open and now < self.probe_at
