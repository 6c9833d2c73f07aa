"""Limits that callers name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratekeeper.limit import LimitSet

if TYPE_CHECKING:
    from ratekeeper.limit import Limit
    from ratekeeper.service.counters import RuleCounts
    from ratekeeper.stores.fallback import FallbackTable

    Name = tuple[str | None, Any, str | None]
    # What a body asks: a limit with a key (encoded, where the store is elsewhere) and a cost, or None with a request.
    Known = tuple["NamedLimit | None", Any, int]


class NamedLimit:
    """A limit under the name it is counted by, and where its answers are counted (``ruled``).

    ``table`` decides where the store cannot block; ``desk`` where it is elsewhere and away, if it is counted here then.
    """

    __slots__ = ("desk", "limit", "name", "ruled", "table")

    def __init__(
        self, name: str, limit: Limit | LimitSet, table: Any, desk: FallbackTable | None, ruled: RuleCounts
    ) -> None:
        self.name = name
        self.limit = limit
        self.table = table
        self.desk = desk
        self.ruled = ruled
