"""The in-process store in C: the contract, keys and costs as Python has them, floods, threads and forks."""

import os
import pickle
import random
import subprocess
import sys
import sysconfig
import threading

import pytest

from ratekeeper import Decision, InvalidCost, InvalidInput, InvalidKey, Limit, Limiter, native
from ratekeeper.algorithms import ALGORITHMS
from ratekeeper.keys import encode
from ratekeeper.stores.memory import MemoryStore as PureStore
from ratekeeper.testing import FakeClock, TimedStoreContract
from tests import tier
from tests.stores.prepared import ThroughPrepared, ThroughTables

if native.core is None:
    pytest.skip(native.REASON, allow_module_level=True)

from ratekeeper.stores.native import NativeStore


class TestNativeStore(TimedStoreContract):
    def make_store(self):
        return NativeStore(clock=self.clock)


class TestNativeStoreThroughTables(ThroughTables, TestNativeStore):
    """The same promises of a table's own ``check``, the path that ``Limiter.check`` takes."""


class TestNativeStoreThroughPrepared(ThroughPrepared, TestNativeStore):
    pass


def test_a_key_means_the_same_to_check_and_to_a_plan():
    keys = ["a", "ä", "漢字", "😀", "a\udcff", "x" * 256, "x" * 257, "é" * 256, "é" * 257, b"a", b"x" * 255, b"x" * 256]
    keys += [("a", 1), ("a", b"b", ("c",)), bytearray(b"a1"), memoryview(b"a2"), "s", "b", "t", "h"]
    limiter = Limiter("1/hour", store=NativeStore())
    for key in keys:
        assert limiter.check(key), key
        assert not limiter.check(key), key
        assert not limiter.peek(key), key
        assert not limiter.store.check((limiter._plan(key, 1),))[0], key
        assert not limiter.store.prepare(((limiter.name, limiter.limits, 1),)).check((key,))[0], key
    assert limiter.store.table(limiter.name, limiter.limits).key_table.keys == len(keys)


AIMED = """
from ratekeeper import Limiter, MemoryStore
def region(text):  # of ten, if the interpreter's hash is taken
    mixed = (hash(text) ^ len(text) * 0x9E3779B97F4A7C15) & 2**64 - 1
    return (mixed >> 48) * 10 >> 16
keys = [key for number in range(20_000) if region(key := f"key {number:05}") == 3]
limiter = Limiter("1/day", store=MemoryStore(max_keys=2560))
assert all([limiter.check(key) for key in keys]) and len(keys) > 1500
print(sum(not limiter.check(key) for key in keys) == len(keys))
"""


@pytest.mark.parametrize(("seed", "kept"), [("0", True), ("1", True), ("random", False)])
def test_keys_cannot_be_aimed_where_the_hash_of_the_interpreter_is_no_secret(seed, kept):
    """Whoever knows it, as this script does, fills one region; where it is known in advance, it is not taken."""
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    done = subprocess.run([sys.executable, "-c", AIMED], capture_output=True, text=True, env=environment)
    assert done.stdout == f"{kept}\n", done.stderr


class Text(str):
    def __str__(self):
        return "somebody else"


def test_a_subclass_of_text_is_the_text_it_holds():
    limiter = Limiter("1/hour", store=NativeStore())
    assert limiter.check(Text("k"))
    assert not limiter.check("k")


@pytest.mark.parametrize("wrong", ["", b"", (), None, True, 1.5, ["a"], (1.5,), (True,), object()])
def test_a_key_that_names_nobody_is_refused_as_in_python(wrong):
    with pytest.raises(InvalidKey) as expected:
        encode(wrong)
    for store in (NativeStore(), PureStore()):
        with pytest.raises(InvalidKey) as caught:
            Limiter("1/hour", store=store).check(wrong)
        assert str(caught.value) == str(expected.value)


class Whole:
    def __index__(self):
        return 2


