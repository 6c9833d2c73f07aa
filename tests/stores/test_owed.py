"""What a store is owed: all of what was admitted and has not recovered, and nothing twice."""

import random

import pytest

from ratekeeper.check import Check
from ratekeeper.limit import Limit
from ratekeeper.rules import counter
from ratekeeper.stores.fallback import BESIDE
from ratekeeper.stores.memory import MemoryStore
from ratekeeper.stores.owed import MOST_KEYS, Owed, memory_store
from ratekeeper.testing import FakeClock

LIMITS = [Limit.parse(text) for text in ("20/minute", "9/minute fixed_window", "5/second sliding_log", "unlimited")]


@pytest.fixture
def clock():
    return FakeClock(start=1_000_000.0)


@pytest.fixture
def owed(clock):
    return Owed(memory_store(clock), [f"s#{index}" for index in range(len(LIMITS))], LIMITS)


def test_what_is_owed_is_what_the_store_would_still_count(owed, clock):
    """A store that had seen every admission, whatever its limits say, and the charges: the same is used in both."""
    chance = random.Random(1)
    model = MemoryStore(clock=clock)
    for _ in range(300):
        for _ in range(chance.randrange(8)):
            clock.move_to(clock.micros + chance.choice([0, 1, 900_000, 20_000_000]))
            key, cost = chance.choice("abc"), chance.choice([1, 1, 2, 5])
            owed.add(key, [cost] * len(LIMITS))
            for index, limit in enumerate(LIMITS):
                model.take((Check(f"s#{index}", key, limit, cost),))
        charges = dict(owed.collect(100))
        for key in "abc":
            used = []
            for index, limit in enumerate(LIMITS):
                checks = (Check(f"s#{index}", key, limit, 1),)
                (decision,) = model.peek(checks)
                used.append(0 if limit.is_unlimited else decision.limit - decision.remaining)
                model.reset(checks)
            assert charges.get(key, (0,) * len(LIMITS)) == tuple(used)
        assert owed.collect(100) == []


def test_what_was_given_back_is_not_owed(owed, clock):
    owed.add("k", [5] * 4)
    owed.subtract("k", 3, clock.micros)
    owed.subtract("other", 3, clock.micros)
    assert owed.collect(10) == [("k", (2, 2, 2, 0))]


def test_keys_are_bounded_and_collected_in_parts(owed):
    for number in range(MOST_KEYS + 10):
        owed.add(f"k{number}", [1] * 4)
    owed.add("k0", [1] * 4)
    assert len(owed.keys) == MOST_KEYS
    first = owed.collect(64)
    assert len(first) == 64
    assert first[0] == ("k0", (2, 2, 2, 0))
    assert len(owed.keys) == MOST_KEYS - 64
    owed.forget()
    assert owed.collect(10) == []


def test_the_fallback_knows_the_spaces_beside_a_rule():
    assert set(BESIDE) == {counter.BLOCKED, counter.REFUSED, counter.GRACED}
