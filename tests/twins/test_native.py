"""The C twin beside the Python reference: the same random plans on both stores, the same answers and states."""

import random

import pytest

from ratekeeper import native
from ratekeeper.algorithms import ALGORITHMS, BUCKETS
from ratekeeper.check import Check
from ratekeeper.limit import Limit, parse_limits
from ratekeeper.stores.memory import MemoryStore
from ratekeeper.testing import FakeClock
from ratekeeper.testing.contract import live, random_cost, random_step, walk_limits
from tests import tier
from tests.laws.walk import next_instant

if native.core is None:
    pytest.skip(native.REASON, allow_module_level=True)

from ratekeeper.stores.native import NativeStore

EXTREMES = [
    "1 per 1 microsecond",
    "67108864 per 1 microsecond",
    "1/400 days",
    "1000000000000 per 400 days",
    "99999999977/day",
    "1000000000/second",
]


def extreme_limits():
    """The corners of what model.py lets pass: the finest and the coarsest, the largest and the smallest."""
    found = []
    for name in ALGORITHMS:
        for text in EXTREMES:
            if name in BUCKETS and text.startswith("99999999977"):
                continue  # too fine for a bucket: model.py refuses it
            if name == "sliding_log":
                text = text.replace("1000000000000", "1000000").replace("99999999977", "999983")
                text = text.replace("67108864", "1000000").replace("1000000000/", "1000000/")
            found.append(Limit.parse(text, name))
    found.append(Limit.parse("1000000000000 per 400 days sliding_window slices 100"))
    found.append(Limit.parse("3 per 1 microsecond burst 1000000000000 token_bucket"))
    found += [Limit.parse(f"{text} first-use") for text in EXTREMES if "67108864" not in text]
    found += [Limit.parse("1000000000000/day calendar"), Limit.parse("1000000000000/year calendar Asia/Tokyo")]
    found.append(Limit.parse("67108863 per 1 second burst 60000000"))
    found.append(Limit.parse("1 per 70 seconds burst 16000000 leaky_bucket"))
    return found


def answers(decision):
    return (
        decision.allowed,
        decision.limit,
        decision.remaining,
        decision.retry_after,
        decision.reset_after,
        decision.delay,
        decision.at,
    )


def prepared(store, plan):
    """``store.check`` by a prepared plan."""
    ready = store.prepare(tuple([(check.space, check.limit, check.cost) for check in plan]))
    allowed, decisions = ready.check(tuple([check.key for check in plan]))
    assert allowed is all(decision.allowed for decision in decisions)
    return decisions


class Pair:
    """Both stores on one clock, asked the same."""

    def __init__(self, start):
        self.clock = FakeClock(start=start)
        self.pure = MemoryStore(clock=self.clock)
        self.native = NativeStore(clock=self.clock)

    def ask(self, operation, plan, *more):
        if operation == "prepared":
            expected, found = (prepared(store, plan) for store in (self.pure, self.native))
        else:
            expected = getattr(self.pure, operation)(plan, *more)
            found = getattr(self.native, operation)(plan, *more)
        if expected is None:
            assert found is None
            return
        assert [answers(one) for one in found] == [answers(one) for one in expected], (operation, plan)
        for one, other in zip(found, expected, strict=True):
            assert [answers(part) for part in one.parts()] == [answers(part) for part in other.parts()]
            assert answers(one.binding()) == answers(other.binding())

    def compare_states(self, plan):
        (instants, found), (same, expected) = self.native.states(plan), self.pure.states(plan)
        assert instants == same
        for check, now, mine, theirs in zip(plan, instants, found, expected, strict=True):
            assert live(mine, now, check.limit) == live(theirs, now, check.limit), check

    def walk(self, limit, chance, steps, keys=1):
        """With several keys the clock only moves on: Python may have forgotten one by the time it steps back."""
        for _ in range(steps):
            now = next_instant(chance, limit, self.clock.micros)
            self.clock.move_to(now if keys == 1 else max(now, self.clock.micros))
            key, cost = f"key {chance.randrange(keys)}", random_cost(chance, limit)
            plan = (Check("walk", key, limit, cost),)
            kind = chance.random()
            if kind < 0.5:
                expected = self.pure.table("walk", limit).check(key, cost)
                assert answers(self.native.table("walk", limit).check(key, cost)) == answers(expected)
            elif kind < 0.7:
                self.ask("check", plan)
            elif kind < 0.8:
                at = chance.choice([self.clock.micros, max(0, self.clock.micros - chance.randrange(10**7)), 2**60, -5])
                self.ask("refund", plan, at)
            else:
                self.ask(chance.choice(["peek", "take", "debit", "debit", "refund", "reset"]), plan)
            self.ask("peek", plan)
            self.compare_states(plan)


