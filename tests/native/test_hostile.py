"""What Python code can do to the C core while it is being asked: call back, raise, replace, drop, go away."""

import copy
import gc
import pickle
import subprocess
import sys
import threading
import weakref
from contextlib import suppress

import pytest

from ratekeeper import Decision, Limiter, native
from ratekeeper.algorithms import ALGORITHMS
from ratekeeper.check import Check
from ratekeeper.limit import parse_limits
from ratekeeper.testing import FakeClock
from tests import tier

if native.core is None:
    pytest.skip(native.REASON, allow_module_level=True)

from ratekeeper.stores.native import NativeStore

KINDS = [*[f"3/hour {name}" for name in ALGORITHMS], "3/hour sliding_window slices 4", ["3/hour", "9/day sliding_log"]]


class Hostile(FakeClock):
    """A clock that does something each time it is read, but not while it does."""

    def __init__(self, act):
        super().__init__(start=1000.0)
        self.act = act
        self.is_acting = False

    def nanos(self):
        if not self.is_acting:
            self.is_acting = True
            try:
                self.act()
            finally:
                self.is_acting = False
        return super().nanos()


@pytest.fixture(params=KINDS, ids=str)
def limits(request):
    return request.param


def asked(limiter):
    """Each way to ask, once: what a limiter admits of five calls for each of three keys."""
    taken = [limiter.check("k").allowed for _ in range(5)]
    taken += [limiter.store.check((limiter._plan("j", 1),))[0].allowed for _ in range(5)]
    prepared = limiter.store.prepare(((limiter.name, limiter.limits, 1),))
    taken += [prepared.check(("i",))[0] for _ in range(5)]
    limiter.peek("k")
    return taken


def test_a_clock_that_asks_the_same_limiter_ends(limits):
    clock = Hostile(lambda: limiter.check("another"))
    limiter = Limiter(limits, store=NativeStore(clock=clock))
    assert asked(limiter) == [True, True, True, False, False] * 3


def test_a_clock_that_asks_for_the_same_key_takes_from_it(limits):
    clock = Hostile(lambda: limiter.check("k"))
    limiter = Limiter(limits, store=NativeStore(clock=clock))
    assert not any(limiter.check("k") for _ in range(3))


def test_a_clock_that_clears_the_store_leaves_it_whole(limits):
    clock = Hostile(lambda: (limiter.store.clear(), gc.collect(0)))
    limiter = Limiter(limits, store=NativeStore(clock=clock, max_keys=20))
    for number in range(100):
        assert limiter.check(f"key {number % 7}")
        assert limiter.store.check((limiter._plan("k", 1), limiter._plan("j", 2)))[0]
        assert limiter.store.prepare(((limiter.name, limiter.limits, 1),) * 2).check(("k", "j"))[0]
    assert limiter.store.size() == 2


def test_a_clock_that_fills_the_table_moves_what_is_being_asked_for(limits):
    numbers = iter(range(10**6))
    clock = Hostile(lambda: [limiter.check(f"filling {next(numbers)}") for _ in range(40)])
    limiter = Limiter(limits, store=NativeStore(clock=clock, max_keys=10_000))
    assert limiter.check("k", 3)
    assert not limiter.check("k")


def test_a_clock_that_replaces_itself_is_read_to_the_end(limits):
    clock = Hostile(lambda: limiter.store.use_clock(FakeClock(start=2000.0)))
    limiter = Limiter(limits, store=NativeStore(clock=clock))
    gone = weakref.ref(clock)
    clock = None
    assert limiter.check("k", 3)
    gc.collect()
    assert gone() is None
    assert not limiter.check("k")


def test_a_clock_that_closes_the_limiter_lets_the_call_end(limits):
    clock = Hostile(lambda: (limiter.store.close(), gc.collect(0)))
    limiter = Limiter(limits, store=NativeStore(clock=clock))
    assert limiter.check("k", 3)
    assert limiter.store.check((limiter._plan("k", 1),))[0]


def test_a_clock_that_raises_in_the_middle_takes_nothing(limits):
    clock = Hostile(lambda: None)
    limiter = Limiter(limits, store=NativeStore(clock=clock))
    plan = (limiter._plan("k", 1), limiter._plan("j", 1))
    assert limiter.check("k")
    clock.act = lambda: 1 / 0
    for ask in (lambda: limiter.check("k"), lambda: limiter.peek("k"), lambda: limiter.refund("k")):
        with pytest.raises(ZeroDivisionError):
            ask()
    for name in ("check", "peek", "take", "refund", "reset", "states"):
        with pytest.raises(ZeroDivisionError):
            getattr(limiter.store, name)(plan)
    clock.act = lambda: None
    assert limiter.peek("k").remaining == 2
    assert limiter.peek("j").remaining == 3


