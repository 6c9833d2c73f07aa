"""A real server that enforces a limit."""

import threading

from ratekeeper import Limiter
from ratekeeper.outbound import Retry
from ratekeeper.testing import FakeClock

STEADY = Retry(first=0.0)


class Enforcing:
    """Answers 200 within its limit and 429 above it, with an exact Retry-After."""

    def __init__(self, limit="2/second", clock=None):
        self.clock = FakeClock() if clock is None else clock
        self.limiter = Limiter(limit, algorithm="token_bucket", clock=self.clock)
        self.lock = threading.Lock()
        self.seen = []

    def __call__(self, method, path, headers, body):
        with self.lock:
            decision = self.limiter.check("all")
            self.seen.append((200 if decision else 429, body))
        if decision:
            return 200, {}, body or b"ok"
        return 429, {"Retry-After": str(-int(-decision.retry_after // 1))}, b"slow down"

    @property
    def statuses(self):
        return [status for status, _ in self.seen]


class EmptyQuota:
    """Refuses the first request: come back in one second, though the quota is empty for thirty."""

    def __init__(self):
        self.clock = FakeClock()
        self.times = []

    def __call__(self, method, path, headers, body):
        self.times.append(self.clock.now)
        if len(self.times) > 1:
            return 200, {}, b"ok"
        return 429, {"Retry-After": "1", "RateLimit": '"p";r=0;t=30'}, b"slow down"
