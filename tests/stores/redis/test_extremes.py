"""The largest numbers that a limit may hold, through real servers: where a double would round, or text would."""

import itertools
import random

import pytest

from ratekeeper import Limit
from ratekeeper.algorithms import ALGORITHMS, BUCKETS
from ratekeeper.check import Check
from ratekeeper.limit import empty_state
from ratekeeper.stores.redis.store import RedisStore
from ratekeeper.testing import FakeClock
from tests import tier
from tests.twins.test_lua import NOW, extreme_limit

prefixes = itertools.count()
DAYS_400 = 400 * 86_400 * 10**6
LATEST = 3 * 2**50  # microseconds: the year 2077 of a server's clock
MOST = 10**12


@pytest.fixture
def timed(redis_server):
    clock = FakeClock()
    store = RedisStore(redis_server.url, prefix=f"extremes{next(prefixes)}", deadline=10, clock=clock, deny_cache=False)
    yield clock, store
    store.close()


def walk(clock, store, limit, chance, steps, key="k"):
    """Beside the rule itself: the same states and answers, cost by cost at the edge of what still fits."""
    rule, state = limit.rule, empty_state(limit)
    for _ in range(steps):
        left = rule.remaining(state, clock.micros, limit)
        cost = max(1, chance.choice([1, left, left + 1, left // 2, chance.randint(1, limit.capacity)]))
        state, allowed = rule.decide(state, clock.micros, limit, cost)
        (answer,) = store.check((Check("extremes", key, limit, cost),))
        assert answer.allowed == allowed, (str(limit), cost)
        assert answer.remaining == rule.remaining(state, clock.micros, limit)
        assert store.states((Check("extremes", key, limit, 1),))[1] == (state,)
        wait = rule.retry_after(state, clock.micros, limit, cost)
        step = chance.choice([0, 1, wait or 1, max(1, (wait or 1) - 1), limit.micros // 3])
        clock.move_to(min(LATEST, clock.micros + step))


@pytest.mark.parametrize("seed", range(tier.steps(6, 2)))
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_states_are_exact_to_the_last_tick(timed, algorithm, seed):
    chance = random.Random(f"{algorithm} extremes {seed}")
    for number in range(3):
        clock, store = timed
        clock.move_to(chance.choice([NOW, NOW + chance.randrange(10**12), LATEST - 10**9]))
        walk(clock, store, extreme_limit(chance, algorithm), chance, 25, key=str(number))


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "sliding_log"])
def test_a_trillion_is_counted_one_by_one(timed, algorithm):
    """10^12 for 400 days: the last of them is admitted, and the next is not."""
    clock, store = timed
    clock.move_to(NOW)
    limit = Limit(MOST, "400 days", algorithm=algorithm)

    def check(cost):
        return store.check((Check("extremes", "k", limit, cost),))[0]

    assert check(MOST - 2).remaining == 2
    assert [check(1).remaining for _ in range(2)] == [1, 0]
    refused = check(1)
    assert (refused.allowed, refused.remaining) == (False, 0)
    assert refused.retry_after is not None
    wait = round(refused.retry_after * 10**6)
    clock.move_to(NOW + wait - 1)
    assert not check(1)
    clock.move_to(NOW + wait)
    assert check(1)


@pytest.mark.parametrize("algorithm", BUCKETS)
def test_a_bucket_of_2_to_the_52_ticks_loses_none(timed, algorithm):
    """The largest products: a rate of 2^26 - 5 in an odd period, and a burst that is as large as may be."""
    clock, store = timed
    clock.move_to(NOW)
    drain = 2**26 - 5
    burst = 2**52 // drain
    limit = Limit(drain, "9.999991 seconds", burst=burst, algorithm=algorithm)
    assert 2**51 < limit.drain * limit.burst <= 2**52
    chance = random.Random(algorithm)
    walk(clock, store, limit, chance, 120)


def test_a_long_log_of_the_largest_count(timed):
    clock, store = timed
    clock.move_to(LATEST - DAYS_400)
    limit = Limit(2**20, "400 days", algorithm="sliding_log")
    plan = (Check("extremes", "log", limit, 2**19),)
    assert [store.check(plan)[0].remaining for _ in range(2)] == [2**19, 0]
    (refused,) = store.check((Check("extremes", "log", limit, 1),))
    assert (refused.allowed, refused.retry_after) == (False, DAYS_400 / 10**6)
    clock.move_to(LATEST - 1)
    assert not store.check((Check("extremes", "log", limit, 1),))[0]
    clock.move_to(LATEST)
    assert store.check((Check("extremes", "log", limit, 2**20),))[0].remaining == 0
