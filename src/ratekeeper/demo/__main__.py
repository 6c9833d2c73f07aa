"""``ratekeeper demo``: six algorithms under the same calls, live in the terminal.

Each algorithm has its own limiter of ten calls per second, and all get the same calls at the same instants: a trickle,
a burst on each side of a full second, a flood, and a trickle again.  ``--fast`` runs on a FakeClock, and so does
whatever cannot be redrawn.  ``python -m ratekeeper.demo`` is the same, and needs no extra.
"""

from __future__ import annotations

import os
import sys
from shutil import get_terminal_size
from typing import TYPE_CHECKING, NamedTuple

from ratekeeper import Limiter
from ratekeeper.algorithms import ALGORITHMS
from ratekeeper.clock import MONOTONIC
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
LEAST_WIDTH, LEAST_LINES = 10, 10  # of a picture that is worth redrawing
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
    began_at = clock.nanos() // 1000
    # The lanes start at a full second of their own clock, so that the bursts meet the boundary of a fixed window.
    started_at = began_at + -began_at % SECOND
    lane_clock = FakeClock(started_at / SECOND)  # set once for each tick: all lanes decide at the very same instant
    lanes = [DemoLane(name, lane_clock, started_at) for name in ALGORITHMS]
    for tick, calls in enumerate(PATTERN):
        clock.sleep(max(0, began_at + tick * TICK - clock.nanos() // 1000))
        lane_clock.move_to(started_at + clock.nanos() // 1000 - began_at)
        for lane in lanes:
            for _ in range(calls):
                lane.call()
        show(lanes, tick)
    return lanes


def frame(lanes: list[DemoLane], tick: int, style: Style, width: int = len(PATTERN), brief: bool = False) -> list[str]:
    """Draw the picture after ``tick``.  A narrow one shows the last ``width`` ticks, a brief one only what passed."""
    first = max(0, tick + 1 - width)
    last = min(len(PATTERN), first + width)
    ruler = "".join(f"{second} s".ljust(10) for second in range(len(PATTERN) // 10))
    lines = [
        style.coloured((" " * MARGIN + ruler[first:last]).rstrip(), DIM),
        "calls".ljust(MARGIN) + style.bars(PATTERN[first : tick + 1], width, FULL_BAR, BOLD),
    ]
    for lane in lanes:
        turns = style.bars(per_tick([call.turn_at for call in lane.admitted])[first:last], width, FULL_BAR)
        # Turns after this tick belong to calls that wait in a leaky bucket.
        now = tick + 1 - first
        admitted, waiting = style.coloured(turns[:now], GREEN), style.coloured(turns[now:], AMBER)
        name = (style.coloured(lane.name.ljust(MARGIN), BOLD) + admitted + waiting).rstrip()
        if brief:
            lines.append(name)
            continue
        refused = style.bars(per_tick(lane.refused)[first:last], width, FULL_BAR, RED)
        lines += ["", name, (style.coloured("  refused".ljust(MARGIN), DIM) + refused).rstrip()]
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
        show_all(fast)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader, `head` for example, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the flush at exit fails again
        return BROKEN_PIPE
    return 0


def show_all(fast: bool) -> None:
    """Draw live where the output can be redrawn, and on a small terminal a smaller picture; else only the end."""
    out = sys.stdout
    is_terminal = out.isatty() and os.environ.get("TERM") != "dumb"
    style = style_for(out.encoding, is_terminal and not os.environ.get("NO_COLOR"))
    window = get_terminal_size()
    width = min(len(PATTERN), window.columns - MARGIN - 1)
    brief = window.lines < len(frame([], 0, style)) + 3 * len(ALGORITHMS) + 1
    live = is_terminal and not fast and width >= LEAST_WIDTH and window.lines >= LEAST_LINES
    height = 0

    def show(lanes: list[DemoLane], tick: int) -> None:
        nonlocal height
        if not live:
            return
        lines = frame(lanes, tick, style, width, brief)
        cursor_up = f"\x1b[{height}A" if height else ""
        out.write(cursor_up + "".join([f"{line}\x1b[K\n" for line in lines]))
        out.flush()
        height = len(lines)

    print(f"Six algorithms with a limit of {LIMIT}, under the same {len(PATTERN) * TICK // SECOND} seconds of calls.\n")
    lanes = run(MONOTONIC if live else FakeClock(), show)
    end = [] if live else frame(lanes, len(PATTERN) - 1, style)
    from ratekeeper.demo.http import http_demo  # takes a moment to load, and the picture should not wait for it

    print("\n".join([*end, "", *summary(lanes, style), "", *http_demo()]))
    out.flush()


if __name__ == "__main__":
    sys.exit(main())
