"""Claims that are published about rate limiting, run again: twice a fixed window's limit at its boundary, the wrong
decisions of a sliding window counter, GCRA and the token bucket, memory a client, and what a leaky bucket does to
latency.

``python -m bench claims`` prints them, ``python -m bench.claims boundary`` one of them; with ``--write`` they are also
written, with their pictures, into docs/explain/claims.md.  All but the memory are the same on every machine, as the
traffic comes from seeds.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from bisect import bisect_right
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from ratekeeper import Limit, Limiter, lab
from ratekeeper.algorithms import ALGORITHMS, gcra, sliding_window, token_bucket
from ratekeeper.lab.clock import VirtualClock
from ratekeeper.lab.plots import ADMITTED, ASKED, REFUSED, figure
from ratekeeper.lab.simulate import simulate

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "explain" / "claims.md"
PICTURES = ROOT / "docs" / "pictures"
SLICES = (1, 4, 10)
COUNTS = (50, 100, 200, 300, 400, 500)
MINUTE = 60_000_000


def rows(head: list[str], cells: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *cells])


def percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def boundary() -> str:
    """A full count on both sides of a boundary, through all six."""
    found = lab.simulate("100/minute", "boundary", algorithms=ALGORITHMS)
    cells = [
        [f"`{lane.algorithm}`", f"{lane.worst_window}", f"{lane.worst_window_ratio:.2f} ×", f"{lane.worst_second}"]
        for lane in found.lanes
    ]
    return rows(["100/minute", "most in any minute", "of the limit", "most in any second"], cells)


def draw_boundary(axis: Any) -> None:
    """What was admitted within the last minute, around one boundary."""
    traffic = lab.traffic("boundary", "100/minute", seconds=121)
    for name, colour, style in (
        ("fixed_window", REFUSED, "-"),
        ("sliding_window", ASKED, "-"),
        ("gcra", ADMITTED, "--"),
    ):
        clock = VirtualClock()
        limiter = Limiter("100/minute", algorithm=name, clock=clock)
        counts = []
        for at in traffic.times:
            clock.move_to(at)
            counts.append(limiter.check("client").allowed + (counts[-1] if counts else 0))
        axis.step([at / 1000 - 120_000 for at in traffic.times], counts, style, where="post", color=colour, label=name)
    axis.axhline(100, color="#333", linewidth=0.8, linestyle=":")
    axis.axvline(0, color="#333", linewidth=0.8, linestyle=":")
    axis.set_xlabel("milliseconds from the boundary of two windows")
    axis.set_ylabel("in the last minute")
    axis.legend(frameon=False)


@cache
def realistic(seed: int = 11) -> lab.Traffic:
    """Two thousand clients for two hours; their rates differ as those of real clients do, a few are above the limit.

    Calls come in visits: a page and what belongs to it, then a pause.
    """
    random = Random(seed)
    calls: list[tuple[float, str]] = []
    for client in range(2000):
        rate = min(1000.0, 0.35 * random.paretovariate(1.05))  # calls a minute
        at = random.random() * 60
        while at < 7200:
            size = 1 + int(random.expovariate(1 / 4))
            for _ in range(size):
                calls.append((at, f"client {client}"))
                at += random.expovariate(max(2.0, rate / 10))  # seconds; a program is faster than a browser
            at += random.expovariate(rate / 60 / size)
    return lab.recorded([call for call in calls if call[0] < 7200], "realistic")


@cache
def rates(slices: int) -> list[tuple[float, int]]:
    """The counted and the true number of calls in the minute before each call, all of them counted."""
    traffic = realistic()
    limit = Limit(10**9, 60, algorithm="sliding_window", slices=slices)
    states: dict[int, int] = {}
    past: dict[int, list[int]] = {}
    found = []
    for at, client in zip(traffic.times, traffic.who, strict=True):
        state, _ = sliding_window.decide(states.get(client, 0), at, limit, 1)
        states[client] = state
        times = past.setdefault(client, [])
        times.append(at)
        found.append((sliding_window.weighed(state, at, limit) / MINUTE, len(times) - bisect_right(times, at - MINUTE)))
    return found


def mean_gap(slices: int, count: int) -> float:
    """Between the counted and the true rate, over calls of clients that use a tenth of the limit or more."""
    gaps = [abs(counted - true) / true for counted, true in rates(slices) if true >= count / 10]
    return sum(gaps) / len(gaps)


def misjudged(slices: int, count: int) -> float:
    """The share of calls that are over the limit by one count and not by the other."""
    found = rates(slices)
    return sum((counted > count) != (true > count) for counted, true in found) / len(found)


def counter() -> str:
    """The sliding window counter, beside an exact log, on realistic traffic and under attack."""
    traffic, attack = realistic(), attack_on_counter(100)
    near = []
    for count in COUNTS:
        over = sum(true > count for _, true in rates(1)) / len(traffic)
        near.append([f"{count}/minute", percent(over), *[percent(misjudged(slices, count)) for slices in SLICES]])
    near_head = ["limit", "calls over it", *[f"wrong, `slices {slices}`" for slices in SLICES]]
    cells = []
    for slices in SLICES:
        texts = [f"{count}/minute sliding_window slices {slices}" for count in (100, 400)]
        lane, calm = simulate(texts, traffic).lanes
        worst = simulate(texts[0], attack).lanes[0]
        cells.append([
            f"`slices {slices}`", percent(mean_gap(slices, 100)), percent(calm.wrong), percent(lane.wrong),
            f"{lane.worst_window_ratio:.2f} ×", f"{worst.worst_window_ratio:.2f} ×",
        ])  # fmt: skip
    head = [
        *("", "mean gap of the rate", "wrong decisions, 400/minute", "wrong decisions, 100/minute"),
        *("worst minute, 100/minute", "under attack"),
    ]
    told = f"{len(traffic):,} calls by {len(traffic.clients):,} clients in two hours."
    return f"{told}\n\n{rows(near_head, near)}\n\n{rows(head, cells)}"


def draw_counter(axis: Any) -> None:
    for slices, colour in zip(SLICES, (REFUSED, ASKED, ADMITTED), strict=True):
        counts = range(50, 551, 10)
        axis.plot(counts, [100 * misjudged(slices, count) for count in counts], color=colour, label=f"slices {slices}")
    axis.axhline(0.003, color="#333", linewidth=0.8, linestyle=":", label="0.003 %, Cloudflare's")
    axis.set_yscale("log")
    axis.set_xlabel("limit a minute")
    axis.set_ylabel("wrong, %")
    axis.legend(frameon=False)


def attack_on_counter(count: int) -> lab.Traffic:
    """The worst for counters: a full count at the very end of a window, then whatever is let through."""
    calls = [(59.999_999, "attacker")] * count
    calls += [(60 + number * 60 / (100 * count), "attacker") for number in range(100 * count)]
    return lab.recorded(calls, "attack on the counter")


def same() -> str:
    """GCRA and the token bucket, step by step over random limits, costs and gaps."""
    random = Random(5)
    steps = different = 0
    for _ in range(2000):
        count, burst = random.randrange(1, 1000), random.randrange(1, 100)
        limit = Limit(count, random.choice([1, 7, 60, 3600]), burst=burst)
        one = other = 0
        now = 1_700_000_000_000_000
        for _ in range(100):
            now += int(random.expovariate(count / limit.micros))
            cost = random.choice([1, 1, 1, random.randrange(1, burst + 2)])
            (one, first), (other, second) = (
                gcra.decide(one, now, limit, cost),
                token_bucket.decide(other, now, limit, cost),
            )
            answers = [
                (allowed, rule.remaining(state, now, limit), rule.retry_after(state, now, limit, cost))
                for rule, state, allowed in ((gcra, one, first), (token_bucket, other, second))
            ]
            steps += 1
            different += answers[0] != answers[1] or one != other
    return (
        f"{steps:,} steps under 2,000 limits: {different} differences in decision, `remaining`, `retry_after` or state."
    )


def draw_same(axis: Any) -> None:
    """The tokens of a bucket, and the burst that GCRA has left, of one client that comes and goes."""
    limit = Limit(10, 1, burst=20)
    times = lab.traffic("on_off", limit, load=1.5, clients=1, seconds=8).times
    for rule, colour, style, width in ((token_bucket, REFUSED, "-", 4.0), (gcra, "#222", "--", 1.2)):
        state, left = 0, []
        for at in times:
            state, _ = rule.decide(state, at, limit, 1)
            left.append(rule.remaining(state, at, limit))
        name = rule.__name__.rpartition(".")[2]
        axis.plot([at / 1e6 for at in times], left, style, color=colour, linewidth=width, label=name)
    axis.set_xlabel("seconds")
    axis.set_ylabel("remaining")
    axis.legend(frameon=False)


def memory() -> str:
    """What a client takes: its state packed, and what a process grows by for each of many."""
    head = [
        "100/minute, clients at their limit",
        "state, bytes",
        "native store, bytes a key",
        "Python store, bytes a key",
    ]
    return rows(head, [[f"`{name}`", *[f"{size:,.0f}" for size in sizes]] for name, *sizes in sizes_of_all()])


@cache
def sizes_of_all() -> list[tuple[str, float, int, int]]:
    traffic = lab.traffic("poisson", "100/minute", load=1.5, clients=50)
    lanes = simulate("100/minute", traffic, algorithms=ALGORITHMS).lanes
    return [(lane.algorithm, lane.state_bytes, grows(lane.algorithm, ""), grows(lane.algorithm, "1")) for lane in lanes]


def grows(name: str, pure: str) -> int:
    """Bytes that a process grows by for each key; in virtual time, as a state that recovers is forgotten."""
    # A log that is full has a hundred instants, all different; the states of the others do not grow.
    keys, calls, step = (20_000, 100, 1000) if name == "sliding_log" else (200_000, 2, 0)
    script = (
        "import gc, resource\n"
        "from ratekeeper import Limiter\n"
        "from ratekeeper.lab.clock import VirtualClock\n"
        "clock = VirtualClock(1_700_000_000_000_000)\n"
        f"check = Limiter('100/minute', algorithm={name!r}, clock=clock).check\n"
        "def held(): gc.collect(); return int(open('/proc/self/statm').read().split()[1]) * resource.getpagesize()\n"
        "def run(first, last):\n"
        "    for key in range(first, last):\n"
        f"        for _ in range({calls}): clock.hand[0] += {step}; check(f'user:{{key}}')\n"
        f"run(0, 1000); before = held(); run(1000, {keys + 1000}); print((held() - before) // {keys})\n"
    )
    environment = {**os.environ, "RATEKEEPER_PURE": pure} if pure else os.environ
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    return int(done.stdout)


def draw_memory(axis: Any) -> None:
    found = sizes_of_all()
    kinds = (("state", ASKED), ("native store", ADMITTED), ("Python store", REFUSED))
    for number, (label, colour) in enumerate(kinds):
        places = [place + (number - 1) * 0.27 for place in range(len(found))]
        drawn = axis.bar(places, [row[number + 1] for row in found], 0.25, color=colour, label=label)
        axis.bar_label(drawn, fmt="{:,.0f}", fontsize=7)
    axis.set_yscale("log")
    axis.set_xticks(range(len(found)), [name for name, *_ in found])
    axis.set_ylabel("bytes a client")
    axis.legend(frameon=False)


def latency() -> str:
    """The same Poisson traffic through a leaky bucket and through GCRA, at growing load."""
    cells = []
    for load in (0.5, 0.8, 0.9, 1.0, 1.2, 1.5):
        traffic = paced(load)
        delays = leaky_delays(traffic)
        leaky, other = simulate("10/second burst 20", traffic, algorithms=["leaky_bucket", "gcra"]).lanes
        cells.append([
            f"{load:.1f}", f"{leaky.refused / leaky.asked:.1%}", f"{other.refused / other.asked:.1%}",
            *[f"{delays[int(part * (len(delays) - 1))] * 1000:,.0f} ms" for part in (0.5, 0.99, 1.0)],
            f"{other.longest_delay * 1000:.0f} ms",
        ])  # fmt: skip
    head = [
        *("load", "refused, `leaky_bucket`", "refused, `gcra`", "median delay", "99th percentile", "longest"),
        "delay of `gcra`",
    ]
    return rows(head, cells)


def paced(load: float) -> lab.Traffic:
    return lab.traffic("poisson", "10/second burst 20", load=load, clients=20, seconds=300)


def leaky_delays(traffic: lab.Traffic) -> list[float]:
    """Seconds that each admitted call waits for its turn, in order of length."""
    clock = VirtualClock()
    limiter = Limiter("10/second burst 20", algorithm="leaky_bucket", clock=clock)
    found = []
    for at, client in zip(traffic.times, traffic.who, strict=True):
        clock.move_to(at)
        decision = limiter.check(traffic.clients[client])
        if decision.allowed:
            found.append(decision.delay)
    return sorted(found)


def draw_latency(axis: Any) -> None:
    loads = [number / 20 for number in range(8, 31)]
    delays = [leaky_delays(paced(load)) for load in loads]
    for part, colour, label in ((0.5, ADMITTED, "median"), (0.99, REFUSED, "99th percentile")):
        axis.plot(loads, [1000 * some[int(part * (len(some) - 1))] for some in delays], color=colour, label=label)
    axis.set_xlabel("load, in multiples of the limit's rate")
    axis.set_ylabel("delay, ms")
    axis.set_ylim(0)
    axis.legend(frameon=False)


CLAIMS: dict[str, tuple[Callable[[], str], Callable[[Any], None]]] = {
    "boundary": (boundary, draw_boundary),
    "counter": (counter, draw_counter),
    "same": (same, draw_same),
    "memory": (memory, draw_memory),
    "latency": (latency, draw_latency),
}


def draw(name: str) -> None:
    """Draw a claim into docs/pictures, the same bytes each time."""
    from matplotlib import rc_context

    drawn = figure((9, 3))
    axis = drawn.subplots()
    CLAIMS[name][1](axis)
    axis.spines[["top", "right"]].set_visible(False)
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "ratekeeper"}):
        drawn.savefig(PICTURES / f"claims-{name}.svg", metadata={"Date": None})


def main(wanted: list[str] | None = None) -> None:
    for name in wanted or CLAIMS:
        claim = CLAIMS[name][0]
        found = claim()
        print(f"\n{name}: {claim.__doc__}\n\n{found}", flush=True)
        if "--write" in sys.argv:
            page = PAGE.read_text("utf-8")
            part = re.compile(rf"(<!-- written: {name} -->\n).*?(<!-- end -->)", re.S)
            PAGE.write_text(part.sub(lambda part, text=found: f"{part[1]}\n{text}\n\n{part[2]}", page), "utf-8")  # type: ignore[misc]
            draw(name)


if __name__ == "__main__":
    main([word for word in sys.argv[1:] if word in CLAIMS])
