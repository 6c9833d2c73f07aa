"""Claim: one decision in process, in multiples of ``d[key] += 1`` and beside the peers.

Native, hot key, allowed or refused, every algorithm: at most 0.9 times that floor, the slowest at most 1.2 times the
fastest, 40 times faster than limits and 50 than throttled-py.  A million keys at random: at most 0.7 times the floor on
a dictionary of that size (log 1.1).  Pure Python: at most 13 times (sliding window and log 18).  Reading an answer adds
what reading an attribute of any object of C does, ``AsyncLimiter.check`` one coroutine, the import at most 5 ms.
"""

from __future__ import annotations

import asyncio
import datetime
import importlib.util
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable

from bench.harness import Contestant, conditions, floor, race, record, table
from bench.peers import PEERS
from ratekeeper import AsyncLimiter, Limiter, MemoryStore
from ratekeeper.algorithms import ALGORITHMS
from ratekeeper.stores.memory import MemoryStore as PureStore

CALLS = 4_000
ROUNDS = 30
KEY = "user:42"
MANY = 1_000_000
F1 = "F1: d[key] += 1"
STORES: dict[str, Callable[[], object]] = {"native": MemoryStore, "pure": PureStore}


def ours(algorithm: str, refused: bool, engine: str = "native") -> Limiter:
    """A limit that is never reached, or one that always is; a log must also be short to compare decisions."""
    store: object = STORES[engine]()
    if refused:
        limiter = Limiter("1/day", algorithm=algorithm, store=store)  # type: ignore[arg-type]
        limiter.check(KEY)
        return limiter
    text = "200 per 10 microseconds" if algorithm == "sliding_log" else "1000000000/second"
    return Limiter(text, algorithm=algorithm, store=store)  # type: ignore[arg-type]


def hot_key(refused: bool) -> None:
    contestants = [Contestant(F1, floor([KEY]))]
    for algorithm in ALGORITHMS:
        contestants += [
            Contestant(f"ratekeeper {engine} {algorithm}", ours(algorithm, refused, engine).check) for engine in STORES
        ]
        for peer, make in PEERS.items():
            call = make(algorithm, 1 if refused else 10_000_000, 86_400 if refused else 1)
            if call is not None:
                contestants.append(Contestant(f"{peer} {algorithm}", call))
    best = race(contestants, [KEY] * CALLS, ROUNDS)
    rows = []
    for contestant in contestants:
        own = best[contestant.name]
        algorithm = contestant.name.split(" ")[-1]
        times = f"{own / best['ratekeeper native ' + algorithm]:.1f}" if algorithm in ALGORITHMS else ""
        rows.append([contestant.name, f"{own * 1e9:.0f}", f"{own / best[F1]:.2f}", times])
    title = "One decision, hot key, refused" if refused else "One decision, hot key, allowed"
    table(title, ["", "ns", "x F1", "x native"], rows)
    record(title, "ns", {each.name: [own * 1e9 for own in each.rounds] for each in contestants})
    native = [best[f"ratekeeper native {algorithm}"] for algorithm in ALGORITHMS]
    print(f"slowest algorithm : fastest, native: {max(native) / min(native):.2f}")


def reading() -> None:
    """What looking at the answer adds, beside looking at an attribute of an object of C: a date's year."""
    check, plain = ours("gcra", refused=False).check, datetime.date(2000, 1, 1)
    cases: dict[str, Callable[[str], object]] = {
        "plain": lambda key: plain,
        "plain.year": lambda key: plain.year,
        "check(key)": lambda key: check(key),
        "bool(check(key))": lambda key: bool(check(key)),
        "check(key).allowed": lambda key: check(key).allowed,
        "check(key).remaining": lambda key: check(key).remaining,
        "check(key).retry_after": lambda key: check(key).retry_after,
        "check(key).reset_after": lambda key: check(key).reset_after,
    }
    best = race([Contestant(name, call) for name, call in cases.items()], [KEY] * CALLS, ROUNDS)
    rows = []
    for name, own in best.items():
        less = best["plain" if name.startswith("plain") else "check(key)"]
        rows.append([name, f"{own * 1e9:.0f}", f"{(own - less) * 1e9:+.0f}"])
    table("Reading the answer, in a function", ["", "ns", "added"], rows)


