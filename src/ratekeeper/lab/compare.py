"""Compare two rules files on the same log: which requests are newly refused, and which are newly allowed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ratekeeper.lab.decide_log import LogDecider, Refusals
    from ratekeeper.lab.log_lines import Block

    NameCounts = tuple[tuple[str, int], ...]

MOST_NAMES = 100_000  # clients or paths that are counted; beyond that the rarer half is dropped


@dataclass(frozen=True)
class Comparison:
    """How many requests the old and the new rules decide differently; the most affected clients and paths first."""

    allowed_by_both: int
    refused_by_both: int
    newly_refused: int
    newly_allowed: int
    newly_refused_clients: NameCounts
    newly_allowed_clients: NameCounts
    newly_refused_paths: NameCounts
    newly_allowed_paths: NameCounts
    clients_newly_refused: int
    clients_newly_allowed: int

    def anonymised(self, numbers: Mapping[str, str]) -> Comparison:
        def renamed(clients: NameCounts) -> NameCounts:
            return tuple([(numbers.get(name, "client"), count) for name, count in clients])

        return replace(
            self,
            newly_refused_clients=renamed(self.newly_refused_clients),
            newly_allowed_clients=renamed(self.newly_allowed_clients),
        )


class ComparisonCounts:
    """Decides the events of a log with the old rules as well, and counts the differences."""

    def __init__(self, old_rules: LogDecider) -> None:
        self.old_rules = old_rules
        self.requests = 0
        self.refused_by_both = 0
        # In each pair: newly refused, newly allowed.
        self.requests_changed = [0, 0]
        self.clients: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        self.paths: tuple[Counter[str], Counter[str]] = (Counter(), Counter())

    def add(self, block: Block, names: list[str], refusals: Refusals, new_rules: LogDecider) -> None:
        """Count a block, whose clients have these names; ``refusals`` are those of the new rules."""
        new, old = set(refusals.places), set(self.old_rules.decide(block).places)
        self.requests += len(block)
        self.refused_by_both += len(new & old)
        for kind, changed in enumerate((new - old, old - new)):
            clients, paths = self.clients[kind], self.paths[kind]
            self.requests_changed[kind] += len(changed)
            for place in changed:
                clients[names[place]] += 1
                paths[new_rules.request_line(block.request_lines[place]).label] += 1
            for counter in (clients, paths):
                if len(counter) > MOST_NAMES:
                    for name, _ in counter.most_common()[MOST_NAMES // 2 :]:
                        del counter[name]

    def comparison(self, top: int) -> Comparison:
        refused, allowed = self.requests_changed
        return Comparison(
            allowed_by_both=self.requests - self.refused_by_both - refused - allowed,
            refused_by_both=self.refused_by_both,
            newly_refused=refused,
            newly_allowed=allowed,
            newly_refused_clients=tuple(self.clients[0].most_common(top)),
            newly_allowed_clients=tuple(self.clients[1].most_common(top)),
            newly_refused_paths=tuple(self.paths[0].most_common(top)),
            newly_allowed_paths=tuple(self.paths[1].most_common(top)),
            clients_newly_refused=len(self.clients[0]),
            clients_newly_allowed=len(self.clients[1]),
        )
