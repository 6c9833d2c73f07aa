"""The script as it is put together, and plans of every shape on real servers beside the store in memory."""

import itertools
import random
import re
import socket
import struct
from importlib.resources import files

import pytest
from hiredis import Reader

from ratekeeper import Limit
from ratekeeper.algorithms import ALGORITHMS, RULES
from ratekeeper.check import Check
from ratekeeper.limit import LimitSet, empty_state, parse_limits
from ratekeeper.stores.memory import MemoryStore
from ratekeeper.stores.redis.layout import RecordLayout
from ratekeeper.stores.redis.request import CheckRequest, command, opened
from ratekeeper.stores.redis.script import KINDS, compose
from ratekeeper.stores.redis.store import RedisStore
from ratekeeper.testing import FakeClock
from ratekeeper.testing.contract import live
from tests import tier

prefixes = itertools.count()
DRIVER = {"redis.lua", "ring.lua", "ring_read.lua", "ring_whole.lua", "ring_write.lua", "upkeep.lua"}


def test_only_the_driver_calls_the_server():
    for room in ("ratekeeper.algorithms", "ratekeeper.stores.redis"):
        for file in files(room).iterdir():
            if file.name.endswith(".lua"):
                text = re.sub(r"--.*", "", file.read_text("utf-8"))
                assert ("call(" in text or "redis." in text) == (file.name in DRIVER), file.name


def test_nothing_of_the_making_is_left_in_the_text():
    for given_time in (False, True):
        text = compose(given_time=given_time).text.decode()
        assert "--" not in text
        assert "include" not in text
        words = set(re.findall(r"\b[A-Z][A-Z_]+\b", re.sub(r"'[^']*'", "", text)))
        assert words == {"KEYS", "ARGV"}  # constants are written in
    assert compose().sha != compose(given_time=True).sha


def test_numbers_never_become_text_by_way_of_a_double():
    """`..` and tostring round above 10^14: only lengths, offsets and times to live may pass through them."""
    for name in DRIVER:
        text = files("ratekeeper.stores.redis").joinpath(name).read_text("utf-8")
        assert "tostring" not in text
        assert "cjson" not in text
        for line in re.findall(r".*\w \.\. ''.*", text):
            assert re.search(r"(ttl|RING|7|1) \.\. ''", line), line
            assert "now" not in line


@pytest.fixture
def stores(any_server):
    clock = FakeClock(start=10.0)
    # Refusals are not remembered: this is about the server.
    remote = RedisStore(any_server.url, prefix=f"script{next(prefixes)}", deadline=10, clock=clock, deny_cache=False)
    yield clock, remote, MemoryStore(clock=clock)
    remote.close()


def figures(decisions):
    return [(one.allowed, one.remaining, one.retry_after, one.reset_after, one.delay) for one in decisions]


def alive(answer, limits):
    """States as far as they still matter: one that has recovered may be there or not."""
    return [live(state, now, limit) for now, state, limit in zip(*answer, limits, strict=True)]


LIMITS = [
    *[Limit(3, "1 minute", algorithm=name) for name in ALGORITHMS],
    Limit(4, "1 minute", algorithm="sliding_window", slices=5),
    Limit(70, "1 minute", algorithm="sliding_log"),
    Limit.parse("2 concurrent for 30 seconds"),
    parse_limits(["5/second", "20/minute", "30/hour"]),
    parse_limits(["5/second", "20/minute fixed_window", "9/minute sliding_window", "30/hour token_bucket"]),
    parse_limits(["5/second sliding_log", "20/minute", "90/minute sliding_log", "9/hour leaky_bucket"]),
    Limit.parse("3/minute first-use"),
    parse_limits(["9 per 3 minutes first-use", "20/day calendar Asia/Kathmandu", "5/second"]),
    parse_limits(["6/minute sliding_window slices 3", "6/minute sliding_window slices 2", "5/second"]),
]


def some_plan(chance):
    found = {}
    for limit in chance.choices([*LIMITS, Limit.parse("7/month")], k=chance.choice([1, 1, 2, 3, 5])):
        check = Check(str(limit), chance.choice("abc"), limit, chance.choice([1, 1, 2, 3, 80]))
        # Of a key that stands twice in a refused plan, only its state is promised if it has several records.
        found[check.space, check.key if isinstance(limit, LimitSet) else len(found)] = check
    return tuple(found.values())


@pytest.mark.parametrize("seed", range(tier.steps(8, 2)))
def test_plans_of_any_shape_and_operation_are_decided_as_in_memory(stores, seed):
    clock, remote, model = stores
    chance = random.Random(f"plans {seed}")
    admitted = refused = 0
    for _ in range(250):
        clock.move_to(clock.micros + chance.choice([0, 0, 1, 10**5, 10**6, 7 * 10**6, 6 * 10**7]))
        plan = some_plan(chance)
        limits = [check.limit for check in plan]
        operation = chance.choice(["check", "check", "check", "check", "peek", "take", "refund", "states", "reset"])
        words = (plan,)
        if operation == "refund" and chance.random() < 0.5:
            words = (plan, max(0, clock.micros - chance.choice([0, 1, 10**6])))
        ours, theirs = getattr(remote, operation)(*words), getattr(model, operation)(*words)
        if operation == "reset":
            continue
        if operation == "states":
            assert alive(ours, limits) == alive(theirs, limits), plan
            continue
        assert figures(ours) == figures(theirs), (operation, plan)
        if operation == "check":
            admitted, refused = admitted + all(ours), refused + (not all(ours))
    assert admitted > 20
    assert refused > 20


