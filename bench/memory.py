"""Claim: a key takes at most 36 bytes in the native table (a log of five 90), at most 160 in pure Python.

Resident memory of a fresh process for each, with a million keys (peers: fewer).  The text of the keys, which is short,
is included where it is kept; native tables do not keep it.
"""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import warnings

from bench.harness import conditions, record, resident, table
from bench.peers import AWAITED, PEERS, Call
from ratekeeper import Limiter
from ratekeeper.algorithms import ALGORITHMS

KEYS = 1_000_000
FEWER = 20_000  # for the peers, some of which take minutes for a million
OURS = ["native", "pure"]


def call_of(kind: str, algorithm: str, keys: int) -> Call | None:
    if kind in OURS:
        from bench.inprocess import STORES

        return Limiter("5/day", algorithm=algorithm, store=STORES[kind](max_keys=keys)).check  # type: ignore[call-arg]
    return (PEERS | AWAITED)[kind](algorithm, 5, 86_400)


async def measure(kind: str, algorithm: str) -> None:
    """Print the bytes a key of this process: async, as one of the peers only works in a loop."""
    warnings.simplefilter("ignore")
    keys = KEYS if kind in OURS else FEWER
    call = call_of(kind, algorithm, keys)
    if call is None:
        print("nan")
        return
    call("warm up")
    gc.collect()
    before = resident()
    for number in range(keys):
        key = f"user:{number}"
        for _ in range(5 if algorithm == "sliding_log" else 1):
            call(key)
    gc.collect()
    print((resident() - before) / keys, flush=True)
    os._exit(0)  # without waiting for what a peer left running


def bytes_per_key(kind: str, algorithm: str) -> float:
    command = [sys.executable, "-m", "bench.memory", kind, algorithm]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    conditions()
    kinds = [*OURS, *PEERS, *AWAITED]
    rows = []
    for algorithm in ALGORITHMS:
        found = [bytes_per_key(kind, algorithm) for kind in kinds]
        own = {kind: [number] for kind, number in zip(kinds, found, strict=True) if number == number}
        record(algorithm, "bytes a key", own)
        rows.append([algorithm, *(f"{number:.0f}" if number == number else "" for number in found)])
    table(f"Bytes a key at {KEYS:,} keys (peers {FEWER:,}); a log has 5 entries", ["", *kinds], rows)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(measure(*sys.argv[1:]))
    else:
        main()
