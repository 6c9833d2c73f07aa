"""Violations as structured log lines that cannot flood the log.

Each line is ``ratekeeper <what> key=value ...``, with the same facts in ``record.ratekeeper`` for JSON formatters.
Logged are refusals, violations that passed by grace or in shadow, and spikes: a client that is refused more often than
``spike``.  Lines above ``limit`` are dropped and their number is told by the next one.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ratekeeper.limiter import Limiter

if TYPE_CHECKING:
    from ratekeeper.clock import Clock
    from ratekeeper.sinks.event import Event

__all__ = ["LoggingSink"]
LONGEST = 200


class LoggingSink:
    """Log what was refused, with an anonymised client."""

    def __init__(
        self,
        logger: logging.Logger | None = None,
        *,
        limit: str = "10/second burst 50",
        spike: str = "100/minute",
        clock: Clock | None = None,
    ) -> None:
        self.logger = logger or logging.getLogger("ratekeeper")
        self.lines = Limiter(limit, clock=clock, name="log lines")
        self.spikes = Limiter(spike, clock=clock, name="refusals of one client", max_keys=10_000)
        self.told = Limiter("1/minute", clock=clock, name="spikes told", max_keys=10_000)
        self.dropped = 0

    def __call__(self, event: Event) -> None:
        if event.allowed and not event.shadow and not event.graced:
            return
        if not event.allowed:
            self.line(logging.WARNING, event.result, event, rule=event.rule)
            if not self.spikes.check(event.client) and self.told.check(event.client):
                self.line(logging.ERROR, "spike", event, rule=event.rule, above=str(self.spikes.limits))
        for rule in event.graced:
            self.line(logging.WARNING, "graced", event, rule=rule)
        for rule in event.shadow:
            self.line(logging.INFO, "shadow", event, rule=rule)

    def line(self, level: int, what: str, event: Event, **more: object) -> None:
        if not self.logger.isEnabledFor(level):
            return
        if not self.lines.check("lines"):
            self.dropped += 1
            return
        algorithms = {one.rule: one.algorithm for one in event.standings}
        facts: dict[str, object] = {"event": what, **more, "client": event.client, "method": event.method,
                                    "endpoint": event.endpoint}  # fmt: skip
        if more.get("rule") in algorithms:
            facts["algorithm"] = algorithms[str(more["rule"])]
        if event.retry_after:
            facts["retry_after"] = round(event.retry_after, 6)
        if self.dropped:
            facts["dropped"], self.dropped = self.dropped, 0
        text = " ".join([f"{name}={plain(value)}" for name, value in facts.items() if name != "event"])
        self.logger.log(level, "ratekeeper %s %s", what, text, extra={"ratekeeper": facts})


def plain(value: object) -> str:
    """One word, or a quoted text without control characters: a log line stays one line."""
    text = str(value)[:LONGEST]
    if text.isascii() and text.isprintable() and not set(text) & set(' "=\\'):
        return text
    return '"' + text.encode("unicode_escape").decode("ascii").replace('"', '\\"') + '"'