def many_keys() -> None:
    keys = [f"user:{number}" for number in range(MANY)]
    asked = random.Random(1).choices(keys, k=200_000)
    rows = []
    for algorithm in ALGORITHMS:
        limiter = Limiter("5/day" if algorithm == "sliding_log" else "100/day", algorithm=algorithm, max_keys=MANY)
        for key in keys:
            limiter.check(key)
        contestants = [Contestant(F1, floor(keys)), Contestant(algorithm, limiter.check)]
        best = race(contestants, asked, 5)
        rows.append(
            [algorithm, f"{best[F1] * 1e9:.0f}", f"{best[algorithm] * 1e9:.0f}", f"{best[algorithm] / best[F1]:.2f}"]
        )
        limiter.close()
    table(f"{MANY:,} keys in random order", ["", "F1 ns", "ns", "x F1"], rows)


async def seconds_awaited(call: Callable[[str], object]) -> float:
    began = time.perf_counter()
    for _ in range(CALLS):
        await call(KEY)  # type: ignore[misc]
    return (time.perf_counter() - began) / CALLS


def awaited() -> None:
    """An empty coroutine is the least that ``await`` costs."""
    limiter, plain = AsyncLimiter("1000000000/second"), ours("gcra", refused=False).check

    async def empty(key: str) -> None:
        pass

    async def around(key: str) -> object:
        return plain(key)

    cases: dict[str, Callable[[str], object]] = {
        "an empty coroutine": empty,
        "a coroutine around Limiter.check": around,
        "AsyncLimiter.check": limiter.check,
    }
    try:
        import aiolimiter
    except ImportError:
        pass
    else:
        peer = aiolimiter.AsyncLimiter(10_000_000, 1)
        cases["aiolimiter acquire (no keys)"] = lambda key: peer.acquire()
    best: dict[str, float] = dict.fromkeys(cases, float("inf"))

    async def rounds() -> None:
        for _ in range(ROUNDS):
            for name, call in cases.items():
                best[name] = min(best[name], await seconds_awaited(call))

    asyncio.run(rounds())
    table("Awaited, hot key", ["", "ns"], [[name, f"{own * 1e9:.0f}"] for name, own in best.items()])


def seconds_started(statement: str, environment: dict[str, str]) -> float:
    """Of a fresh interpreter that runs the statement, compiled before as installed packages are."""
    began = time.perf_counter()
    compiled = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", **environment}
    subprocess.run([sys.executable, "-c", statement], check=True, env=compiled)
    return time.perf_counter() - began


def importing() -> None:
    pure = {"RATEKEEPER_PURE": "1"}
    cases: dict[str, tuple[str, dict[str, str]]] = {
        "a bare interpreter": ("pass", {}),
        "import ratekeeper": ("import ratekeeper", {}),
        "import ratekeeper, pure": ("import ratekeeper", pure),
        "... and a first decision": ("import ratekeeper; ratekeeper.Limiter('5/second').check('k')", {}),
    }
    for peer in ("limits", "throttled", "pyrate_limiter", "aiolimiter", "token_bucket"):
        if importlib.util.find_spec(peer):
            cases[f"import {peer}"] = f"import {peer}", {}
    best = dict.fromkeys(cases, float("inf"))
    for _ in range(ROUNDS):
        for name, case in cases.items():
            best[name] = min(best[name], seconds_started(*case))
    bare = best["a bare interpreter"]
    rows = [[name, f"{own * 1e3:.1f}", f"{(own - bare) * 1e3:+.1f}"] for name, own in best.items()]
    table("Starting, in ms", ["", "whole", "added"], rows)


def main() -> None:
    conditions()
    hot_key(refused=False)
    hot_key(refused=True)
    reading()
    awaited()
    many_keys()
    importing()


if __name__ == "__main__":
    main()
