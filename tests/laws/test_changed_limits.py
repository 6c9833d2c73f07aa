"""A bucket whose count changes: the share that was used stays used, and nobody waits longer than for the new limit."""

import random
import uuid
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratekeeper import Limit, Limiter, Policy, Request, native
from ratekeeper.algorithms import BUCKETS
from ratekeeper.check import Check
from ratekeeper.limit import LimitSet
from ratekeeper.rules.parse import parse
from ratekeeper.stores import open_store
from ratekeeper.stores.memory import MemoryStore
from ratekeeper.stores.redis.store import RedisStore
from ratekeeper.stores.shared import remove
from ratekeeper.testing import FakeClock
from tests import tier

needs_core = pytest.mark.skipif(native.core is None, reason="there is no C core")
counts = st.one_of(st.integers(1, 60), st.integers(1, 10**7), st.sampled_from([2**26 - 5, 10**12]))


@pytest.mark.parametrize("algorithm", BUCKETS)
@settings(max_examples=tier.examples(300))
@given(before=counts, after=counts, period=st.sampled_from(["second", "minute", "7 seconds", "day"]), data=st.data())
def test_the_share_that_was_used_stays_used(algorithm, before, after, period, data):
    try:
        old, new = (Limit(count, period, algorithm=algorithm) for count in (before, after))
    except ValueError:  # a rate that cannot be held exactly
        return
    rule, now = old.rule, data.draw(st.integers(0, 2**51))
    used = data.draw(st.integers(1, before))
    state, _ = rule.decide(rule.EMPTY, now, old, used)
    now += data.draw(st.integers(0, old.micros))
    owed = Fraction(rule.backlog(state, now, old), old.drain)
    assert abs(Fraction(rule.backlog(state, now, new), new.drain) - owed) <= 1  # microseconds, of all that is used
    assert abs(rule.reset_after(state, now, new) - rule.reset_after(state, now, old)) <= 1
    if rule.remaining(state, now, new):
        return
    wait = rule.retry_after(state, now, new, 1)
    assert 0 < wait <= -(-new.unit // new.drain) + 1  # as after using it up, and never longer than a period
    assert not rule.decide(state, now + wait - 1, new, 1)[1]
    assert rule.decide(state, now + wait, new, 1)[1]


@pytest.mark.parametrize("algorithm", BUCKETS)
@settings(max_examples=tier.examples(300))
@given(before=counts, after=counts, bursts=st.tuples(counts, counts), data=st.data())
def test_nobody_waits_longer_than_one_period_for_a_burst_that_was_lowered(algorithm, before, after, bursts, data):
    try:
        old = Limit(before, "minute", burst=bursts[0], algorithm=algorithm)
        new = Limit(after, "minute", burst=bursts[1], algorithm=algorithm)
    except ValueError:
        return
    rule, now = old.rule, data.draw(st.integers(0, 2**50))
    state, _ = rule.decide(rule.EMPTY, now, old, data.draw(st.integers(1, old.burst)))
    state, allowed = rule.decide(state, now, new, 1)
    if not allowed:
        wait = rule.retry_after(state, now, new, 1)
        assert 0 < wait <= min(new.micros, -(-new.full // new.drain)) + 1
        assert not rule.decide(state, now + wait - 1, new, 1)[1]
        assert rule.decide(state, now + wait, new, 1)[1]


STORES = ["pure", pytest.param("native", marks=needs_core), pytest.param("shm", marks=needs_core), "redis"]


@pytest.fixture(params=STORES)
def store(request):
    clock, name = FakeClock(start=1_000_000.0), f"changed-{uuid.uuid4().hex}"
    if request.param == "redis":
        url = request.getfixturevalue("redis_server").url
        made = RedisStore(url, clock=clock, prefix=name, deadline=10)
    elif request.param == "pure":
        made = MemoryStore(clock=clock)
    else:
        made = open_store("memory://" if request.param == "native" else f"shm://{name}?max_keys=1000", clock=clock)
    yield made
    made.close()
    if request.param == "shm":
        remove(name)


FAMILIES = [
    [Limit.parse(f"{count}/minute {algorithm}") for count in (1, 3, 7, 10, 90, 1001) for algorithm in BUCKETS],
    [Limit.parse(text) for text in ("3/second burst 9", "7/second burst 2", "10/second", "17/second burst 40")],
    [
        LimitSet([Limit.parse(text) for text in texts])
        for texts in [("3/second", "70/minute"), ("11/second burst 4", "13/minute"), ("2/second", "1000/minute")]
    ],
]


@pytest.mark.parametrize("seed", range(tier.steps(12, 2)))
@pytest.mark.parametrize("family", range(len(FAMILIES)))
def test_every_store_answers_alike_while_limits_change(store, family, seed):
    reference = MemoryStore(clock=store.clock)
    choose = random.Random(f"{seed} {family}")
    for _ in range(tier.steps(300, 60)):
        limit = choose.choice(FAMILIES[family])
        plan = (Check("changed", choose.choice("ab"), limit, choose.choice((1, 1, 2, 5))),)
        operation = choose.choice(("check", "check", "check", "peek", "refund", "debit"))
        expected, (answer,) = getattr(reference, operation)(plan)[0], getattr(store, operation)(plan)
        assert figures(answer) == figures(expected), (limit, operation)
        store.clock.advance(choose.choice((0, 0, 0.000001, 0.1, 1.234567, 20)))


def figures(decision):
    return decision.allowed, decision.remaining, decision.retry_after, decision.reset_after, decision.delay


def admitted(policy, **facts):
    return sum(policy.check(Request(peer="192.0.2.1", **facts)).allowed for _ in range(1000))


RULE = {"name": "api", "by": "ip"}


def test_rules_that_are_read_again_keep_what_was_used(store):
    policy = Policy.parse({"rules": [{**RULE, "limit": "100/minute burst 10"}]}, store=store)
    assert admitted(policy) == 10
    store.clock.advance(1.2)  # two of ten
    policy.replace(parse({"rules": [{**RULE, "limit": "700/minute burst 70"}]}))
    assert admitted(policy) == 14


def test_a_computed_limit_keeps_what_was_used(store):
    limits = ["100/minute"]
    policy = Policy.parse({"rules": [{**RULE, "limit": lambda request: limits[0]}]}, store=store)
    assert admitted(policy) == 100
    store.clock.advance(12)
    limits[0] = "70/minute"
    assert admitted(policy) == 14


def test_another_tier_keeps_what_was_used(store):
    tiers = {"from": "app:plan", "default": "free"}
    limit = {"free": "10/minute", "paid": "70/minute"}
    policy = Policy.parse({"tiers": tiers, "rules": [{**RULE, "limit": limit}]}, store=store)
    assert admitted(policy) == 10
    store.clock.advance(12)
    assert admitted(policy, facts={"plan": "paid"}) == 14
    assert admitted(policy) == 0


def test_a_limiter_of_another_limit_and_the_same_name_keeps_what_was_used(store):
    if "shm" in repr(store):  # there a limiter refuses to be another one
        pytest.skip("shared memory tells two limiters of one name apart")
    old, new = (Limiter(text, store=store, name="api") for text in ("100/minute", "200/minute"))
    assert old.check("k", cost=80)
    assert new.peek("k").remaining == 40


def test_another_period_starts_afresh(store):
    policy = Policy.parse({"rules": [{**RULE, "limit": "10/minute"}]}, store=store)
    assert admitted(policy) == 10
    policy.replace(parse({"rules": [{**RULE, "limit": "600/hour"}]}))
    assert admitted(policy) == 600
