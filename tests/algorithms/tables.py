"""Reads a table of calls: each line an instant in milliseconds, a cost, and what must come of it."""

from __future__ import annotations

from ratekeeper import Limit


def follow(limit: str, table: str) -> None:
    """Columns: ms, cost, answer (yes, no or never), remaining, retry ms, reset ms, delay ms."""
    parsed = Limit.parse(limit)
    rule, state, seen = parsed.rule, parsed.rule.EMPTY, 0
    for line in table.strip().splitlines():
        words = line.split("#")[0].split()
        now, cost = round(float(words[0]) * 1000), int(words[1])
        state, allowed = rule.decide(state, now, parsed, cost)
        wait = 0 if allowed else rule.retry_after(state, now, parsed, cost)
        found = [
            "yes" if allowed else "never" if wait is None else "no",
            rule.remaining(state, now, parsed),
            0 if wait is None else wait / 1000,
            rule.reset_after(state, now, parsed) / 1000,
            rule.delay(state, now, parsed, cost) / 1000 if allowed else 0,
        ]
        expected = [words[2], int(words[3]), *(float(word) for word in words[4:7])]
        assert found == expected, f"{limit}: line {line!r}"
        seen += 1
    assert seen
