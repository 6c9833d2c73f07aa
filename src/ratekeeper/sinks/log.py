"""Refusals as structured log lines that cannot flood the log.

Each line is ``ratekeeper <event> key=value ...``, with the same facts in ``record.ratekeeper`` for JSON formatters.
The sink logs refusals, violations that passed by grace or in shadow mode, and spikes: a client that is refused more
often than ``spike``.  Lines above ``limit`` are dropped, and the next line says how many.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ratekeeper.limiter import Limiter

if TYPE_CHECKING:
    from ratekeeper.clock import Clock
    from ratekeeper.sinks.event import Event

__all__ = ["LoggingSink"]

LONGEST_VALUE = 200


class LoggingSink:
    """Log refusals, with anonymised clients: at most ``limit`` lines, and a spike above ``spike`` once a minute."""

    def __init__(
        self,
        logger: logging.Logger | None = None,
        *,
        limit: str = "10/second burst 50",
        spike: str = "100/minute",
        clock: Clock | None = None,
    ) -> None:
        self._logger = logger or logging.getLogger("ratekeeper")
        self._lines = Limiter(limit, clock=clock, name="log lines")
        self._refusals = Limiter(spike, clock=clock, name="refusals of one client", max_keys=10_000)
        self._spikes = Limiter("1/minute", clock=clock, name="spikes of one client", max_keys=10_000)
        self._dropped = 0

    def __call__(self, event: Event) -> None:
        if event.allowed and not event.shadow and not event.graced:
            return
        if not event.allowed:
            self._log(logging.WARNING, event.result, event)
            client = event.client
            if not self._refusals.check(client) and self._spikes.check(client):
                self._log(logging.ERROR, "spike", event, above=str(self._refusals.limits))
        for rule in event.graced:
            self._log(logging.WARNING, "graced", event, rule=rule)
        for rule in event.shadow:
            self._log(logging.INFO, "shadow", event, rule=rule)

    def _log(self, level: int, name: str, event: Event, **more: object) -> None:
        if not self._logger.isEnabledFor(level):
            return
        if not self._lines.check("lines"):
            self._dropped += 1
            return
        more = {"rule": event.rule, **more} if "rule" not in more else more
        algorithms = {limit.rule: limit.algorithm for limit in event.limits}
        facts: dict[str, object] = {"event": name, **more, "client": event.client, "method": event.method,
                                    "endpoint": event.endpoint}  # fmt: skip
        if more.get("rule") in algorithms:
            facts["algorithm"] = algorithms[str(more["rule"])]
        if event.retry_after:
            facts["retry_after"] = round(event.retry_after, 6)
        if self._dropped:
            facts["dropped"], self._dropped = self._dropped, 0
        text = " ".join([f"{key}={quoted(value)}" for key, value in facts.items() if key != "event"])
        self._logger.log(level, "ratekeeper %s %s", name, text, extra={"ratekeeper": facts})


def quoted(value: object) -> str:
    """One word as it is; any other text in quotes, without control characters: a log line stays one line."""
    text = str(value)[:LONGEST_VALUE]
    if text.isascii() and text.isprintable() and not set(text) & set(' "=\\'):
        return text
    return '"' + text.encode("unicode_escape").decode("ascii").replace('"', '\\"') + '"'
