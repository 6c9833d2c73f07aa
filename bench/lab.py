"""Claims: ``simulate`` costs at most 5 times a bare loop over the same decisions; ``replay`` at most 4 times reading
and splitting the lines; and a log of ten million lines is replayed in constant memory.

``python -m bench lab`` measures the first two on a log of 300,000 lines, and the memory on one and three million;
``python -m bench.lab 10000000`` on as many lines as you say.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from random import Random

from bench.harness import conditions, table
from ratekeeper import Limiter, lab
from ratekeeper.algorithms import ALGORITHMS
from ratekeeper.lab.clock import VirtualClock

ROUNDS = 5
LIMIT = "100/minute"
PER_CLIENT = {"name": "per-client", "by": "ip", "limit": "60/minute burst 20"}
ONE_RULE = {"rules": [PER_CLIENT]}
# As in examples/lab, with counts that fit this log.
THREE_RULES = {
    "rules": [
        PER_CLIENT,
        {"name": "shop", "match": "GET /shop/**", "by": "ip", "limit": "3000/hour fixed_window"},
        {"name": "whole-site", "by": "all", "limit": "100/second"},
    ]
}
SAMPLE_RULES = Path(__file__).parents[1] / "examples" / "lab" / "rules.toml"  # refuses four of five of this log's lines
RULES = {"one rule": ONE_RULE, "three rules": THREE_RULES, "sample rules": SAMPLE_RULES}
AGENT = "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0"


def write_log(path: str, lines: int, combined: bool, seed: int = 1) -> None:
    """A log of 50 requests a second: 20,000 clients, some far busier than others, and 3,000 paths."""
    random = Random(seed)
    clients = [f"{random.randrange(1, 224)}.{random.randrange(256)}.{random.randrange(256)}.7" for _ in range(20_000)]
    paths = [f"/shop/{random.randrange(10**6)}/item-{number}.html" for number in range(3_000)]
    # A Pareto distribution: the busiest client makes three percent of all requests.
    picks = [min(len(clients) - 1, int(20 * random.paretovariate(0.6)) - 20) for _ in range(50_000)]
    asked = [min(len(paths) - 1, int(20 * random.paretovariate(0.6)) - 20) for _ in range(50_000)]
    tail = f' "https://example.org/start" "{AGENT}"' if combined else ""
    with open(path, "w") as file:
        for start in range(0, lines, 50):
            stamp = datetime.fromtimestamp(1_700_000_000 + start // 50, UTC).strftime("%d/%b/%Y:%H:%M:%S +0000")
            batch = []
            for _ in range(min(50, lines - start)):
                who, what = clients[picks[random.randrange(50_000)]], paths[asked[random.randrange(50_000)]]
                batch.append(f'{who} - - [{stamp}] "GET {what} HTTP/1.1" 200 {random.randrange(50_000)}{tail}\n')
            file.write("".join(batch))


def seconds(call: Callable[[], object]) -> float:
    """Of this process, so that neighbours on the machine count less."""
    began = time.process_time()
    call()
    return time.process_time() - began


def best(contestants: dict[str, Callable[[], object]]) -> dict[str, float]:
    """The best of interleaved rounds."""
    found = dict.fromkeys(contestants, float("inf"))
    for _ in range(ROUNDS):
        for name, call in contestants.items():
            found[name] = min(found[name], seconds(call))
    return found


def simulating() -> None:
    traffic = lab.traffic("poisson", LIMIT, clients=100, load=1.2, seconds=1500)
    nanos = [at * 1000 for at in traffic.times]
    keys = [traffic.clients[client] for client in traffic.who]

    def bare(names: list[str]) -> None:
        for name in names:
            clock = VirtualClock()
            check, hand = Limiter(LIMIT, algorithm=name, clock=clock).check, clock.hand
            for hand[0], key in zip(nanos, keys, strict=True):
                check(key)

    rows = []
    for title, names in [*((name, [name]) for name in ALGORITHMS), ("all six", list(ALGORITHMS))]:
        found = best({
            "bare": lambda names=names: bare(names),  # type: ignore[misc]
            "lab": lambda names=names: lab.simulate(LIMIT, traffic, algorithms=names),  # type: ignore[misc]
        })  # fmt: skip
        decisions = len(traffic) * len(names)
        each = [f"{found[name] / decisions * 1e9:.0f}" for name in ("bare", "lab")]
        rows.append([title, *each, f"{found['lab'] / found['bare']:.2f}"])
    table(f"simulate, {len(traffic):,} decisions a lane", ["", "bare loop, ns", "simulate, ns", "ratio"], rows)


def split_lines(path: str) -> None:
    with open(path) as file:
        for line in file:
            line.split()


def replaying(paths: dict[str, str]) -> None:
    rows = []
    for title, path in paths.items():
        with open(path, "rb") as file:
            lines = sum(1 for _ in file)
        contestants = {name: partial(lab.replay, path, rules) for name, rules in RULES.items()}
        found = best({"split": partial(split_lines, path), **contestants})
        each = [f"{found[name] / lines * 1e9:.0f}" for name in ("split", *RULES)]
        ratios = [f"{found[name] / found['split']:.2f}" for name in RULES]
        refused = f"{lab.replay(path, SAMPLE_RULES).refused / lines:.0%}"
        rows.append([title, f"{lines:,}", *each, *ratios, refused])
    head = ["log", "lines", "read and split, ns", *[f"{name}, ns" for name in RULES], "ratio, one", "three", "sample"]
    head.append("which refuse")
    table("replay", head, rows)


def remembering(sizes: list[int]) -> None:
    """The most memory of a process that replays a log of each size."""
    rows = []
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "access.log")
            write_log(path, size, combined=False)
            script = f"from bench.lab import measured; measured({path!r})"
            began = time.perf_counter()
            done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
            rows.append([f"{size:,}", f"{int(done.stdout) / 1024:.0f}", f"{time.perf_counter() - began:.0f}"])
    table("replay, most memory of the process", ["lines", "MiB", "seconds"], rows)


def measured(path: str) -> None:
    found = lab.replay(path, ONE_RULE)
    assert found.bad_lines == 0
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def main() -> None:
    conditions()
    simulating()
    with tempfile.TemporaryDirectory() as folder:
        paths = {}
        for title, combined in (("common", False), ("combined", True)):
            paths[title] = os.path.join(folder, f"{title}.log")
            write_log(paths[title], 300_000, combined)
        real = os.environ.get("RATEKEEPER_LOG")
        if real:
            paths["yours"] = real
        replaying(paths)
    remembering([int(word) for word in sys.argv[1:] if word.isdecimal()] or [1_000_000, 3_000_000])


if __name__ == "__main__":
    main()
