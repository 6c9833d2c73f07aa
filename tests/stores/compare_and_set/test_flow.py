"""Flows, step by step and without a backend: contention, locks, damaged records, plans on several records."""

import pytest

from ratekeeper import Limit
from ratekeeper.check import Check, LeaseCheck
from ratekeeper.errors import StoreUnavailable
from ratekeeper.stores.compare_and_set import flow as module
from ratekeeper.stores.compare_and_set.flow import (
    LONGEST_PAUSE,
    MOST_ATTEMPTS,
    Hold,
    Pause,
    Read,
    Write,
    decide_batch,
    decide_several,
)
from ratekeeper.stores.compare_and_set.record import StoredLimits, encode_state
from ratekeeper.stores.compare_and_set.request import RecordRequest
from ratekeeper.stores.memory import MemoryStore
from tests.stores.backends import DictStore

LIMIT = Limit.parse("5/day")
NOW = 1_700_000_000 * 10**6


@pytest.fixture
def limits():
    return StoredLimits("x://", "rk", "", None)


def request(limits, operation="check", keys="a", cost=1, limit=LIMIT, until=float("inf")):
    made = RecordRequest(operation, tuple(Check("s", key, limit, cost) for key in keys), limits)
    made.until = until
    return made


def start(batch, limits, is_exclusive=False):
    return decide_batch(batch, limits, lambda: NOW, is_exclusive=is_exclusive, least_life=1)


def ended(flow, outcome):
    with pytest.raises(StopIteration) as done:
        flow.send(outcome)
    return done.value.value


def test_one_write_answers_a_batch(limits):
    batch = [request(limits) for _ in range(7)]
    flow = start(batch, limits)
    assert next(flow) == Read(batch[0].records)
    write = flow.send(([(None, "v1")], None))
    assert isinstance(write, Write)
    ((name, version, _, seconds),) = write.changes
    assert (name, version, seconds) == (batch[0].names[0], "v1", 86_401)
    answers = ended(flow, True)
    assert [decision.allowed for (decision,) in answers] == [True] * 5 + [False] * 2


def test_a_batch_that_changes_nothing_writes_nothing(limits):
    flow = start([request(limits, "peek"), request(limits, cost=6)], limits)
    next(flow)
    peeked, refused = ended(flow, ([(None, 0)], None))
    assert (peeked[0].allowed, refused[0].allowed) == (True, False)


def test_a_write_that_comes_too_late_is_decided_again_on_what_is_there(limits):
    flow = start([request(limits, cost=3)], limits)
    next(flow)
    flow.send(([(None, 0)], None))
    pause = flow.send(False)
    assert isinstance(pause, Pause)
    assert 0 <= pause.seconds <= LONGEST_PAUSE
    assert isinstance(flow.send(None), Read)
    state = LIMIT.rule.decide(LIMIT.rule.EMPTY, NOW, LIMIT, 4)[0]
    ((decision,),) = ended(flow, ([(encode_state(state), 1)], None))
    assert (decision.allowed, decision.remaining) == (False, 1)


def lose(flow):
    """Lose every compare-and-set of a flow; the effects it asked for, until it raises."""
    effects = [next(flow)]
    while True:
        yield effects[-1]
        outcome = (
            ([(None, 0)], None) if isinstance(effects[-1], Read) else False if isinstance(effects[-1], Write) else None
        )
        effects.append(flow.send(outcome))


def lost(flow):
    effects: list = []
    with pytest.raises(StoreUnavailable) as caught:
        for_each(effects.append, lose(flow))
    return effects, caught.value


def for_each(function, values):
    for value in values:
        function(value)


def test_attempts_end_and_nothing_was_taken(limits):
    for until, attempts in ((float("inf"), MOST_ATTEMPTS), (0.0, 1)):
        effects, error = lost(start([request(limits, until=until)], limits))
        assert sum(isinstance(effect, Write) for effect in effects) == attempts
        assert error.charged is False
        assert error.why == (f"other processes changed the same record before each of {attempts} attempts to write it")


