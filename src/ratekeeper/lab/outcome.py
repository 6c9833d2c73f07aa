"""What a replay found: per rule, per client, per path, as dataclasses."""

from __future__ import annotations

import csv
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratekeeper.lab.compare import Comparison
from ratekeeper.lab.dataframe import frame
from ratekeeper.lab.files import writing
from ratekeeper.lab.log_lines import BadLine
from ratekeeper.lab.suggest import Suggestion

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ratekeeper.lab.dataframe import Frame

    Progress = Callable[[str, int, int], object]
    Rules = str | Path | Mapping[str, Any]

RANKS = ((0.0, 0.001, "busiest 0.1 %"), (0.001, 0.01, "next 0.9 %"), (0.01, 0.1, "next 9 %"), (0.1, 1.0, "other 90 %"))


@dataclass(frozen=True)
class RuleOutcome:
    """What one rule did."""

    rule: str
    limit: str
    mode: str
    asked: int
    refused: int
    refused_in_shadow: int  # would have been, were the rule enforced
    clients_refused: int
    first_refused_at: str | None
    last_refused_at: str | None
    longest_wait: float | None  # seconds; None if time does not help


@dataclass(frozen=True)
class ClientOutcome:
    """What one client did, and what was done to it."""

    client: str
    requests: int
    busiest_minute: int
    refused: int
    rules: dict[str, int]
    first_refused_at: str | None
    last_refused_at: str | None
    longest_refused: float  # seconds of the longest stretch of refusals, with the wait that ends it


@dataclass(frozen=True)
class PathOutcome:
    """What happened on one path."""

    path: str
    requests: int
    refused: int


@dataclass(frozen=True)
class RankOutcome:
    """Clients of a rank, by their busiest minute."""

    rank: str
    clients: int
    clients_refused: int
    requests: int
    refused: int
    least_per_minute: int  # in the busiest minute of the calmest of them


@dataclass(frozen=True)
class Replay:
    """What rules would have done to a log."""

    logs: tuple[str, ...]
    rules: tuple[RuleOutcome, ...]
    lines: int
    bad_lines: int
    bad_shown: tuple[BadLine, ...]
    late_lines: int
    set_back: int  # how often the clock of a log was set back
    broken: tuple[str, ...]  # logs that could not be read to their end, and why
    zones: tuple[str, ...]  # of each log: written or ignored
    requests: int
    refused: int
    refused_in_shadow: int
    clients: int
    clients_refused: int
    first_at: str
    last_at: str
    seconds: float
    calm_clients: int  # all but the busiest 1 %
    calm_clients_refused: int
    ranks: tuple[RankOutcome, ...]
    top_clients: tuple[ClientOutcome, ...]
    top_refused: tuple[ClientOutcome, ...]
    top_paths: tuple[PathOutcome, ...]
    top_refused_paths: tuple[PathOutcome, ...]
    bin_seconds: float
    bins_at: str
    asked_in_bin: list[int] = field(repr=False)
    refused_in_bin: list[int] = field(repr=False)
    exact: bool = True  # False: there were too many clients or paths to remember, and the calm ones were folded
    suggestions: tuple[Suggestion, ...] = ()
    comparison: Comparison | None = None
    warnings: tuple[str, ...] = ()
    played: tuple[list[int], list[int], list[str]] = field(default=([], [], []), repr=False)
    everyone: list[ClientOutcome] = field(default_factory=list, repr=False)

    def rows(self) -> list[dict[str, Any]]:
        """A dictionary for each client that was remembered, the most refused first."""
        return [asdict(client) | {"rules": " ".join(client.rules)} for client in self.everyone]

    def frame(self, library: str | None = None) -> Frame:
        """The clients as a pandas or polars DataFrame, whichever is installed."""
        return frame(self.rows(), library)

    def to_json(self) -> dict[str, Any]:
        """All but the clients one by one, as plain values."""
        found = asdict(self)
        del found["played"], found["everyone"]
        return found

    def write_csv(self, path: str | Path) -> None:
        """A row for each client that was remembered, the most refused first."""
        with writing(path) as file:
            names = list(ClientOutcome.__dataclass_fields__)
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            for row in self.rows():
                writer.writerow({name: plain_cell(row[name]) for name in names})

    def __str__(self) -> str:
        from ratekeeper.lab.replay_text import replay_as_text

        return replay_as_text(self)


def plain_cell(value: object) -> object:
    """What a spreadsheet would take for a formula becomes text: clients choose what stands in a log."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
