"""Counts what calls to language models used: calls, tokens, waits and money, as a line that shows progress.

>>> from ratekeeper.testing import FakeClock
>>> clock = FakeClock()
>>> meter = Meter(prices={"small": (1.0, 4.0)}, clock=clock)  # dollars for a million tokens of input and of output
>>> for _ in range(30):
...     meter.record("small", Usage(input_tokens=2000, output_tokens=500), waited=0.5)
>>> clock.advance(10)
>>> print(meter.progress())
30 calls, 3.0/s | 75,000 tokens, 450,000/min | waited 0.5 s a call | $0.12
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

from ratekeeper.clock import MONOTONIC
from ratekeeper.errors import InvalidInput, shown
from ratekeeper.outbound.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ratekeeper.clock import Clock

SPAN = 60  # seconds over which the rate is measured
MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Progress:
    """The counts of one Meter, or of several added up: those of all processes of a job, say."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    waited: float = 0.0
    money: float = 0.0
    calls_per_second: float = 0.0
    tokens_per_minute: float = 0.0

    def __add__(self, other: Progress) -> Progress:
        return Progress(*[getattr(self, name) + getattr(other, name) for name in self.__slots__])

    def __str__(self) -> str:
        tokens = self.input_tokens + self.output_tokens
        return (
            f"{self.calls:,} calls, {self.calls_per_second:.1f}/s"
            f" | {tokens:,} tokens, {self.tokens_per_minute:,.0f}/min"
            f" | waited {self.waited / max(1, self.calls):.1f} s a call | ${self.money:,.2f}"
        )


class Meter:
    """Counts the calls of one process; give one to any number of transports.

    ``prices`` maps the start of a model's name to dollars for a million tokens, of input and of output; of several
    starts that match, the longest counts.  Cached input is charged as input: the money is an upper bound.
    """

    def __init__(self, prices: Mapping[str, tuple[float, float]] | None = None, *, clock: Clock | None = None) -> None:
        self._prices = {} if prices is None else dict(prices)
        for model, pair in self._prices.items():
            if not is_price(pair):
                raise InvalidInput(
                    f"prices: expected dollars for a million tokens of input and of output, such as (1.25, 10), "
                    f"for {model!r}, got {shown(pair)}."
                )
        self._clock = MONOTONIC if clock is None else clock
        self._lock = Lock()
        self._total = Progress()
        self._started_at = self._clock.nanos()
        self._recent: deque[list[int]] = deque()  # of each second: the second, its calls, its tokens

    def record(self, model: str, usage: Usage | None, waited: float) -> None:
        """Count one call that was answered; ``usage`` is None if its answer did not report any."""
        usage = usage or Usage()
        prices = [price for start, price in sorted(self._prices.items(), key=by_length) if model.startswith(start)]
        to_read, to_write = prices[-1] if prices else (0.0, 0.0)
        money = (usage.input_tokens * to_read + usage.output_tokens * to_write) / MILLION
        with self._lock:
            self._total += Progress(1, usage.input_tokens, usage.output_tokens, waited, money)
            second = self._forget()
            if not self._recent or self._recent[-1][0] != second:
                self._recent.append([second, 0, 0])
            self._recent[-1][1] += 1
            self._recent[-1][2] += usage.tokens

    def progress(self) -> Progress:
        """The counts so far, with the rate of the last minute."""
        with self._lock:
            self._forget()
            seconds = min(float(SPAN), max(1.0, (self._clock.nanos() - self._started_at) / 1e9))
            calls = sum([count for _, count, _ in self._recent]) / seconds
            tokens = sum([count for _, _, count in self._recent]) / seconds * 60
            return self._total + Progress(calls_per_second=calls, tokens_per_minute=tokens)

    def _forget(self) -> int:
        second = self._clock.nanos() // 1_000_000_000
        while self._recent and self._recent[0][0] <= second - SPAN:
            self._recent.popleft()
        return second

    def __str__(self) -> str:
        return str(self.progress())


def by_length(price: tuple[str, object]) -> int:
    return len(price[0])


def is_price(pair: object) -> bool:
    return isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(price, (int, float)) for price in pair)
