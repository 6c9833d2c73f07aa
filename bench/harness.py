"""Interleaved rounds, best of several, and ratios to a floor measured in the same run.

Machines are noisy and differ: read the ratios.  The floor F1 is ``d[key] += 1`` in a Python function, the least that
a counter in Python can cost.  Each round calls every contestant in turn, so that a busy moment hits all alike; the
best round of each counts.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROUNDS = 7
ROOT = Path(__file__).parents[1]
WRITTEN = ROOT / "build" / "bench"  # what this machine measured
PUBLISHED = Path(__file__).parent / "published"  # what the documentation says
MOVED = 0.15  # of a ratio, before it is said
RESULTS = Path(__file__).parent / "results"
# Whose versions belong to a result, where they are installed.
PEERS = (
    *("aiolimiter", "asgi-ratelimit", "fastapi", "fastapi-limiter", "hiredis", "limits", "pyrate-limiter", "redis"),
    *("slowapi", "throttled-py", "token-bucket", "traffik"),
)
recorded: list[dict[str, Any]] = []


@dataclass
class Contestant:
    name: str
    call: Callable[[str], object]
    rounds: list[float] = field(default_factory=list, init=False)  # seconds a call, of each

    @property
    def best(self) -> float:
        return min(self.rounds)


def floor(keys: Iterable[str]) -> Callable[[str], object]:
    """F1: ``d[key] += 1`` in a Python function, on a dictionary that holds the keys already."""
    counts = dict.fromkeys(keys, 0)

    def increment(key: str) -> None:
        counts[key] += 1

    return increment


def race(contestants: Sequence[Contestant], keys: Sequence[str], rounds: int = ROUNDS) -> dict[str, float]:
    """Best seconds per call of each contestant, of CPU time: what other programs take is not counted."""
    for _ in range(rounds):
        for contestant in contestants:
            call = contestant.call
            began = time.process_time()
            for key in keys:
                call(key)
            contestant.rounds.append((time.process_time() - began) / len(keys))
    return {contestant.name: contestant.best for contestant in contestants}


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under a title, in columns."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in [list(head), *cells]) for column in range(len(head))]
    print(f"\n{title}")
    for row in [list(head), ["-" * width for width in widths], *cells]:
        first, *rest = (
            cell.ljust(width) if not i else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join([first, *rest]))


def row(name: str, samples: Sequence[float], unit: str, floor: float | None = None) -> dict[str, object]:
    """One figure for ``publish``: the best of its samples, how far they spread, and its ratio to a floor."""
    value = min(samples)
    found: dict[str, object] = {"name": name, "value": value, "unit": unit, "low": value, "high": max(samples)}
    return found | {"floor": floor, "ratio": None if floor is None else value / floor}


def publish(name: str, rows: Sequence[dict[str, object]]) -> None:
    """Write figures to build/bench/NAME.json, and say which ratios differ from the published ones."""
    from ratekeeper import info

    WRITTEN.mkdir(parents=True, exist_ok=True)
    installed = info()
    written = {
        "name": name,
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{installed['machine']}, {os.cpu_count()} cores, {installed['engine']} core, "
        f"clock: {installed['clock']}",
        "python": platform.python_version(),
        "rows": list(rows),
    }
    (WRITTEN / f"{name}.json").write_text(json.dumps(written, indent=1) + "\n", "utf-8")
    print(f"\nbuild/bench/{name}.json")
    published = PUBLISHED / f"{name}.json"
    if published.exists():
        for line in moved(json.loads(published.read_text("utf-8")), written):
            print(line)


def moved(before: dict[str, object], after: dict[str, object]) -> list[str]:
    """What differs from the published figures, by ratio; seconds differ between machines, ratios hardly."""
    old: dict[str, object] = {each["name"]: each["ratio"] for each in before["rows"]}  # type: ignore[attr-defined]
    lines = []
    for each in after["rows"]:  # type: ignore[attr-defined]
        was, now = old.pop(each["name"], None), each["ratio"]
        if was is None and now is not None:
            lines.append(f"new: {each['name']} {now:.2f}")
        elif was and now and abs(now / was - 1) > MOVED:  # type: ignore[operator]
            lines.append(f"{'slower' if now > was else 'faster'}: {each['name']} {was:.2f} -> {now:.2f}")
    lines += [f"no longer measured: {name}" for name in old]
    return lines or [f"as published on {before['date']}, within {MOVED:.0%}"]


def record(title: str, unit: str, figures: Mapping[str, Sequence[float]], most: bool = False) -> None:
    """Keep a figure of each round for ``--json``: the best (the least, or the most) and the spread of them."""
    race = []
    for name, rounds in figures.items():
        low, middle, high = (
            statistics.quantiles(rounds, n=4, method="inclusive") if len(rounds) > 1 else [rounds[0]] * 3
        )
        spread = {"quartile_1": low, "median": middle, "quartile_3": high}
        best = max(rounds) if most else min(rounds)
        race.append({"name": name, "best": best, **spread, "rounds": len(rounds)})
    recorded.append({"title": title, "unit": unit, "better": "more" if most else "less", "figures": race})


def write(name: str, folder: Path = RESULTS) -> Path | None:
    """Write what a benchmark recorded, with the conditions it ran under; None if it recorded nothing."""
    if not recorded:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    rounded = json.loads(json.dumps(recorded), parse_float=lambda text: float(f"{float(text):.4g}"))
    path.write_text(json.dumps({"benchmark": name, **facts(), "races": rounded}, indent=1) + "\n", "utf-8")
    recorded.clear()
    return path


def facts() -> dict[str, object]:
    from ratekeeper import info

    versions = {}
    for peer in PEERS:
        try:
            versions[peer] = importlib.metadata.version(peer)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[1], 1),
        "engine": info()["engine"],
        "versions": versions,
    }


def processor() -> str:
    """The name of the processor, without its marks and its clock."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    return " ".join(name.replace("(R)", "").replace("(TM)", "").partition("@")[0].split())


def resident() -> int:
    """Bytes of memory that this process has, whoever in it asked for them."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def conditions() -> None:
    from ratekeeper import info

    facts = f"Python {platform.python_version()} on {platform.machine()}, {sys.platform}; {info()['engine']} core"
    print(f"{facts}; best of interleaved rounds")