class Terms:
    """A limit whose numbers are whatever the test says."""

    def __init__(self, limit, **other):
        self.limit, self.other = limit, other

    def __getattr__(self, name):
        if name in self.other:
            if isinstance(self.other[name], Exception):
                raise self.other[name]
            return self.other[name]
        return getattr(self.limit, name)


@pytest.mark.parametrize(
    "other",
    [
        {"count": 0},
        {"count": -1},
        {"count": 2**70},
        {"count": "3"},
        {"micros": 0},
        {"slices": 0},
        {"slices": 101},
        {"drain": 2**27},
        {"unit": 0},
        {"capacity": 10**13},
        {"algorithm": "magic"},
        {"algorithm": None},
        {"limits": ()},
        {"limits": 5},
        {"limits": (parse_limits("1/hour"),) * 65},
        {"drain": RuntimeError("no")},
    ],
    ids=str,
)
def test_a_limit_out_of_bounds_is_an_error(other):
    wrong = Terms(parse_limits("3/hour"), **other)
    for make in (lambda: native.core.shape(wrong, False), lambda: native.core.KeyTable(wrong, 5, bytes(16))):
        with pytest.raises((ValueError, TypeError, OverflowError, RuntimeError)):
            make()


WRONG_PLANS = [None, [], "abc", (None,), (1, 2), (Check("s", 5, parse_limits("1/day"), 1),)]


@pytest.mark.parametrize("plan", WRONG_PLANS, ids=str)
def test_a_plan_that_is_none_is_an_error(plan):
    store = NativeStore()
    for name in ("check", "peek", "take", "refund", "reset", "states"):
        with pytest.raises((TypeError, AttributeError)):
            getattr(store, name)(plan)
    assert store.check(()) == ()


LIMIT = parse_limits("1/day")
WRONG_ROWS = [None, [], "abc", (None,), (1, 2), (("s", LIMIT),)]
WRONG_ROWS += [(("s", LIMIT, 0),), (("s", LIMIT, None),), (("s", 5, 1),)]
WRONG_KEYS = [None, "ab", ["a", "b"], (), ("a",), ("a", "b", "c"), ("a", 5.5), ("a", ""), (None, "b")]


@pytest.mark.parametrize("rows", WRONG_ROWS, ids=str)
def test_rows_that_are_none_prepare_nothing(rows):
    with pytest.raises((TypeError, AttributeError, ValueError)):
        NativeStore().prepare(rows)


@pytest.mark.parametrize("keys", WRONG_KEYS, ids=str)
def test_keys_that_do_not_fit_a_prepared_plan_are_an_error_and_take_nothing(keys):
    store = NativeStore()
    prepared = store.prepare((("s", LIMIT, 1), ("z", LIMIT, 1)))
    with pytest.raises((TypeError, ValueError)):
        prepared.check(keys)
    assert store.size() == 0
    assert prepared.check(("a", "b"))[0]
    assert store.prepare(()).check(()) == (True, ())
    with pytest.raises(TypeError):
        type(prepared)()


def test_a_prepared_plan_outlives_its_store_and_forgotten_tables():
    store = NativeStore(clock=FakeClock(start=1000.0))
    check = store.prepare((("s", LIMIT, 1), ("z", LIMIT, 1))).check
    assert check(("a", "a"))[0]
    store.forget_tables()
    assert [one.allowed for one in check(("a", "b"))[1]] == [False, True]
    store.use_clock(FakeClock(start=90_000.0))
    store.close()
    del store
    gc.collect()
    assert check(("a", "b"))[0]


@pytest.mark.parametrize("count", [1, 8, 40])
def test_a_prepared_plan_may_be_long(count):
    store = NativeStore()
    limits = [parse_limits(KINDS[number % len(KINDS)]) for number in range(count)]
    prepared = store.prepare(tuple([(f"s{number}", limit, 1) for number, limit in enumerate(limits)]))
    for turn in range(5):
        allowed, decisions = prepared.check(tuple(["k"] * count))
        assert (allowed, len(decisions)) == (turn < 3, count)
        assert {one.remaining for one in decisions} == {max(0, 2 - turn)}