@pytest.mark.parametrize("wrong", [0, -1, True, False, 1.0, float("nan"), "1", None, 10**15, 10**30, -(10**30), [1]])
def test_a_cost_that_is_none_is_refused_as_in_python(wrong):
    messages = set()
    for store in (NativeStore(), PureStore()):
        limiter = Limiter("9/hour", store=store)
        for ask in (limiter.check, limiter.peek, store.table(limiter.name, limiter.limits).check_now):
            with pytest.raises(InvalidCost) as caught:
                ask("k", cost=wrong)
            messages.add(str(caught.value))
        assert limiter.peek("k").remaining == 9
    assert len(messages) == 1


def test_other_whole_numbers_are_costs():
    limiter = Limiter("9/hour", store=NativeStore())
    assert limiter.check("k", Whole()).remaining == 7
    assert limiter.check("k", cost=10**15 - 1).retry_after is None
    assert limiter.check(key="k", cost=2).remaining == 5


@pytest.mark.parametrize(
    "call",
    [
        lambda check: check(),
        lambda check: check("k", 1, 2),
        lambda check: check("k", price=1),
        lambda check: check("k", key="k"),
        lambda check: check("k", 1, cost=1),
        lambda check: check(cost=1),
    ],
)
def test_wrong_arguments_are_a_type_error(call):
    with pytest.raises(TypeError, match="takes a key and, as an option, a cost"):
        call(Limiter("9/hour", store=NativeStore()).check)


def test_a_decision_has_the_face_of_the_one_in_python():
    native_one = Limiter("5/hour", store=NativeStore(clock=FakeClock())).check("k", 2)
    pure_one = Limiter("5/hour", store=PureStore(clock=FakeClock())).check("k", 2)
    given = Decision(True, 5, 3, 0.0, 1440.0, 0.0)
    assert native_one == pure_one == given
    assert type(native_one) is type(pure_one) is type(given) is Decision
    assert len({native_one, pure_one, given}) == 1
    assert repr(native_one) == repr(pure_one) == repr(given)
    for one in (native_one, pure_one, given):
        again = pickle.loads(pickle.dumps(one))
        assert again == one
        assert again.parts() == (again,)
        assert one.parts() == (one,)
        assert one.binding() is one
        for name in ("allowed", "remaining", "anything"):
            with pytest.raises(AttributeError):
                setattr(one, name, 1)
        with pytest.raises(AttributeError):
            del one.allowed
    assert native_one != "Decision"
    assert given != Decision(False, 5, 3, None)
    assert Decision(False, 5, 0, None, 2.5).retry_after is None
    assert not Decision(False, 5, 0, 1.5)
    assert Decision(limit=1, remaining=2, allowed=True).reset_after == 0.0
    with pytest.raises(TypeError):
        Decision(True)
    with pytest.raises(InvalidInput):
        Decision(True, 1, 1, float("nan"))
    with pytest.raises(TypeError):
        native_one < given  # noqa: B015


def test_a_clock_that_answers_nonsense_is_an_error_and_changes_nothing():
    class Wrong(FakeClock):
        answer = 0

        def nanos(self):
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

    clock = Wrong()
    limiter = Limiter("1/second", store=NativeStore(clock=clock))
    for answer in (-1, 2**63, 10**40, 2**52 * 1000, "now", None, ZeroDivisionError("no time")):
        clock.answer = answer
        for ask in (limiter.check, limiter.peek, limiter.reset):
            with pytest.raises((InvalidInput, TypeError, ZeroDivisionError)):
                ask("k")
    clock.answer = (2**52 - 1) * 1000
    assert limiter.check("k")


