"""Claim: one decision in process, hot key, in multiples of ``d[key] += 1`` and beside the peers.

Pure Python: at most 13 times that floor (sliding window and log 18), allowed or refused.
"""

from __future__ import annotations

from bench.harness import Contestant, conditions, floor, race, table
from bench.peers import PEERS
from ratekeeper import Limiter, MemoryStore
from ratekeeper.algorithms import ALGORITHMS

CALLS = 20_000
KEY = "user:42"


def ours(algorithm: str, refused: bool) -> Limiter:
    """A limit that is never reached, or one that always is; a log must also be short to compare decisions."""
    if refused:
        limiter = Limiter("1/day", algorithm=algorithm, store=MemoryStore())
        limiter.check(KEY)
        return limiter
    text = "100 per 100 microseconds" if algorithm == "sliding_log" else "1000000000/second"
    return Limiter(text, algorithm=algorithm, store=MemoryStore())


def main() -> None:
    conditions()
    for refused in (False, True):
        contestants = [Contestant("F1: d[key] += 1", floor([KEY]))]
        for algorithm in ALGORITHMS:
            contestants.append(Contestant(f"ratekeeper {algorithm}", ours(algorithm, refused).check))
            for peer, make in PEERS.items():
                call = make(algorithm, 1 if refused else 10_000_000, 86_400 if refused else 1)
                if call is not None:
                    contestants.append(Contestant(f"{peer} {algorithm}", call))
        best = race(contestants, [KEY] * CALLS)
        base = best["F1: d[key] += 1"]
        rows = []
        for contestant in contestants:
            own = best[contestant.name]
            algorithm = contestant.name.split(" ")[-1]
            times = f"{own / best['ratekeeper ' + algorithm]:.1f}" if algorithm in ALGORITHMS else ""
            rows.append([contestant.name, f"{own * 1e9:.0f}", f"{own / base:.2f}", times])
        title = "One decision, hot key, refused" if refused else "One decision, hot key, allowed"
        table(title, ["", "ns", "x F1", "x ratekeeper"], rows)


if __name__ == "__main__":
    main()
