"""Clocks for the walks of the twins: they go back and forth over edges, by a little and by many periods."""

from __future__ import annotations

from tests.laws.walk import edge_after


def next_instant(chance, limit, now):
    """An instant after ``now`` in the walk: one in three lies before it on the clock or next to an edge."""
    part = chance.choice(limit.parts)
    micros, kind = part.micros, chance.random()
    if kind < 0.2:
        step = 0
    elif kind < 0.55:
        step = chance.randrange(micros // 5 + 2)
    elif kind < 0.65:
        step = chance.randrange(3 * micros)
    elif kind < 0.85:
        here = chance.choice([now, now, now - micros, now - 2 * micros])
        edge = edge_after(chance, part, here) if part.micros < 2**60 and here >= 0 else now
        step = edge + chance.choice([-2_000, -1_000, -1, -1, 0, 0, 1, 1_000]) - now
    elif kind < 0.97:
        step = -chance.randrange(1, chance.choice([3, 2_000, micros + 2, 2 * micros + 2]))
    else:
        step = -chance.randrange(1, 30 * micros)
    return max(0, now + step)