def test_the_time_of_the_server_decides_if_it_tells_it(limits):
    flow = start([request(limits)], limits)
    next(flow)
    flow.send(([(None, 0)], 12_345))
    ((decision,),) = ended(flow, True)
    assert decision.at == 12_345


def test_a_lock_is_taken_only_to_write_and_then_the_records_are_read_again(limits):
    flow = start([request(limits, "peek")], limits, is_exclusive=True)
    next(flow)
    ended(flow, ([(None, 0)], None))
    flow = start([request(limits, cost=2)], limits, is_exclusive=True)  # of an unknown key: likely to be admitted
    assert next(flow) == Hold()
    assert isinstance(flow.send(None), Read)
    exhausted = encode_state(LIMIT.rule.decide(LIMIT.rule.EMPTY, NOW, LIMIT, 5)[0])
    ended(flow, ([(exhausted, 0)], None))
    flow = start([request(limits, cost=2)], limits, is_exclusive=True)  # likely to be refused
    assert isinstance(next(flow), Read)
    assert flow.send(([(None, 0)], None)) == Hold()  # but it was not
    assert isinstance(flow.send(None), Read)
    state = encode_state(LIMIT.rule.decide(LIMIT.rule.EMPTY, NOW, LIMIT, 3)[0])
    assert isinstance(flow.send(([(state, 0)], None)), Write)
    ((decision,),) = ended(flow, True)
    assert decision.remaining == 0


def test_a_damaged_record_fails_only_the_requests_on_it(limits):
    batch = [request(limits, keys="a"), request(limits, keys="b"), request(limits, "reset", keys="c")]
    flow = start(batch, limits)
    by_name = {batch[0].names[0]: b"?", batch[1].names[0]: None, batch[2].names[0]: b"?"}
    names = next(flow).names
    write = flow.send(([(by_name[name], 0) for name in names], None))
    assert {change.name for change in write.changes} == {batch[1].names[0], batch[2].names[0]}
    damaged, (sound,), _ = ended(flow, True)
    assert isinstance(damaged, StoreUnavailable)
    assert damaged.charged is False
    assert sound.remaining == 4


ROWS = (
    ("a", Limit.parse("5/day"), 2),
    ("b", Limit.parse("3/day sliding_log"), 2),
    ("c", Limit.parse("9/day"), 1),
    ("a", Limit.parse("5/day"), 1),
)


def several(limits, rows=ROWS):
    return RecordRequest("check", tuple(Check("s", key, limit, cost) for key, limit, cost in rows), limits)


def test_a_refused_plan_on_several_records_writes_nothing():
    store, reference = DictStore(deadline=30), MemoryStore()
    plan = several(store.limits).plan
    for _ in range(2):
        answers = [(decision.allowed, decision.remaining) for decision in store.check(plan)]
        expected = [(decision.allowed, decision.remaining) for decision in reference.check(plan)]
        assert answers == expected
    assert store.records.writes == 3


def run(flow, store, refused_at=None, fails_at=None):
    """Carry out the steps of a plan; another process takes all of a record, or the backend fails, before one step."""
    outcome, steps = None, []
    while True:
        try:
            step = flow.send(outcome)
        except StopIteration as done:
            return done.value, steps
        steps.append(step.operation)
        step.until = float("inf")
        if len(steps) == refused_at:
            store.take((Check("s", step.plan[0].key, step.plan[0].limit, 100),))
        outcome = StoreUnavailable("x://", "was lost", charged=None) if len(steps) == fails_at else store.ask(step)


def left(store, plan):
    return [store.peek((check,))[0].remaining for check in plan.plan]


