"""Strategies: the same answers as ``limits`` itself, hit by hit, on the same clock."""

import random
import time

import limits as original
import limits.storage
import limits.strategies
import pytest

from ratekeeper.compat.limits import items
from ratekeeper.compat.limits.errors import ConfigurationError
from ratekeeper.compat.limits.storage import MemoryStorage
from ratekeeper.compat.limits.strategies import STRATEGIES
from tests import tier


class Now:
    """The seconds that ``time.time`` returns."""

    def __init__(self, monkeypatch):
        self.seconds = 1_700_000_000.0
        monkeypatch.setattr(time, "time", lambda: self.seconds)


@pytest.fixture
def now(monkeypatch):
    return Now(monkeypatch)


@pytest.fixture
def their_storage():
    storage = limits.storage.MemoryStorage()
    yield storage
    storage.timer.cancel()
    storage.timer.join()


@pytest.mark.parametrize("name", ["fixed-window", "moving-window"])
def test_every_hit_is_answered_as_before(name, now, their_storage):
    for seed in range(tier.steps(60)):
        chance = random.Random(seed)
        text = f"{chance.randint(1, 9)} per {chance.randint(1, 5)} {chance.choice(['second', 'minute'])}"
        ours, theirs = STRATEGIES[name](MemoryStorage()), limits.strategies.STRATEGIES[name](their_storage)
        mine, other = items.parse(text), original.parse(text)
        for _ in range(80):
            # Never a whole period after another hit: at that very instant limits still counts the hit, and we do not.
            now.seconds += chance.choice([0.0, chance.random() / 4, chance.random() * mine.get_expiry() / 2])
            arguments = f"user {seed}", chance.choice("ab")
            if chance.random() < 0.2:
                assert ours.test(mine, *arguments) == theirs.test(other, *arguments)
            else:
                assert ours.hit(mine, *arguments) == theirs.hit(other, *arguments), (seed, text)
            before, after = theirs.get_window_stats(other, *arguments), ours.get_window_stats(mine, *arguments)
            assert after.remaining == before.remaining
            if before.remaining < mine.amount:
                assert after.reset_time == pytest.approx(before.reset_time, abs=1e-5)
        ours.clear(mine, f"user {seed}", "a")
        assert ours.get_window_stats(mine, f"user {seed}", "a").remaining == mine.amount


def test_the_sliding_counter_admits_no_more_than_before(now, their_storage):
    name = "sliding-window-counter"
    ours, theirs = STRATEGIES[name](MemoryStorage()), limits.strategies.STRATEGIES[name](their_storage)
    mine, other = items.parse("10/minute"), original.parse("10/minute")
    chance, admitted = random.Random(7), [0, 0]
    for _ in range(2000):
        now.seconds += chance.random() * 5
        admitted[0] += ours.hit(mine, "a")
        admitted[1] += theirs.hit(other, "a")
    assert 0.85 * admitted[1] <= admitted[0] <= admitted[1]


def test_a_refused_hit_takes_nothing(now):
    """``limits`` counts a refused hit of a fixed window: a small hit after a large one was refused too."""
    limiter, item = STRATEGIES["fixed-window"](MemoryStorage()), items.parse("5/minute")
    assert limiter.hit(item, "a", cost=3)
    assert not limiter.hit(item, "a", cost=3)
    assert limiter.hit(item, "a", cost=2)


def test_an_amount_of_zero_admits_nothing(now):
    for strategy in STRATEGIES.values():
        limiter, item = strategy(MemoryStorage()), items.parse("0/minute")
        assert not limiter.hit(item, "a")
        assert not limiter.test(item, "a")
        assert limiter.get_window_stats(item, "a") == (now.seconds + 60, 0)
        limiter.clear(item, "a")


def test_a_cost_of_zero_takes_nothing(now):
    limiter, item = STRATEGIES["moving-window"](MemoryStorage()), items.parse("1/minute")
    assert limiter.hit(item, "a", cost=0)
    assert limiter.test(item, "a", cost=0)
    assert limiter.get_window_stats(item, "a").remaining == 1


def test_unused_limits_tell_the_reset_times_of_before(now):
    times = [
        strategy(MemoryStorage()).get_window_stats(items.parse("3/minute"), "a") for strategy in STRATEGIES.values()
    ]
    assert times == [(now.seconds, 3), (now.seconds, 3), (now.seconds + 60, 3)]


def test_a_limit_that_we_cannot_keep_is_a_configuration_error():
    with pytest.raises(ConfigurationError, match="expected"):
        STRATEGIES["fixed-window"](MemoryStorage()).hit(items.parse("5 per 9 years"), "a")


def test_a_storage_of_limits_itself_is_refused(their_storage):
    with pytest.raises(TypeError, match=r"expected one of ratekeeper\.compat\.limits\.storage, got MemoryStorage"):
        STRATEGIES["fixed-window"](their_storage)
