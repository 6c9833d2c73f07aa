"""``python -m ratekeeper.demo``: the six algorithms under the same calls, live in the terminal.

One limiter each, all of ten a second, is asked at the same instants: a trickle, two bursts on either side of a
whole second, a flood, and a trickle again.  ``--fast`` runs on a FakeClock and shows the end at once.
"""

from __future__ import annotations

import os
import sys
from shutil import get_terminal_size
from typing import TYPE_CHECKING, NamedTuple

from ratekeeper import Limiter
from ratekeeper.algorithms import ALGORITHMS
from ratekeeper.clock import MONOTONIC
from ratekeeper.demo.http import scene
from ratekeeper.testing import FakeClock
from ratekeeper.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ratekeeper.clock import Clock

LIMIT = "10/second"
TICK = 100_000  # microseconds; a column of the picture
# Calls in each tick, ten ticks a line, so a line is one window of the fixed window.
PATTERN = (
    *(1, 0, 1, 0, 1, 0, 1, 0, 1, 0),
    *(0, 0, 0, 0, 0, 0, 0, 0, 0, 12),
    *(12, 0, 0, 0, 0, 0, 0, 0, 0, 0),
    *(3, 3, 3, 3, 3, 3, 3, 3, 3, 3),
    *(3, 3, 3, 3, 3, 0, 0, 0, 0, 0),
    *(0, 0, 1, 0, 0, 1, 0, 0, 1, 0),
)
PLAIN, DIM, BOLD, RED, GREEN, AMBER = "", "2", "1", "31", "32", "33"
BLOCKS, DIGITS = " ▁▂▃▄▅▆▇█", " 12345678"


class Passed(NamedTuple):
    called_at: int
    turn_at: int  # later than the call only in a leaky bucket


class DemoLane:
    """One algorithm, and what became of the calls so far; instants in microseconds from the beginning."""

    def __init__(self, name: str, clock: Clock, began: int) -> None:
        self.name = name
        self.limiter = Limiter(LIMIT, algorithm=name, clock=clock)
        self.began = began
        self.passed: list[Passed] = []
        self.refused: list[int] = []

    def call(self) -> None:
        decision = self.limiter.check("demo")
        called_at = decision.at - self.began
        if decision:
            self.passed.append(Passed(called_at, called_at + round(decision.delay * SECOND)))
        else:
            self.refused.append(called_at)

    def most_within(self, micros: int) -> int:
        """The most turns in any stretch of that length."""
        turns = [passed.turn_at for passed in self.passed]
        return max((sum(first <= turn < first + micros for turn in turns) for first in turns), default=0)

    def longest_wait(self) -> int:
        return max((passed.turn_at - passed.called_at for passed in self.passed), default=0)