@pytest.mark.parametrize("limits", [*[f"5/hour {name}" for name in ALGORITHMS], ["5/hour", "9/day sliding_log"]])
def test_a_flood_resets_nobody_who_is_at_the_limit(limits):
    clock = FakeClock(start=1000.0)
    store = NativeStore(clock=clock, max_keys=5_000)
    limiter = Limiter(limits, store=store)
    victims = [f"victim {number}" for number in range(2_500)]
    for victim in victims:
        limiter.check(victim, cost=5)
    for number in range(tier.steps(50_000, 15_000)):
        clock.advance(0.000_001)
        limiter.check(f"flood {number}")
    key_table = store.table(limiter.name, limiter.limits).key_table
    assert key_table.keys <= key_table.slots <= 2 * 5_000 + 8 * 20
    assert not any(limiter.check(victim) for victim in victims)


def test_below_the_bound_nobody_is_forgotten():
    for bound in (1, 7, 100, 5_000):
        limiter = Limiter("1/hour", store=NativeStore(max_keys=bound))
        assert all(limiter.check(f"k{number}") for number in range(bound))
        assert not any(limiter.check(f"k{number}") for number in range(bound)), bound


def test_recovered_keys_make_room():
    clock = FakeClock(start=1000.0)
    for algorithm in ALGORITHMS:
        store = NativeStore(clock=clock, max_keys=1_000)
        limiter = Limiter("5/second", algorithm=algorithm, store=store)
        for wave in range(20):
            for number in range(500):
                limiter.check(f"{wave} {number}", cost=5)
            assert not any(limiter.check(f"{wave} {number}") for number in range(500))
            clock.advance(10)


def test_a_clock_in_python_lets_nobody_in_between():
    """The call of the clock gives other threads a turn: what they wrote then must not be from the future."""

    class Slow(FakeClock):
        def nanos(self):
            with self._moved:
                self.micros += 1
                now = self.micros
            for _ in range(50):
                pass
            return now * 1000

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for algorithm in ALGORITHMS:
            limiter = Limiter("100 per 300 days", algorithm=algorithm, store=NativeStore(clock=Slow()))
            admitted = []

            def run(limiter=limiter, admitted=admitted):
                admitted.append(sum(bool(limiter.check("k")) for _ in range(60)))

            workers = [threading.Thread(target=run) for _ in range(8)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            assert sum(admitted) == 100
    finally:
        sys.setswitchinterval(before)


def test_a_table_that_is_cleared_or_dropped_gives_its_memory_back():
    chance = random.Random(3)
    for algorithm in ALGORITHMS:
        store = NativeStore(max_keys=500)
        limiter = Limiter(["50/hour", Limit(50, "day", algorithm=algorithm)], store=store)
        for _ in range(3):
            for _ in range(2_000):
                limiter.check(f"k{chance.randrange(900)}", cost=chance.randrange(1, 20))
            store.clear()
            assert store.table(limiter.name, limiter.limits).key_table.keys == 0
        limiter.close()


INTERPRETERS = """
import sys
code = "import ratekeeper; limiter = ratekeeper.Limiter('1/hour'); assert limiter.check('k') and not limiter.check('k')"
named = code + "; assert ratekeeper.info()['engine'] == {engine!r}, ratekeeper.info()"
if sys.version_info >= (3, 13):
    import _interpreters as interpreters
    kinds, run = {"legacy": "native", "isolated": "pure"}, interpreters.exec
    make = interpreters.create
else:
    import _xxsubinterpreters as interpreters
    kinds, run = {False: "native", True: "native" if sys.version_info < (3, 12) else "pure"}, interpreters.run_string
    make = lambda kind: interpreters.create(isolated=kind)
for kind, engine in kinds.items():
    for _ in range(3):
        one = make(kind)
        failed = run(one, named.format(engine=engine))
        assert failed is None, failed
        interpreters.destroy(one)
exec(code)
print("ok")
"""


@pytest.mark.skipif(bool(sysconfig.get_config_var("Py_GIL_DISABLED")), reason="it has a build of its own")
def test_each_interpreter_has_its_own():
    """One with a lock of its own, which the stable ABI cannot promise, decides in Python."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", INTERPRETERS], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("ok\n", 0), done.stderr
