"""The busiest of any number of sources, in bounded memory."""

from __future__ import annotations

MOST_SOURCES = 512


class TopSources:
    """Counts events by source, in bounded memory: the frequent-items summary of Misra and Gries.

    A source that sends more than one in ``MOST_SOURCES`` of the events is never missed.
    """

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.total = 0

    def add(self, source: str, by: int = 1) -> int:
        """Count ``by`` events of ``source``; returns its count, which is never too high."""
        self.total += by
        counts = self.counts
        if source in counts:
            counts[source] += by
        elif len(counts) < MOST_SOURCES:
            counts[source] = by
        else:
            least = min(by, *counts.values())
            self.counts = {name: count - least for name, count in counts.items() if count > least}
            if by > least:
                self.counts[source] = by - least
        return self.counts.get(source, 0)

    def top(self) -> tuple[str, float]:
        """The busiest source, and the least share of all events that it can have sent."""
        if not self.counts:
            return "", 0.0
        name = max(self.counts, key=self.counts.__getitem__)
        return name, self.counts[name] / self.total
