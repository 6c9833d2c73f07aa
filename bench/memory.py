"""Claim: a key takes at most 36 bytes in the native table (a log of five 90), at most 160 in pure Python.

Resident memory of a fresh process for each, with a million keys (peers: fewer).  The text of the keys is included where
it is kept, which native tables do not.
"""

from __future__ import annotations

import subprocess
import sys

from bench.harness import conditions, table
from ratekeeper.algorithms import ALGORITHMS

KEYS = 1_000_000
FEWER = 100_000  # for the peers, which take minutes for a million
SCRIPT = """
import gc, os, sys, warnings
warnings.simplefilter("ignore")
kind, algorithm, keys = sys.argv[1], sys.argv[2], {keys}

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def calls():
    if kind in ("native", "pure"):
        from ratekeeper import Limiter, MemoryStore
        if kind == "pure":
            from ratekeeper.stores.memory import MemoryStore
        store = MemoryStore(max_keys=keys)
        return Limiter("5/day", algorithm=algorithm, store=store).check
    from bench.peers import PEERS
    return PEERS[kind](algorithm, 5, 86_400)

check = calls()
if check is None:
    print("nan")
    sys.exit()
check("warm up")
gc.collect()
before = resident()
for number in range(keys):
    key = f"user:{{number}}"
    for _ in range(5 if algorithm == "sliding_log" else 1):
        check(key)
gc.collect()
print((resident() - before) / keys, flush=True)
os._exit(0)
"""


def bytes_per_key(kind: str, algorithm: str) -> float:
    script = SCRIPT.format(keys=KEYS if kind in ("native", "pure") else FEWER)
    done = subprocess.run([sys.executable, "-c", script, kind, algorithm], capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    conditions()
    kinds = ["native", "pure", "limits", "throttled-py", "token-bucket"]
    rows = []
    for algorithm in ALGORITHMS:
        found = [bytes_per_key(kind, algorithm) for kind in kinds]
        rows.append([algorithm, *(f"{number:.0f}" if number == number else "" for number in found)])
    table(f"Bytes a key at {KEYS:,} keys (peers {FEWER:,}); a log has 5 entries", ["", *kinds], rows)


if __name__ == "__main__":
    main()
