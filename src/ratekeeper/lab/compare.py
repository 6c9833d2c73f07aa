"""Two rules files over the same log: who is newly refused, and who no longer is."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ratekeeper.lab.decide_log import LogDecider, Refusals
    from ratekeeper.lab.log_lines import Block

MOST = 100_000


@dataclass(frozen=True)
class Comparison:
    """Requests by what the rules before and the new ones say; clients and paths with the most changes first."""

    allowed_by_both: int
    refused_by_both: int
    newly_refused: int
    newly_allowed: int
    newly_refused_clients: tuple[tuple[str, int], ...]
    newly_allowed_clients: tuple[tuple[str, int], ...]
    newly_refused_paths: tuple[tuple[str, int], ...]
    newly_allowed_paths: tuple[tuple[str, int], ...]
    clients_newly_refused: int
    clients_newly_allowed: int

    def anonymised(self, numbers: Mapping[str, str]) -> Comparison:
        def hidden(pairs: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
            return tuple([(numbers.get(name, "client"), count) for name, count in pairs])

        return replace(
            self,
            newly_refused_clients=hidden(self.newly_refused_clients),
            newly_allowed_clients=hidden(self.newly_allowed_clients),
        )


class Difference:
    """Decides the same events by the rules in force before, and counts what changes."""

    def __init__(self, before: LogDecider) -> None:
        self.before = before
        self.requests = 0
        self.both = 0
        self.counts = (0, 0)
        self.clients: tuple[Counter[str], Counter[str]] = (Counter(), Counter())  # newly refused, newly allowed
        self.paths: tuple[Counter[str], Counter[str]] = (Counter(), Counter())

    def add(self, block: Block, refusals: Refusals, decider: LogDecider) -> None:
        new, old = set(refusals.places), set(self.before.decide(block).places)
        self.requests += len(block)
        self.both += len(new & old)
        changes = (new - old, old - new)
        self.counts = (self.counts[0] + len(changes[0]), self.counts[1] + len(changes[1]))
        for indexes, clients, paths in zip(changes, self.clients, self.paths, strict=True):
            for index in indexes:
                clients[block.clients[index]] += 1
                paths[decider.way(block.texts[index]).label] += 1
            for counter in (clients, paths):
                if len(counter) > MOST:
                    for name, _ in counter.most_common()[MOST // 2 :]:
                        del counter[name]

    def comparison(self, top: int) -> Comparison:
        refused, allowed = self.counts
        return Comparison(
            allowed_by_both=self.requests - self.both - refused - allowed,
            refused_by_both=self.both,
            newly_refused=refused,
            newly_allowed=allowed,
            newly_refused_clients=tuple(self.clients[0].most_common(top)),
            newly_allowed_clients=tuple(self.clients[1].most_common(top)),
            newly_refused_paths=tuple(self.paths[0].most_common(top)),
            newly_allowed_paths=tuple(self.paths[1].most_common(top)),
            clients_newly_refused=len(self.clients[0]),
            clients_newly_allowed=len(self.clients[1]),
        )
