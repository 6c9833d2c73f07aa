"""Claim: eight threads cost at most 1.6 times one thread per decision, all on one key, native and pure.

aiolimiter is not here: it belongs to one event loop.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from bench.harness import conditions, floor, table
from bench.inprocess import F1, KEY, STORES, ours
from bench.peers import PEERS
from ratekeeper.algorithms import ALGORITHMS

CALLS = 40_000
ROUNDS = 5


def seconds_per_call(call: Callable[[str], object], threads: int) -> float:
    """Wall seconds of CALLS calls in all, spread over the threads."""
    ready = threading.Barrier(threads + 1)

    def run() -> None:
        ready.wait()
        for _ in range(CALLS // threads):
            call(KEY)

    workers = [threading.Thread(target=run) for _ in range(threads)]
    for worker in workers:
        worker.start()
    ready.wait()
    began = time.perf_counter()
    for worker in workers:
        worker.join()
    return (time.perf_counter() - began) / CALLS


def main() -> None:
    conditions()
    calls: dict[str, Callable[[str], object]] = {}
    for algorithm in ALGORITHMS:
        for engine in STORES:
            calls[f"ratekeeper {engine} {algorithm}"] = ours(algorithm, refused=False, engine=engine).check
        for peer, make in PEERS.items():
            call = make(algorithm, 10_000_000, 1)
            if call is not None:
                calls[f"{peer} {algorithm}"] = call
    calls[F1] = floor([KEY])
    best = {(name, threads): float("inf") for name in calls for threads in (1, 8)}
    for _ in range(ROUNDS):
        for name, threads in best:
            best[name, threads] = min(best[name, threads], seconds_per_call(calls[name], threads))
    rows = []
    for name in calls:
        one, eight = best[name, 1], best[name, 8]
        rows.append([name, f"{one * 1e9:.0f}", f"{eight * 1e9:.0f}", f"{eight / one:.2f}"])
    table("Threads on one key, ns per decision", ["", "1 thread", "8 threads", "8 : 1"], rows)


if __name__ == "__main__":
    main()