@pytest.mark.parametrize("limit", LIMITS, ids=str)
def test_a_refused_plan_mends_what_a_clock_that_stepped_back_left_and_changes_nothing_else(stores, limit):
    clock, remote, _ = stores
    rule, before, began = limit.rule, empty_state(limit), clock.micros
    spent = Check("spent", "k", limit, 2)
    roomy = [Check(f"roomy {number}", "k", other, 1) for number, other in enumerate(LIMITS)]
    clock.advance(7200)
    for _ in range(50):
        before, _ = rule.decide(before, clock.micros, limit, 2)
        remote.check((spent,))
    clock.move_to(began)
    mended, allowed = rule.decide(before, began, limit, 2)
    assert not allowed
    assert mended != before
    for plan in ((roomy[0], spent), (spent, *roomy[:2]), (*roomy, spent)):
        remote.reset((spent,))
        clock.advance(7200)
        for _ in range(50):
            remote.check((spent,))
        clock.move_to(began)
        assert [bool(one) for one in remote.check(plan)] == [check is not spent for check in plan]
        assert remote.states((spent,))[1] == (mended,)
        assert remote.states(tuple(roomy))[1] == tuple([empty_state(check.limit) for check in roomy])


@pytest.mark.parametrize("many", [100, 101, 3000])
def test_a_plan_of_many_subjects_is_still_all_or_nothing(stores, many):
    _, remote, _ = stores
    limit, tight = Limit.parse("2/hour"), Limit.parse("1/hour")
    plan = tuple([Check("s", str(number), limit, 1) for number in range(many)])
    assert all(remote.check(plan))
    last = (*plan[:-1], Check("s", "last", tight, 1))
    assert all(remote.check(last))
    answers = remote.check(last)
    assert [bool(answer) for answer in answers[-2:]] == [False, False]
    assert remote.peek(plan[-1:])[0].remaining == 1
    with_room = (*[Check("s", f"other {number}", limit, 1) for number in range(many)], last[-1])
    assert [bool(answer) for answer in remote.check(with_room)] == [True] * many + [False]
    assert remote.peek(with_room[:1])[0].remaining == 2


@pytest.mark.parametrize("limit", [limit for limit in LIMITS if len(limit.parts) == 1 and not limit.is_leased], ids=str)
def test_an_admission_is_answered_with_the_record_that_was_written(stores, any_server, limit):
    """Which also tells when: nothing is made for the reply alone.  A long log is only glimpsed at."""
    clock, remote, _ = stores
    client = any_server.client()
    layout = remote.translator.layout("answers", limit)
    name = layout.name("k") + layout.subjects[0].suffix
    for _ in range(2):
        clock.advance(0.001)
        reply = asked(any_server, remote, layout, clock.micros)
        assert opened(reply, layout.subjects[0]) == (True, clock.micros, reply)
        assert reply == client.get(name) or layout.subjects[0].ring
    for _ in range(70):
        reply = asked(any_server, remote, layout, clock.micros)
    assert opened(reply, layout.subjects[0]) == (False, clock.micros, reply[8:])
    assert reply[8:] == client.get(name) or layout.subjects[0].ring


def asked(server, remote, layout, now):
    """The bytes that a check is answered with."""
    reader = Reader()
    with socket.create_connection(("127.0.0.1", server.port)) as wire:
        wire.sendall(command([CheckRequest(layout, "k", 1)], b"EVAL", remote.script.text, now))
        while (reply := reader.gets()) is False:
            reader.feed(wire.recv(1 << 16))
    return reply


def test_refusals_at_the_instant_0_and_of_what_was_never_there(stores):
    clock, remote, model = stores
    clock.move_to(0)
    for limit in LIMITS:
        for cost in (10**6, 1, 1, 1, 10**6):
            plan = (Check(str(limit), "zero", limit, cost),)
            assert figures(remote.check(plan)) == figures(model.check(plan)), (limit, cost)


@pytest.mark.parametrize("limit", LIMITS, ids=str)
@pytest.mark.parametrize("reply", [b"", b"OK", b"PONG", b"x" * 11, b"\xff" * 7, b"\xff" * 60])
def test_what_is_no_record_is_no_answer(limit, reply):
    layout = RecordLayout("s", limit)
    if len(layout.subjects) == 1:
        with pytest.raises((ValueError, IndexError, struct.error)):
            opened(reply, layout.subjects[0])


def test_every_rule_has_a_letter():
    assert set(KINDS) == set(RULES)
    assert len(set(KINDS.values())) == len(KINDS)
