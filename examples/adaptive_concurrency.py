"""Adaptive concurrency, simulated: a server whose number of workers changes, and callers that never pause.

Run it: ``python -m examples.adaptive_concurrency``.  The client does not know how many workers there are; it finds out
from response times.  Time is simulated, event by event.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from dataclasses import dataclass

from ratekeeper.outbound.adaptive import Gradient

SERVICE = 0.05  # seconds of work for one request
PHASES = [(20, 20), (6, 20), (40, 20)]  # workers, and for how many seconds


@dataclass
class Row:
    workers: int
    second: int
    limit: int
    served: int
    slowness: float  # the response time, in multiples of the work

    @property
    def used(self) -> float:
        return self.served * SERVICE / self.workers


def simulate(seed: int = 1) -> list[Row]:
    generator = random.Random(seed)
    gradient = Gradient(start=4, least=1, most=1000)
    ends: list[tuple[float, float]] = []  # when a worker ends a request, and when that was sent
    queue: deque[float] = deque()
    rows: list[Row] = []
    now = 0.0
    for workers, seconds in PHASES:
        for second in range(seconds):
            until, took = now + 1.0, [0.0]
            while now < until:
                while len(ends) + len(queue) < gradient.limit:  # callers never pause: each sends as soon as it may
                    queue.append(now)
                while queue and len(ends) < workers:
                    heapq.heappush(ends, (now + SERVICE * generator.uniform(0.8, 1.2), queue.popleft()))
                now, sent = heapq.heappop(ends)
                took.append(now - sent)
                gradient.observe(now - sent, len(ends) + len(queue) + 1)
            served = len(took) - 1
            rows.append(Row(workers, second, gradient.limit, served, sum(took) / max(1, served) / SERVICE))
    return rows


def main() -> None:
    print("workers  second  limit  served/s  used   response time, x work")
    for row in simulate():
        print(
            f"{row.workers:7}  {row.second:6}  {row.limit:5}  {row.served:8}  {row.used:4.0%}  {row.slowness:6.2f}  "
            + "#" * row.limit
        )


if __name__ == "__main__":
    main()
