"""The counters of all workers: each worker writes its own to one folder and reads those of the others.

A worker that replaces another starts from the counters of that one, so no counter ever falls.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from ratekeeper.service.counters import Counters, merged

if TYPE_CHECKING:
    from pathlib import Path

WRITE_EVERY = 0.5  # seconds


class WorkerCounters:
    """The counters of one service, read by worker ``number``."""

    def __init__(self, folder: Path | None, number: int, counters: Counters) -> None:
        self.folder = folder
        self.number = number
        self.counters = counters
        if folder is not None:
            previous = self.read(self.path(number))
            if previous is not None:
                counters.add(previous)
                counters.forget_headroom()

    def path(self, number: int) -> Path:
        assert self.folder is not None
        return self.folder / f"worker-{number}.json"

    def write(self) -> None:
        """Write this worker's counters for the others to read."""
        if self.folder is None:
            return
        temporary = self.folder / f"worker-{self.number}.{os.getpid()}"
        try:
            temporary.write_text(json.dumps(self.counters.as_json()))
            temporary.replace(self.path(self.number))
        except OSError:  # the disk is full: the others read older counters, and this worker goes on deciding
            temporary.unlink(missing_ok=True)

    def all(self) -> Counters:
        """The counters of all workers, added up: only to be read."""
        if self.folder is None:  # one worker: to copy thousands of labels each second would keep callers waiting
            return self.counters
        own_path = self.path(self.number)
        others = [self.read(path) for path in sorted(self.folder.glob("worker-*.json")) if path != own_path]
        return merged(self.counters, [content for content in others if content is not None])

    @staticmethod
    def read(path: Path) -> dict[str, Any] | None:
        try:
            content: dict[str, Any] = json.loads(path.read_text())
        except (OSError, ValueError):
            return None
        return content