def test_tables_and_shelves_refuse_what_does_not_fit():
    core, limit = native.core, parse_limits("3/hour")
    key_table = core.KeyTable(limit, 5, bytes(16))
    for make in (
        lambda: core.KeyTable(limit, 0, bytes(16)),
        lambda: core.KeyTable(limit, 5, bytes(15)),
        lambda: core.KeyTable(limit, 5, bytes(16), bytearray(64)),
        lambda: core.KeyTable(limit, 5, bytes(16), bytes(10**6)),
        lambda: core.Table(key_table, parse_limits("3/hour sliding_log")),
        lambda: core.Table(key_table, limit, nanos=5),
        lambda: core.Table(5, limit),
        lambda: core.Terms(),
        lambda: core.make_guards(limit, 5, bytearray(10)),
        lambda: core.new_decision(Decision, (1, 2)),
        lambda: core.Refusal(limit, 1, 0, 0, 0),
        lambda: core.Refusal(limit, 1, 0, "now", 0, 1, False),
        lambda: core.Refusal(limit, 1, 0, 0, 0, 9, False).decision(0, 5),
        lambda: core.Refusal(limit, 1, 0, 0, 5, 9, False).decision(1, 4),
        lambda: core.Refusal(limit, 1, 0, 0, 5, 9, False).decision(1, 10),
        lambda: core.Recall([], limit, int),
        lambda: core.Recall({}, limit, 5),
        lambda: core.Recall({"k": 5}, limit, int).hit("k", 1),
        lambda: core.Recall({}, limit, int).hit("k"),
        lambda: core.Recall({}, limit, int).known("k", 1, 2),
        lambda: core.Recall({}, limit, int).known([], 1),
        lambda: setattr(core.Table(key_table, limit), "nanos", 5),
        lambda: delattr(core.Table(key_table, limit), "nanos"),
        lambda: setattr(Decision, "allowed", True),
    ):
        with pytest.raises((ValueError, TypeError, AttributeError, BufferError, OSError)):
            make()
    assert core.Table(core.KeyTable(limit, 2**63, bytes(16)), limit).check("k")


