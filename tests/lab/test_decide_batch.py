"""Many decisions in one call are those that the store makes one by one, with its clock at each instant."""

import math
import uuid
from array import array
from random import Random

import pytest

from ratekeeper import Limit
from ratekeeper.algorithms import ALGORITHMS
from ratekeeper.check import Check
from ratekeeper.keys import encode
from ratekeeper.lab.clock import VirtualClock, open_in_virtual_time
from ratekeeper.lab.decide_batch import FOREVER, batch_checker, check_each
from ratekeeper.limit import parse_limits
from ratekeeper.native import core
from ratekeeper.stores.memory import MemoryStore
from tests import tier

LIMITS = [
    *[Limit.parse(f"5/second {name}") for name in ALGORITHMS],
    Limit.parse("6/second sliding_window slices 3"),
    Limit.parse("1000000000/second sliding_window"),
    parse_limits(["3/second gcra", "9/minute sliding_log"]),
    parse_limits(["3/second leaky_bucket", "7/minute fixed_window"]),
    Limit.parse("unlimited"),
]


def events(seed, plans, count=1500):
    """Calls of some clients to several plans, at times that mostly go on and sometimes step back."""
    chance = Random(seed)
    names = [f"client {number}" for number in range(12)]
    rows = [
        tuple([(f"space {chance.randrange(3)} {limit}", limit, chance.choice([1, 1, 2])) for limit in limits])
        for limits in [chance.sample(LIMITS, chance.randrange(1, 4)) for _ in range(plans)]
    ]
    keys = [
        {name: tuple([chance.choice([name, "all", (name, 1), b"raw"]) for _ in row]) for name in names} for row in rows
    ]
    picks = [chance.choice([None, *range(plans)]) for _ in range(count)]
    now, times = 1_700_000_000_000_000, []
    for _ in range(count):
        now += chance.choice([0, 0, 1, 1000, 9_000, 60_000, -3_000])
        times.append(now)
    return rows, keys, picks, [chance.choice(names) for _ in range(count)], times


def plans_on(store, rows, keys, picks):
    plans = [store.prepare(row) for row in rows]
    return [(None, {}, None) if pick is None else (plans[pick], keys[pick], None) for pick in picks]


@pytest.fixture(params=["memory://", "shm://"])
def url(request):
    if request.param == "memory://":
        yield request.param
        return
    if core is None:
        pytest.skip("shared memory needs the native core")
    from ratekeeper.stores.shared import remove

    name = f"test-{uuid.uuid4().hex}"
    yield f"shm://{name}"
    remove(name, force=True)


@pytest.mark.parametrize("seed", range(tier.steps(6, 2)))
def test_a_batch_decides_as_single_checks_do(seed, url):
    rows, keys, picks, clients, times = events(seed, plans=1 + seed % 4)
    clock = VirtualClock()
    store = open_in_virtual_time(url, clock)
    allowed, turns, refused = batch_checker(clock, store)(plans_on(store, rows, keys, picks), clients, times)
    store.close()
    fresh = VirtualClock()
    keyed_plans = plans_on(MemoryStore(clock=fresh), rows, keys, picks)
    assert (allowed, turns, refused) == check_each(fresh, keyed_plans, clients, times)
    assert 0 < allowed.count(0) < len(times)
    assert list(array("q", refused)[::3]) == [place for place, flag in enumerate(allowed) if not flag]


def test_the_python_reference_decides_as_the_store_does():
    rows, keys, picks, clients, times = events(99, plans=3, count=400)
    clock, fake = VirtualClock(), VirtualClock()
    allowed, turns, refusals = check_each(clock, plans_on(MemoryStore(clock=clock), rows, keys, picks), clients, times)
    refused = array("q", refusals)
    refusal_at = {
        place: (row, wait) for place, row, wait in zip(refused[::3], refused[1::3], refused[2::3], strict=True)
    }
    store = MemoryStore(clock=fake)
    for place, (pick, client, at) in enumerate(zip(picks, clients, times, strict=True)):
        fake.move_to(at)
        decisions = ()
        if pick is not None:
            pairs = zip(rows[pick], keys[pick][client], strict=True)
            decisions = store.check(tuple([Check(row[0], encode(key), *row[1:]) for row, key in pairs]))
        passed = all(decision.allowed for decision in decisions)
        assert allowed[place] == passed
        delay = max((decision.delay for decision in decisions), default=0.0) if passed else 0.0
        assert array("q", turns)[place] == at + round(delay * 1_000_000)
        assert (place in refusal_at) is not passed
        if not passed:
            row, wait = refusal_at[place]
            waits = [math.inf if decision.retry_after is None else decision.retry_after for decision in decisions]
            assert not decisions[row].allowed
            assert waits[row] == max(waits) == (math.inf if wait == FOREVER else wait / 1_000_000)


def test_an_empty_batch_and_an_unlimited_call():
    clock = VirtualClock()
    store = open_in_virtual_time("memory://", clock)
    check = batch_checker(clock, store)
    assert check([], [], []) == (b"", b"", b"")
    assert check([(None, None, None)], ["ann"], [7]) == (b"\1", array("q", [7]).tobytes(), b"")


def test_a_cost_that_never_fits_is_refused_forever():
    clock = VirtualClock()
    store = open_in_virtual_time("memory://", clock)
    rows = (("a", Limit.parse("1/second"), 1), ("b", Limit.parse("5/second"), 6))
    result = batch_checker(clock, store)([(store.prepare(rows), {"ann": ("ann", "ann")}, None)], ["ann"], [7])
    assert result == (b"\0", array("q", [7]).tobytes(), array("q", [0, 1, FOREVER]).tobytes())


@pytest.mark.skipif(core is None, reason="no native core here")
def test_invalid_arguments_raise():
    clock = VirtualClock()
    store = open_in_virtual_time("memory://", clock)
    plan = store.prepare((("a", Limit.parse("1/second"), 1),))
    keys = {"ann": ("ann",), "two": ("a", "b"), "empty": ("",)}
    for keyed_plans, clients, times, error in [
        ([(plan, keys)], ["bob"], [1], KeyError),
        ([(plan, keys)], ["two"], [1], TypeError),
        ([(plan, keys)], ["empty"], [1], ValueError),
        ([(plan, keys)], ["ann"], [-1], ValueError),
        ([(plan, keys)], ["ann"], [1 << 52], ValueError),
        ([(plan, keys)], ["ann"], [1 << 80], ValueError),
        ([(plan, keys)], ["ann"], ["1"], TypeError),
        ([(plan, keys)], ["ann"], [], ValueError),
        ([(plan, keys)], ("ann",), [1], TypeError),
        ([(plan,)], ["ann"], [1], IndexError),
        ([()], ["ann"], [1], IndexError),
        ([plan], ["ann"], [1], TypeError),
        ([("plan", keys)], ["ann"], [1], TypeError),
        ([(plan, 5)], ["ann"], [1], TypeError),
    ]:
        with pytest.raises(error):
            core.check_each(keyed_plans, clients, times)


@pytest.mark.skipif(core is None, reason="no native core here")
def test_lists_may_shrink_during_the_call():
    clock = VirtualClock()
    store = open_in_virtual_time("memory://", clock)
    plan = store.prepare((("a", Limit.parse("1/second"), 1),))

    class Keys(dict):
        def __missing__(self, client):
            keyed_plans.clear(), clients.clear(), times.clear()
            return (client,)

    keyed_plans, clients, times = [(plan, Keys())] * 9, [f"c{number}" for number in range(9)], list(range(9))
    with pytest.raises(IndexError):
        core.check_each(keyed_plans, clients, times)