@pytest.mark.parametrize("seed", range(tier.steps(4, 2)))
def test_walks_agree_step_by_step(seed):
    chance = random.Random(seed)
    for limit in walk_limits():
        for keys in (1, 4):
            Pair(chance.choice([0.0, 1_000_000.0, 1_790_000_000.0])).walk(
                limit, chance, steps=tier.steps(80, 30), keys=keys
            )


def test_walks_agree_at_the_extremes():
    chance = random.Random(99)
    for limit in extreme_limits():
        if limit.algorithm == "sliding_log" and limit.count > 1000:
            continue  # its own test: tuples of a million instants are slow in Python
        for start in (0.0, 1_000_000.0, max(0, 3 * 2**50 - 80 * 3 * limit.micros) // 10**6):
            Pair(start).walk(limit, chance, steps=tier.steps(80, 30))


def test_long_logs_agree():
    pair, chance = Pair(1000.0), random.Random(5)
    limit = Limit.parse("5000/second sliding_log")
    for _ in range(60):
        pair.clock.advance(chance.choice([0.0, 0.01, 0.3]))
        plan = (Check("walk", "k", limit, chance.choice([1, 17, 1000, 4000, 5000])),)
        pair.ask(chance.choice(["check", "check", "take", "debit", "peek", "refund"]), plan)
        pair.compare_states(plan)


@pytest.mark.parametrize("seed", range(tier.steps(3, 2)))
def test_plans_of_many_keys_agree(seed):
    chance = random.Random(seed)
    pair = Pair(1_000_000.0)
    limits = walk_limits()
    for _ in range(400):
        pair.clock.move_to(pair.clock.micros + abs(random_step(chance, chance.choice(limits[:6]))))
        plan = tuple(
            Check(f"space {index}", f"key {chance.randrange(4)}", limits[index], random_cost(chance, limits[index]))
            for index in (chance.randrange(len(limits)) for _ in range(chance.randrange(1, 6)))
        )
        pair.ask(chance.choice(["check", "check", "prepared", "prepared", "peek", "take", "refund"]), plan)
        pair.compare_states(plan)


def test_a_limit_that_changes_under_way_agrees():
    chance = random.Random(11)
    for name in ALGORITHMS:
        pair = Pair(1_000_000.0)
        bursts = {} if name in ("fixed_window", "sliding_log", "sliding_window") else {"burst": 3}
        limits = [Limit(count, 3, algorithm=name) for count in (2, 5, 9, 40)]
        limits += [Limit(5, 3, algorithm=name, **bursts)]
        for _ in range(150):
            pair.walk(chance.choice(limits), chance, steps=2)


def test_unlimited_agrees():
    pair, limit = Pair(5.0), parse_limits("unlimited")
    for operation in ("check", "prepared", "peek", "take", "refund", "reset"):
        plan = (Check("walk", "k", limit, 10**15 - 1), Check("walk", "k", limit, 1))
        pair.ask(operation, plan)
        pair.compare_states(plan)
    assert answers(pair.native.table("walk", limit).check("k", 7)) == answers(
        pair.pure.table("walk", limit).check("k", 7)
    )
