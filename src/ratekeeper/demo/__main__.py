"""``python -m ratekeeper.demo``: six algorithms under the same calls, live in the terminal.

Each algorithm has its own limiter of ten calls per second, and all get the same calls at the same instants: a trickle,
a burst on each side of a full second, a flood, and a trickle again.  ``--fast`` runs on a FakeClock.
"""

from __future__ import annotations

import os
import sys
from shutil import get_terminal_size
from typing import TYPE_CHECKING, NamedTuple

from ratekeeper import Limiter
from ratekeeper.algorithms import ALGORITHMS
from ratekeeper.clock import MONOTONIC
from ratekeeper.demo.http import http_demo
from ratekeeper.lab.text import AMBER, BOLD, DIM, GREEN, RED, Style, duration, style_for
from ratekeeper.testing import FakeClock
from ratekeeper.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratekeeper.algorithms import Algorithm
    from ratekeeper.clock import Clock

LIMIT = "10/second"
TICK = 100_000  # microseconds; one column of the picture
# Calls in each tick.  Ten ticks per line, so that each line is one fixed window.
PATTERN = (
    *(1, 0, 1, 0, 1, 0, 1, 0, 1, 0),
    *(0, 0, 0, 0, 0, 0, 0, 0, 0, 12),
    *(12, 0, 0, 0, 0, 0, 0, 0, 0, 0),
    *(3, 3, 3, 3, 3, 3, 3, 3, 3, 3),
    *(3, 3, 3, 3, 3, 0, 0, 0, 0, 0),
    *(0, 0, 1, 0, 0, 1, 0, 0, 1, 0),
)
MARGIN = 15  # columns for the names
FULL_BAR = 8  # calls in a tick: each count up to this has its own height
INTERRUPTED, BROKEN_PIPE = 130, 141  # exit codes: 128 + the number of the signal


class AdmittedCall(NamedTuple):
    called_at: int
    turn_at: int  # later than the call only in a leaky bucket


class DemoLane:
    """One algorithm and its decisions so far; instants are microseconds since the start."""

    def __init__(self, name: Algorithm, clock: Clock, started_at: int) -> None:
        self.name = name
        self.limiter = Limiter(LIMIT, algorithm=name, clock=clock)
        self.started_at = started_at
        self.admitted: list[AdmittedCall] = []
        self.refused: list[int] = []

    def call(self) -> None:
        decision = self.limiter.check("demo")
        called_at = decision.at - self.started_at
        if decision:
            self.admitted.append(AdmittedCall(called_at, called_at + round(decision.delay * SECOND)))
        else:
            self.refused.append(called_at)

    def most_within(self, micros: int) -> int:
        """Return the most turns within any stretch of that length."""
        turns = [call.turn_at for call in self.admitted]
        return max((sum(first <= turn < first + micros for turn in turns) for first in turns), default=0)

    def longest_wait(self) -> int:
        return max((call.turn_at - call.called_at for call in self.admitted), default=0)


def run(clock: Clock, show: Callable[[list[DemoLane], int], None]) -> list[DemoLane]:
    """Send the pattern through all six algorithms; ``show`` is called after each tick."""
    now = clock.nanos() // 1000
    started_at = now + -now % SECOND  # aligned with the fixed windows, so that the bursts meet a boundary
    lane_clock = FakeClock(started_at / SECOND)  # set once for each tick: all lanes decide at the very same instant
    lanes = [DemoLane(name, lane_clock, started_at) for name in ALGORITHMS]
    for tick, calls in enumerate(PATTERN):
        clock.sleep(max(0, started_at + tick * TICK - clock.nanos() // 1000))
        lane_clock.move_to(clock.nanos() // 1000)
        for lane in lanes:
            for _ in range(calls):
                lane.call()
        show(lanes, tick)
    return lanes


def frame(lanes: list[DemoLane], tick: int, style: Style) -> list[str]:
    """Draw the picture after ``tick``."""
    ruler = "".join(f"{second} s".ljust(10) for second in range(len(PATTERN) // 10))
    lines = [
        style.coloured((" " * MARGIN + ruler).rstrip(), DIM),
        "calls".ljust(MARGIN) + style.bars(PATTERN[: tick + 1], len(PATTERN), FULL_BAR, BOLD),
    ]
    for lane in lanes:
        turns = style.bars(per_tick([call.turn_at for call in lane.admitted]), len(PATTERN), FULL_BAR)
        refused = style.bars(per_tick(lane.refused), len(PATTERN), FULL_BAR, RED)
        # Turns after this tick belong to calls that wait in a leaky bucket.
        admitted, waiting = style.coloured(turns[: tick + 1], GREEN), style.coloured(turns[tick + 1 :], AMBER)
        lines += [
            "",
            (style.coloured(lane.name.ljust(MARGIN), BOLD) + admitted + waiting).rstrip(),
            (style.coloured("  refused".ljust(MARGIN), DIM) + refused).rstrip(),
        ]
    return lines


def per_tick(instants: list[int]) -> list[int]:
    counts = [0] * len(PATTERN)
    for instant in instants:
        counts[min(instant // TICK, len(PATTERN) - 1)] += 1
    return counts


def summary(lanes: list[DemoLane], style: Style) -> list[str]:
    head = ["algorithm", "admitted", "refused", "longest wait", "most in 0.2 s", "most in 1 s"]
    rows = [
        [
            lane.name, str(len(lane.admitted)), str(len(lane.refused)), duration(lane.longest_wait() / SECOND),
            str(lane.most_within(SECOND // 5)), str(lane.most_within(SECOND)),
        ]
        for lane in lanes
    ]  # fmt: skip
    return [
        *style.table(head, rows),
        "",
        "The fixed window admits both bursts: twice its limit around a boundary. No other algorithm does.",
        "The leaky bucket delays its calls, and spaces them evenly. A refusal is never charged.",
    ]


def main(arguments: list[str] | None = None) -> int:
    """Show the demonstration: live on a terminal, as plain text in a pipe."""
    from argparse import ArgumentParser

    parser = ArgumentParser(prog="python -m ratekeeper.demo", description="Six algorithms under the same calls.")
    parser.add_argument("--fast", action="store_true", help="run on a fake clock and show the end at once")
    fast = parser.parse_args(arguments).fast
    try:
        show_all(FakeClock() if fast else MONOTONIC, redraws=not fast)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader, `head` for example, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the flush at exit fails again
        return BROKEN_PIPE
    return 0


def show_all(clock: Clock, redraws: bool) -> None:
    out = sys.stdout
    is_terminal = out.isatty() and os.environ.get("TERM") != "dumb"
    style = style_for(out.encoding, is_terminal and not os.environ.get("NO_COLOR"))
    window = get_terminal_size()
    fits = window.columns > MARGIN + len(PATTERN) and window.lines > 2 + 3 * len(ALGORITHMS)
    live = is_terminal and redraws and fits
    height = 0

    def show(lanes: list[DemoLane], tick: int) -> None:
        nonlocal height
        if not live and tick < len(PATTERN) - 1:
            return
        lines = frame(lanes, tick, style)
        cursor_up = f"\x1b[{height}A" if height else ""
        out.write(cursor_up + "".join(f"{line}\x1b[K\n" if live else f"{line}\n" for line in lines))
        out.flush()
        height = len(lines)

    print(f"Six algorithms with a limit of {LIMIT}, under the same {len(PATTERN) * TICK // SECOND} seconds of calls.\n")
    out.flush()
    lanes = run(clock, show)
    print("\n".join(["", *summary(lanes, style), "", *http_demo()]))


if __name__ == "__main__":
    sys.exit(main())