def run(clock: Clock, show: Callable[[list[DemoLane], int], None]) -> list[DemoLane]:
    """Send the pattern through all six; ``show`` is called after each tick."""
    now = clock.nanos() // 1000
    began = now + -now % SECOND  # with the windows, so that the two bursts meet a boundary
    asked = FakeClock(began / SECOND)  # moved to the time of each tick: all six are asked at the very same instant
    lanes = [DemoLane(name, asked, began) for name in ALGORITHMS]
    for tick, calls in enumerate(PATTERN):
        clock.sleep(max(0, began + tick * TICK - clock.nanos() // 1000))
        asked.move_to(clock.nanos() // 1000)
        for lane in lanes:
            for _ in range(calls):
                lane.call()
        show(lanes, tick)
    return lanes


class Painter:
    """Turns counts into text; colours only where a terminal shows them, blocks only where they can be written."""

    def __init__(self, coloured: bool, encoding: str) -> None:
        self.coloured = coloured
        try:
            BLOCKS.encode(encoding)
            self.heights = BLOCKS
        except UnicodeEncodeError:
            self.heights = DIGITS

    def colour(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.coloured and code and text.strip() else text

    def bars(self, counts: Sequence[int], codes: Sequence[str]) -> str:
        """A column for each count: low bars stay tellable, from eight on all are full."""
        cells = [self.heights[min(count, len(self.heights) - 1)] for count in counts]
        return "".join(map(self.colour, cells, codes)).rstrip()

    def frame(self, lanes: list[DemoLane], tick: int) -> list[str]:
        columns = range(len(PATTERN))
        calls = [calls if column <= tick else 0 for column, calls in enumerate(PATTERN)]
        ruler = "".join(f"{column // 10} s".ljust(10) for column in columns[::10])
        lines = [
            self.colour(f"{'':15}{ruler}".rstrip(), DIM),
            f"{'calls':15}{self.bars(calls, [BOLD] * len(calls))}",
        ]
        for lane in lanes:
            turns, refused = [0] * len(PATTERN), [0] * len(PATTERN)
            for passed in lane.passed:
                turns[min(passed.turn_at // TICK, columns[-1])] += 1
            for instant in lane.refused:
                refused[min(instant // TICK, columns[-1])] += 1
            waiting = [GREEN if column <= tick else AMBER for column in columns]
            lines.append("")
            lines.append(f"{self.colour(lane.name.ljust(15), BOLD)}{self.bars(turns, waiting)}".rstrip())
            lines.append(
                f"{self.colour('  refused'.ljust(15), DIM)}{self.bars(refused, [RED] * len(PATTERN))}".rstrip()
            )
        return lines

    def summary(self, lanes: list[DemoLane]) -> list[str]:
        head = f"{'':15}{'passed':>8}{'refused':>9}{'longest wait':>14}{'most in 0.2 s':>15}{'in any second':>15}"
        lines = ["", self.colour(head, DIM)]
        for lane in lanes:
            burst, second = lane.most_within(SECOND // 5), lane.most_within(SECOND)
            wait = f"{lane.longest_wait() / SECOND:.1f} s" if lane.longest_wait() else "-"
            most = self.colour(f"{burst:>15}", RED if burst > 15 else PLAIN)
            lines.append(
                f"{self.colour(lane.name.ljust(15), BOLD)}{self.colour(f'{len(lane.passed):>8}', GREEN)}"
                f"{len(lane.refused):>9}{self.colour(f'{wait:>14}', AMBER)}{most}{second:>15}"
            )
        return [
            *lines,
            "",
            "The fixed window lets both bursts through: twice its limit around a boundary. No other does.",
            "The leaky bucket makes its calls wait, and lets them go evenly. A refusal costs nothing anywhere.",
        ]


def main(arguments: list[str] | None = None) -> int:
    """Show the demonstration; live on a terminal, as plain text into a pipe."""
    from argparse import ArgumentParser

    parser = ArgumentParser(prog="python -m ratekeeper.demo", description="The six algorithms under the same calls.")
    parser.add_argument("--fast", action="store_true", help="take no time: run on a fake clock and show the end")
    fast = parser.parse_args(arguments).fast
    out = sys.stdout
    terminal = out.isatty() and os.environ.get("TERM") != "dumb"
    painter = Painter(terminal and not os.environ.get("NO_COLOR"), out.encoding or "ascii")
    window = get_terminal_size()
    live = terminal and not fast and window.columns > 15 + len(PATTERN) and window.lines > 2 + 3 * len(ALGORITHMS)
    height = 0

    def show(lanes: list[DemoLane], tick: int) -> None:
        nonlocal height
        last = tick == len(PATTERN) - 1
        if not (live or last):
            return
        lines = painter.frame(lanes, tick)
        up = f"\x1b[{height}A" if height else ""
        out.write(up + "".join(f"{line}\x1b[K\n" if live else f"{line}\n" for line in lines))
        out.flush()
        height = len(lines)

    print(f"Six algorithms, each of {LIMIT}, asked at the same instants ({len(PATTERN) * TICK // SECOND} seconds).\n")
    out.flush()
    try:
        lanes = run(FakeClock() if fast else MONOTONIC, show)
    except KeyboardInterrupt:
        return 130
    print("\n".join([*painter.summary(lanes), "", *scene()]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
