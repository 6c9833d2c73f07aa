"""Mistakes of our own that a call runs into: counted by listener, and logged with a traceback once for each place.

A caller learns only that the service failed.  A caller that finds such a mistake can repeat it as often as it likes, so
the log tells each once, and ``ratekeeper_faults_total`` tells how often.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Place = tuple[type[BaseException], str, int]

log = logging.getLogger("ratekeeper")
MOST_PLACES = 256


class Faults:
    """The mistakes that one worker has met."""

    def __init__(self, counts: dict[str, int]) -> None:
        self.counts = counts  # by listener
        self.logged: set[Place] = set()

    def note(self, listener: str, error: BaseException) -> None:
        self.counts[listener] = self.counts.get(listener, 0) + 1
        place = place_of(error)
        if place not in self.logged and len(self.logged) < MOST_PLACES:
            self.logged.add(place)
            log.error(
                "%s: a call failed because of a mistake in ratekeeper. Please report it. "
                "Further ones from this place are not logged but counted in ratekeeper_faults_total.",
                listener, exc_info=error,
            )  # fmt: skip


def place_of(error: BaseException) -> Place:
    """Where an error was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return type(error), "", 0
    return type(error), trace.tb_frame.f_code.co_filename, trace.tb_lineno
