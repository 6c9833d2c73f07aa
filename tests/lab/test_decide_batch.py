"""Many decisions in one call: what the store decides one by one, with its clock at each instant."""

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
    """Ways of several plans, for some subjects, as time goes on and at times steps back."""
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


def ways_on(store, rows, keys, picks):
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
def test_all_at_once_is_one_by_one(seed, url):
    rows, keys, picks, subjects, times = events(seed, plans=1 + seed % 4)
    clock = VirtualClock()
    store = open_in_virtual_time(url, clock)
    allowed, turns, refused = batch_checker(clock, store)(ways_on(store, rows, keys, picks), subjects, times)
    store.close()
    fresh = VirtualClock()
    ways = ways_on(MemoryStore(clock=fresh), rows, keys, picks)
    assert (allowed, turns, refused) == check_each(fresh, ways, subjects, times)
    assert 0 < allowed.count(0) < len(times)
    assert list(array("q", refused)[::3]) == [place for place, flag in enumerate(allowed) if not flag]


def test_one_by_one_is_what_checks_say():
    rows, keys, picks, subjects, times = events(99, plans=3, count=400)
    clock, fake = VirtualClock(), VirtualClock()
    allowed, turns, found = check_each(clock, ways_on(MemoryStore(clock=clock), rows, keys, picks), subjects, times)
    refused = array("q", found)
    told = {place: (row, wait) for place, row, wait in zip(refused[::3], refused[1::3], refused[2::3], strict=True)}
    store = MemoryStore(clock=fake)
    for place, (pick, subject, at) in enumerate(zip(picks, subjects, times, strict=True)):
        fake.move_to(at)
        decisions = ()
        if pick is not None:
            asked = zip(rows[pick], keys[pick][subject], strict=True)
            decisions = store.check(tuple([Check(row[0], encode(key), *row[1:]) for row, key in asked]))
        passed = all(one.allowed for one in decisions)
        assert allowed[place] == passed
        delay = max((one.delay for one in decisions), default=0.0) if passed else 0.0
        assert array("q", turns)[place] == at + round(delay * 1_000_000)
        assert (place in told) is not passed
        if not passed:
            row, wait = told[place]
            waits = [math.inf if one.retry_after is None else one.retry_after for one in decisions]
            assert not decisions[row].allowed
            assert waits[row] == max(waits) == (math.inf if wait == FOREVER else wait / 1_000_000)


def test_nothing_is_decided_where_nothing_is_asked():
    clock = VirtualClock()
    store = open_in_virtual_time("memory://", clock)
    each = batch_checker(clock, store)
    assert each([], [], []) == (b"", b"", b"")
    assert each([(None, None, None)], ["ann"], [7]) == (b"\1", array("q", [7]).tobytes(), b"")


def test_a_cost_that_never_fits_is_refused_for_ever():
    clock = VirtualClock()
    store = open_in_virtual_time("memory://", clock)
    rows = (("a", Limit.parse("1/second"), 1), ("b", Limit.parse("5/second"), 6))
    found = batch_checker(clock, store)([(store.prepare(rows), {"ann": ("ann", "ann")}, None)], ["ann"], [7])
    assert found == (b"\0", array("q", [7]).tobytes(), array("q", [0, 1, FOREVER]).tobytes())


@pytest.mark.skipif(core is None, reason="no native core here")
def test_what_cannot_be_decided_is_told():
    clock = VirtualClock()
    store = open_in_virtual_time("memory://", clock)
    plan = store.prepare((("a", Limit.parse("1/second"), 1),))
    keys = {"ann": ("ann",), "two": ("a", "b"), "empty": ("",)}
    for ways, subjects, times, error in [
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
            core.check_each(ways, subjects, times)


@pytest.mark.skipif(core is None, reason="no native core here")
def test_lists_that_shrink_meanwhile_are_no_danger():
    clock = VirtualClock()
    store = open_in_virtual_time("memory://", clock)
    plan = store.prepare((("a", Limit.parse("1/second"), 1),))

    class Keys(dict):
        def __missing__(self, subject):
            ways.clear(), subjects.clear(), times.clear()
            return (subject,)

    ways, subjects, times = [(plan, Keys())] * 9, [f"c{number}" for number in range(9)], list(range(9))
    with pytest.raises(IndexError):
        core.check_each(ways, subjects, times)