@pytest.mark.parametrize("refused_at", [2, 3, 4])
def test_a_plan_that_loses_a_race_gives_back_what_it_took(refused_at):
    store = DictStore(deadline=30)
    plan = several(store.limits)
    decisions, steps = run(decide_several(plan, store.limits), store, refused_at)
    assert not all(decisions)
    assert steps == ["states", *["check"] * (refused_at - 1), *["refund"] * (refused_at - 2)]
    untouched = left(store, plan)
    expected = [5, 3, 9, 5]
    lost = [place for place, name in enumerate(plan.names) if name == plan.records[refused_at - 2]]
    assert untouched == [0 if place in lost else each for place, each in enumerate(expected)]
    assert [place for place, decision in enumerate(decisions) if not decision] == lost


def test_a_plan_whose_answer_is_lost_gives_back_the_rest():
    store = DictStore(deadline=30)
    plan = several(store.limits)
    with pytest.raises(StoreUnavailable) as caught:
        run(decide_several(plan, store.limits), store, fails_at=3)
    assert caught.value.charged is None
    assert left(store, plan) == [5, 3, 9, 5]


def test_a_plan_with_a_lease_gives_the_lease_back():
    store = DictStore(deadline=30)
    leased = LeaseCheck("s", "a", Limit.parse("2 concurrent"), 1, None, 7, 10**6)
    others = [Check("s", key, Limit.parse("5/day"), 1) for key in "bcdef"]
    plan = RecordRequest("check", (leased, *others), store.limits)
    place = plan.records.index(plan.names[0])
    if place == len(plan.records) - 1:
        return  # the lease is asked for last, so nothing is ever given back
    decisions, steps = run(decide_several(plan, store.limits), store, refused_at=place + 3)
    assert not all(decisions)
    assert "end_leases" in steps
    assert store.peek((leased,))[0].remaining == 2


def test_operations_on_each_record_by_itself_answer_in_the_order_of_the_plan():
    store = DictStore(deadline=30)
    plan = several(store.limits).plan
    assert [decision.remaining for decision in store.take(plan)] == [3, 1, 8, 2]
    leases = [
        LeaseCheck("s", key, Limit.parse("1 concurrent"), 1, None, place + 1, 10**6) for place, key in enumerate("xyx")
    ]
    assert [bool(outcome) for outcome in store.renew(tuple(leases))] == [True, True, False]


def test_leases_that_could_not_be_asked_for_are_told_apart_from_those_that_ended(monkeypatch):
    store = DictStore(deadline=30)
    leases = [
        LeaseCheck("s", key, Limit.parse("1 concurrent"), 1, None, place + 1, 10**6) for place, key in enumerate("xy")
    ]
    request = RecordRequest("renew", tuple(leases), store.limits)
    flow, answers = decide_several(request, store.limits), iter([StoreUnavailable("x://", "is away"), None])
    flow.send(None)
    second = flow.send(next(answers))
    assert ended(flow, store.ask(second))[0] is None
    failing = decide_several(request, store.limits)
    failing.send(None)
    failing.send(StoreUnavailable("x://", "is away"))
    with pytest.raises(StoreUnavailable, match="is away"):
        failing.send(StoreUnavailable("x://", "is away"))


def test_a_refused_plan_mends_a_state_from_the_future(monkeypatch):
    clock = [NOW]
    store, limit = DictStore(deadline=30), Limit.parse("2/minute")
    monkeypatch.setattr(store, "now", lambda: clock[0])
    plan = tuple(Check("s", key, limit, 2) for key in "ab")
    assert all(store.check(plan))
    clock[0] -= 3600 * 10**6
    waits = [decision.reset_after for decision in store.check(plan)]
    clock[0] += 10**6
    assert [decision.reset_after for decision in store.check(plan)] == [wait - 1 for wait in waits]


def test_pauses_grow_and_stay_bounded(limits, monkeypatch):
    monkeypatch.setattr(module, "random", lambda: 1.0)
    effects, _ = lost(start([request(limits)], limits))
    pauses = [effect.seconds for effect in effects if isinstance(effect, Pause)]
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (module.SHORTEST_PAUSE, LONGEST_PAUSE)
