"""The result of a replay as dataclasses: by rule, by client, by path."""

from __future__ import annotations

import csv
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratekeeper.lab.compare import Comparison
from ratekeeper.lab.dataframe import frame
from ratekeeper.lab.files import open_for_writing
from ratekeeper.lab.log_lines import BadLine
from ratekeeper.lab.suggest import Suggestion
from ratekeeper.lab.text import replay_as_text

if TYPE_CHECKING:
    from ratekeeper.lab.dataframe import Frame

# From which share of the clients to which, ranked by their busiest minute.
RANKS = ((0.0, 0.001, "busiest 0.1 %"), (0.001, 0.01, "next 0.9 %"), (0.01, 0.1, "next 9 %"), (0.1, 1.0, "other 90 %"))


@dataclass(frozen=True)
class RuleOutcome:
    """What one rule did."""

    rule: str
    limit: str
    mode: str
    asked: int  # requests that met the rule
    refused: int
    refused_in_shadow: int  # the rule would have refused them, but it is not enforced
    clients_refused: int
    first_refused_at: str | None
    last_refused_at: str | None
    longest_wait: float | None  # seconds; None: forever


@dataclass(frozen=True)
class ClientOutcome:
    """The requests and refusals of one client."""

    client: str
    requests: int
    busiest_minute: int  # requests in it
    refused: int
    rules: dict[str, int]  # refusals by rule
    first_refused_at: str | None
    last_refused_at: str | None
    longest_refused: float  # seconds of the longest stretch of refusals, including the wait that ends it


@dataclass(frozen=True)
class PathOutcome:
    """The requests and refusals on one path."""

    path: str
    requests: int
    refused: int


@dataclass(frozen=True)
class RankOutcome:
    """The clients of one rank by busiest minute."""

    rank: str
    clients: int
    clients_refused: int
    requests: int
    refused: int
    least_per_minute: int  # requests in the busiest minute of the calmest client of this rank


@dataclass(frozen=True)
class PlayedStretch:
    """The sample of the interactive report: requests that met one rule, in the order of time."""

    rule: str = ""
    limit: str = "100/minute"  # its first limit
    times: list[int] = field(default_factory=list)  # microseconds since 1970
    who: list[int] = field(default_factory=list)  # for each request the number of the counter that the rule uses
    cost: int = 1
    max_delay: int | None = None  # microseconds, of a leaky bucket


@dataclass(frozen=True)
class Replay:
    """What the rules would have done to the requests of a log."""

    logs: tuple[str, ...]
    rules: tuple[RuleOutcome, ...]
    lines: int
    bad_lines: int
    bad_shown: tuple[BadLine, ...]
    late_lines: int
    set_back: int  # how often the clock of a log was set back
    broken: tuple[str, ...]  # logs that could not be read to their end, and why
    zones: tuple[str, ...]  # for each log: written or ignored
    requests: int
    refused: int
    refused_in_shadow: int
    clients: int
    clients_refused: int
    first_at: str
    last_at: str
    seconds: float
    calm_clients: int  # all clients except the busiest 1 %
    calm_clients_refused: int
    ranks: tuple[RankOutcome, ...]
    top_clients: tuple[ClientOutcome, ...]
    top_refused: tuple[ClientOutcome, ...]
    top_paths: tuple[PathOutcome, ...]
    top_refused_paths: tuple[PathOutcome, ...]
    bin_seconds: float
    bins_at: str
    asked_in_bin: list[int] = field(repr=False)  # requests
    refused_in_bin: list[int] = field(repr=False)
    exact: bool = True  # False: there were too many clients or paths to count each of them
    suggestions: tuple[Suggestion, ...] = ()
    comparison: Comparison | None = None
    warnings: tuple[str, ...] = ()
    played: PlayedStretch = field(default_factory=lambda: PlayedStretch(), repr=False)
    everyone: list[ClientOutcome] = field(default_factory=list, repr=False)  # every client that was remembered

    @property
    def admitted_in_bin(self) -> list[int]:
        return [asked - refused for asked, refused in zip(self.asked_in_bin, self.refused_in_bin, strict=True)]

    def rows(self) -> list[dict[str, Any]]:
        """Return a dictionary for each remembered client, the most refused first."""
        return [asdict(client) | {"rules": " ".join(client.rules)} for client in self.everyone]

    def frame(self, library: str | None = None) -> Frame:
        """Return the clients as a pandas or polars DataFrame, whichever is installed."""
        return frame(self.rows(), library)

    def to_json(self) -> dict[str, Any]:
        """Return all figures as plain values, without the list of all clients."""
        values = asdict(self)
        del values["played"], values["everyone"]
        return values

    def write_csv(self, path: str | Path) -> None:
        """Write a row for each remembered client, the most refused first."""
        with open_for_writing(path) as file:
            names = list(ClientOutcome.__dataclass_fields__)
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            for row in self.rows():
                writer.writerow({name: escape_formula(row[name]) for name in names})

    def __str__(self) -> str:
        return replay_as_text(self)


def escape_formula(value: object) -> object:
    """Make text of a cell that a spreadsheet would run as a formula: clients choose what a log contains."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
