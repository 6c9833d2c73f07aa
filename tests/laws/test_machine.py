"""All operations of a Limiter, in any order, at any time: what they say of each other always holds."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ratekeeper import Limiter
from ratekeeper.algorithms import ALGORITHMS
from ratekeeper.testing import FakeClock
from tests import tier

LIMITS = ["5 per 7 seconds", "3/second", ["3/second", "7 per 10 seconds"]]
KEYS = st.sampled_from(["a", "b", ("a", "b")])
COSTS = st.integers(1, 6)


class LimiterMachine(RuleBasedStateMachine):
    @initialize(limits=st.sampled_from(LIMITS), algorithm=st.sampled_from(list(ALGORITHMS)))
    def start(self, limits, algorithm):
        self.clock = FakeClock(start=1000.0)
        self.limiter = Limiter(limits, algorithm=algorithm, clock=self.clock)
        self.algorithm = algorithm
        self.open = []

    def others(self, key):
        return {other: self.limiter.peek(other) for other in ("a", "b", ("a", "b")) if other != key}

    @rule(seconds=st.sampled_from([0.000001, 0.1, 0.333334, 1.0, 7.0, 30.0]))
    def time_passes(self, seconds):
        before = {key: self.limiter.peek(key).remaining for key in ("a", "b")}
        self.clock.advance(seconds)
        for key, left in before.items():
            assert self.limiter.peek(key).remaining >= left

    @rule(key=KEYS, cost=COSTS)
    def check(self, key, cost):
        others, foreseen = self.others(key), self.limiter.peek(key, cost)
        left = self.limiter.peek(key).remaining
        decision = self.limiter.check(key, cost)
        assert decision.allowed == foreseen.allowed == (cost <= left)
        assert decision.delay == foreseen.delay
        assert decision.retry_after == foreseen.retry_after
        assert decision.remaining == left - cost if decision.allowed else decision.remaining == left
        assert self.others(key) == others

    @rule(key=KEYS, cost=COSTS)
    def reserve(self, key, cost):
        reservation = self.limiter.reserve(key, cost)
        if reservation:
            self.open.append((key, cost, reservation))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), actual=st.integers(0, 8))
    def settle(self, data, actual):
        key, cost, reservation = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        before = self.limiter.peek(key).remaining
        after = reservation.settle(actual).remaining
        assert after == self.limiter.peek(key).remaining
        if actual <= cost:
            assert before <= after <= before + cost - actual
        else:
            assert after == max(0, before - (actual - cost))

    @rule(key=KEYS, cost=COSTS)
    def refund(self, key, cost):
        before, others = self.limiter.peek(key).remaining, self.others(key)
        after = self.limiter.refund(key, cost).remaining
        assert before <= after <= before + cost
        assert self.others(key) == others

    @rule(key=KEYS)
    def reset(self, key):
        self.limiter.reset(key)
        fresh = self.limiter.peek(key)
        assert fresh.remaining == fresh.limit
        assert fresh.reset_after == 0.0

    @rule(key=KEYS, cost=COSTS, timeout=st.sampled_from([0.0, 0.2, 1.5, 20.0, None]))
    def acquire(self, key, cost, timeout):
        now, foreseen = self.clock.micros, self.limiter.peek(key, cost)
        left = self.limiter.peek(key).remaining
        decision = self.limiter.acquire(key, cost, timeout=timeout)
        waited = (self.clock.micros - now) / 1e6
        wait = foreseen.delay if foreseen.allowed else foreseen.retry_after
        if wait is None or (timeout is not None and wait > timeout):
            assert not decision.allowed
            assert waited == 0
            assert self.limiter.peek(key).remaining == left
        elif decision.allowed:
            assert timeout is None or waited <= timeout
            assert waited >= wait
        else:  # a queue that must first be waited for, and then in: that was foreseen
            assert self.algorithm == "leaky_bucket"
            assert waited == 0

    @invariant()
    def answers_are_within_bounds(self):
        if not hasattr(self, "limiter"):
            return
        for key in ("a", "b", ("a", "b")):
            decision = self.limiter.peek(key)
            assert 0 <= decision.remaining <= decision.limit
            assert decision.reset_after >= 0
            assert decision.allowed == (decision.remaining >= 1)


LimiterMachine.TestCase.settings = settings(max_examples=tier.examples(60), stateful_step_count=25, deadline=None)
TestLimiter = LimiterMachine.TestCase
