"""How workers know of each other: each writes its tally into one folder, and reads those of the others.

A worker that was replaced goes on with the numbers of the one before: counters never fall.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from ratekeeper.service.counters import Counters, joined

if TYPE_CHECKING:
    from pathlib import Path

EVERY = 0.5  # seconds between two writings


class WorkerCounters:
    """The workers of one service, seen from worker ``number``."""

    def __init__(self, folder: Path | None, number: int, tally: Counters) -> None:
        self.folder = folder
        self.number = number
        self.tally = tally
        if folder is not None:
            before = self.read(self.path(number))
            if before is not None:
                tally.add(before)
                tally.forget_headroom()

    def path(self, number: int) -> Path:
        assert self.folder is not None
        return self.folder / f"worker-{number}.json"

    def write(self) -> None:
        """Let the others know."""
        if self.folder is None:
            return
        beside = self.folder / f"worker-{self.number}.{os.getpid()}"
        try:
            beside.write_text(json.dumps(self.tally.written()))
            beside.replace(self.path(self.number))
        except OSError:  # no space: the others see older numbers, and decisions go on
            beside.unlink(missing_ok=True)

    def all(self) -> Counters:
        """What all of us have decided."""
        if self.folder is None:
            return joined(self.tally, ())
        own = self.path(self.number)
        others = [self.read(path) for path in sorted(self.folder.glob("worker-*.json")) if path != own]
        return joined(self.tally, [found for found in others if found is not None])

    @staticmethod
    def read(path: Path) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads(path.read_text())
        except (OSError, ValueError):
            return None
        return found