def test_refusals_beyond_the_numbers_of_c_are_errors():
    limit = parse_limits("3/hour")
    for cost, now, sent, until in ((0, 0, 0, 1), (1, -1, 0, 1), (1, 0, -1, 1), (1, 0, 2, 1), (1, 2**60, 0, 1),
                                   (1, 2**63 // 1000, 0, 10**9), (2**64, 0, 0, 1), (1, 0, 0, 2**63)):  # fmt: skip
        with pytest.raises(OverflowError):
            native.core.Refusal(limit, cost, 0, now, sent, until, False)
    hit = native.core.Recall({"k": native.core.Refusal(limit, 1, 0, 0, 0, 9, False)}, limit, lambda: 2**63).hit
    with pytest.raises(OverflowError):
        hit("k", 1)


def test_a_clock_that_forgets_what_is_looked_up_does_no_harm():
    limit, by_key = parse_limits("3/hour"), {}

    def forget():
        by_key.clear()
        gc.collect()
        return 5

    hit = native.core.Recall(by_key, limit, forget).hit
    by_key["k"] = native.core.Refusal(limit, 1, (1, 2), 7, 0, 9, False)
    assert hit("k", 1).at == 7
    assert hit("k", 1) is None


def test_a_decision_is_copied_and_pickled(limits):
    limiter = Limiter(limits, store=NativeStore(clock=FakeClock()))
    for cost in (1, 2, 1, 10**15 - 1):
        decision = limiter.check("k", cost)
        pickled = [pickle.loads(pickle.dumps(decision, protocol)) for protocol in range(6)]
        for again in (copy.copy(decision), copy.deepcopy(decision), *pickled):
            assert again == decision
            assert hash(again) == hash(decision)
            assert repr(again) == repr(decision)
            assert bool(again) is decision.allowed


def test_decisions_outlive_their_limiter_and_its_store(limits):
    limiter = Limiter(limits, store=NativeStore(clock=FakeClock()))
    kept = [limiter.check("k") for _ in range(300)]  # more than are kept for later use
    expected = [repr(decision) for decision in kept]
    limiter.store.close()
    del limiter
    gc.collect()
    assert [repr(decision) for decision in kept] == expected
    del kept[::2]
    assert [repr(decision) for decision in kept] == expected[1::2]


def test_calls_keep_no_reference_to_what_they_are_given(limits):
    clock, ways = Hostile(lambda: None), []
    limiter = Limiter(limits, store=NativeStore(clock=clock))
    key, other, cost, wrong = str(10**6), ("a", 10**6), int("1234567890"), object()
    plan = (limiter._plan(key, 1), limiter._plan(other, 2))
    for ask in (limiter.check, limiter.peek):
        ways += [lambda ask=ask: ask(key), lambda ask=ask: ask(other, cost), lambda ask=ask: ask(key=key, cost=cost)]
        ways += [lambda ask=ask: ask(wrong), lambda ask=ask: ask(key, wrong), lambda ask=ask: ask(key, key=key)]
    for name in ("check", "peek", "take", "refund", "reset", "states"):
        ask = getattr(limiter.store, name)
        ways += [lambda ask=ask: ask(plan), lambda ask=ask: ask((plan[0], wrong)), lambda ask=ask: ask(wrong)]
    rows = ((limiter.name, limiter.limits, cost), (limiter.name, limiter.limits, 2))
    for ask in (limiter.store.prepare(rows).check, lambda keys: limiter.store.prepare(rows).check(keys)):
        ways += [lambda ask=ask: ask((key, other)), lambda ask=ask: ask((key, wrong)), lambda ask=ask: ask(wrong)]
    ways += [lambda: limiter.store.prepare((rows[0], wrong)), lambda: limiter.store.prepare((*rows, ("s", wrong, 1)))]
    watched = [key, other, cost, wrong, plan, *plan, rows, *rows, limiter.limits, clock, limiter.store, Decision]

    def run(act):
        clock.act = act
        for way in ways:
            for _ in range(tier.steps(20)):
                with suppress(TypeError, ValueError, AttributeError, ZeroDivisionError):
                    repr(way())

    for act in (lambda: None, lambda: 1 / 0):
        run(act)  # the first time makes tables
        gc.collect()
        before = [sys.getrefcount(one) for one in watched]
        run(act)
        gc.collect()
        assert [sys.getrefcount(one) for one in watched] == before


def test_a_store_in_a_cycle_is_collected():
    class Clock(FakeClock):
        pass

    clock = Clock()
    clock.store = NativeStore(clock=clock)
    limiter = Limiter("3/hour", store=clock.store)
    clock.store.check((limiter._plan("k", 1),))
    clock.check = limiter.check
    gone = weakref.ref(clock)
    del clock, limiter
    gc.collect()
    assert gone() is None


def test_keys_of_any_length_and_letters_are_kept_apart():
    limiter = Limiter("1/hour", store=NativeStore())
    keys = [*("x" * size for size in range(1, 300)), *("é" * size for size in range(1, 300)), "x" * 10**7, "漢" * 10**6]
    keys += ["\0", "\0\0", "a\0", "a\0b", "\ud800", "\udfff", "\ud800\udfff", "\U0010ffff"]
    keys += ["BA", "\u4142", "A\0\1\0", "A\1", "\U00010041"]  # the same in memory, but for the width of a letter
    keys += [b"\0", b"\0\0", b"\xff" * 10**6]
    keys += [(number,) for number in (0, -1, 2**64, -(2**64), 10**4000)]
    assert all(limiter.check(key) for key in keys)
    assert not any(limiter.check(key) for key in keys)


def test_a_deep_tuple_is_an_error_not_a_crash():
    key = "k"
    for _ in range(100_000):
        key = (key,)
    with pytest.raises((RecursionError, ValueError)):
        Limiter("1/hour", store=NativeStore()).check(key)


def test_threads_that_clear_ask_and_change_the_clock_at_once():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    store = NativeStore(clock=FakeClock(start=1000.0), max_keys=50)
    limiters = [Limiter(limits, store=store, name=str(limits)) for limits in KINDS]
    prepared = store.prepare(tuple([(limiter.name, limiter.limits, 1) for limiter in limiters[-2:]]))
    failed = []

    def run(number):
        try:
            for turn in range(300):
                limiter = limiters[(turn + number) % len(limiters)]
                limiter.check(f"k{turn % 90}", cost=1 + turn % 3)
                store.check((limiter._plan("a", 1), limiters[0]._plan("b", 1)))
                prepared.check((f"k{turn % 90}", "b"))
                if turn % 50 == number:
                    store.clear()
                    store.use_clock(FakeClock(start=1000.0 + turn))
        except BaseException as error:
            failed.append(error)

    try:
        workers = [threading.Thread(target=run, args=(number,)) for number in range(8)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    finally:
        sys.setswitchinterval(before)
    assert not failed


SHUTDOWN = """
import atexit, threading, time
from ratekeeper import Limiter
limiter = Limiter(["3/hour", "9/day sliding_log"])
kept = [limiter.check(("a", 1)) for _ in range(100)]
class Last:
    def __init__(self):
        self.check = limiter.check
    def __del__(self):
        try:
            self.check("k"), self.check(("a", 1), 2)
        except BaseException:
            pass  # what it needs may be gone; it may fail, but not crash
last = Last()
import sys
sys.last = last
atexit.register(lambda: print(limiter.check("k").allowed))
def forever():
    while True:
        limiter.check("k")
threading.Thread(target=forever, daemon=True).start()
"""


def test_an_interpreter_that_ends_is_left_in_peace():
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", SHUTDOWN], capture_output=True, text=True, timeout=100)
        assert (done.returncode, done.stdout) in ((0, "True\n"), (0, "False\n")), done.stderr
