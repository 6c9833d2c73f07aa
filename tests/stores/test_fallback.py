"""What decides while a store cannot: nobody listens on port 1, so these stores never answer."""

import asyncio
import os
import random

import pytest

from ratekeeper import AsyncLimiter, InvalidStore, Limiter, LimitExceeded, StoreUnavailable
from ratekeeper.check import Check
from ratekeeper.flow.settle import ask
from ratekeeper.limit import Limit, parse_limits
from ratekeeper.native import core
from ratekeeper.stores.fallback import ReducedLimit
from ratekeeper.stores.memory import MemoryStore
from ratekeeper.stores.owed import MOST_KEYS
from ratekeeper.stores.redis.aio_store import AsyncRedisStore
from ratekeeper.stores.redis.store import RedisStore
from ratekeeper.testing import FakeClock

NOWHERE = "redis://:secret@127.0.0.1:1/0?deadline=10"
STORES = [MemoryStore]
if core is not None:
    from ratekeeper.stores.native import NativeStore

    STORES.append(NativeStore)


@pytest.fixture
def clock():
    return FakeClock(start=1_000_000.0)


def test_local_counts_a_share_in_this_process(clock):
    limiter = Limiter("10/minute", store=NOWHERE, clock=clock, name="api")
    answers = [limiter.check("k") for _ in range(7)]
    assert [bool(answer) for answer in answers] == [True] * 5 + [False] * 2
    assert [answer.remaining for answer in answers] == [4, 3, 2, 1, 0, 0, 0]
    assert (answers[5].limit, answers[5].retry_after, answers[5].reset_after) == (5, 12.0, 60.0)
    assert answers[0].reason.startswith("local: could not be reached (")
    clock.advance(12)
    assert limiter.check("k")
    assert limiter.peek("other").remaining == 5


@pytest.mark.parametrize(("count", "share", "kept"), [(1, None, 1), (3, None, 1), (1000, 0.25, 250), (10, 1, 10)])
def test_the_share_is_at_least_one(clock, count, share, kept):
    limiter = Limiter(f"{count}/minute", store=NOWHERE, clock=clock, local_share=share)
    assert limiter.check("k").limit == kept


def test_several_limits_keep_their_parts(clock):
    limiter = Limiter(["10/minute", "4/second fixed_window"], store=NOWHERE, clock=clock)
    assert [bool(limiter.check("k")) for _ in range(3)] == [True, True, False]
    refused = limiter.check("k")
    assert [(part.allowed, part.limit, part.remaining) for part in refused.parts()] == [(True, 5, 3), (False, 2, 0)]
    assert (refused.limit, refused.remaining, refused.retry_after) == (2, 0, 1.0)
    assert {part.reason for part in refused.parts()} == {refused.reason}


def test_allow_admits_and_deny_refuses(clock):
    allow = Limiter("1/minute", store=NOWHERE, clock=clock, on_store_error="allow")
    assert [bool(allow.check("k")) for _ in range(3)] == [True] * 3
    assert allow.check("k").reason.startswith("allow: ")
    deny = Limiter("1/minute", store=NOWHERE, clock=clock, on_store_error="deny")
    refused = deny.check("k")
    assert (refused.allowed, refused.remaining, refused.retry_after) == (False, 0, 1.0)
    assert refused.reason.startswith("deny: ")
    assert deny.acquire("k").reason.startswith("deny: ")  # at once: nobody knows when it will be back
    with pytest.raises(LimitExceeded), deny.reserve("k"):
        pass


def test_a_store_that_fails_shows_no_password_and_resets_nothing(clock):
    limiter = Limiter("1/minute", store=NOWHERE, clock=clock)
    with pytest.raises(StoreUnavailable) as caught:
        limiter.reset("k")
    assert "secret" not in str(caught.value)
    assert caught.value.store == "redis://127.0.0.1:1/0"
    assert caught.value.charged is False


def test_each_check_of_a_plan_says_what_it_wants(clock):
    store = RedisStore(NOWHERE, clock=clock)
    limit = Limit.parse("4/minute")

    def decide(*modes):
        plan = tuple([Check("s", f"{mode} key", limit, 1, mode) for mode in modes])
        flow = ask("check", plan)
        flow.send(None)
        effect = flow.throw(StoreUnavailable("here", "is away"))
        assert effect.operation == "fall_back"
        answers = store.fall_back(*effect.arguments)
        with pytest.raises(StopIteration) as done:
            flow.send(answers)
        return done.value.value

    assert all(decide("allow", None))
    decisions = decide("allow", None, "deny")
    assert [decision.allowed for decision in decisions] == [True, True, False]
    assert decisions[0].reason == "allow: is away"
    assert decide(None)[0].remaining == 0  # the plan that was denied took nothing here
    assert not decide("local")[0].allowed or decide("local")[0].remaining == 0


def test_settling_goes_to_whoever_took(clock):
    limiter = Limiter("20/minute", store=NOWHERE, clock=clock)
    with limiter.reserve("k", cost=8) as reservation:
        assert reservation.settle(3).remaining == 7
    with pytest.raises(RuntimeError), limiter.reserve("k", cost=5):
        raise RuntimeError
    assert limiter.peek("k").remaining == 7
    assert limiter.refund("k", cost=3).remaining == 7  # of the store's own: nothing to give back here


def test_acquire_waits_its_turn_without_the_store(clock):
    limiter = Limiter("2/second", store=NOWHERE, clock=clock)
    assert limiter.acquire("k").allowed
    began = clock.now
    assert limiter.acquire("k").allowed
    assert clock.now - began == pytest.approx(1.0)
    assert not limiter.acquire("k", timeout=0.1).allowed


def test_an_outage_hands_nobody_a_fresh_limit(redis_server, clock):
    for number, limits in enumerate(["10/hour", "10/hour sliding_log", ["100/minute", "10/hour fixed_window"]]):
        store = RedisStore(redis_server.url, clock=clock, prefix=f"warm{number}", deadline=10)
        limiter = Limiter(limits, store=store, name="api")
        assert limiter.check("k", cost=8)
        error = StoreUnavailable("here", "is away")
        plan = (Check("api", "k", limiter.limits, 1),)
        # Eight of ten are used, so four of five here.
        assert [bool(store.fall_back("check", error, plan)[0]) for _ in range(3)] == [True, False, False]
        assert limiter.check("k", cost=1)
        assert not store.fall_back("check", error, plan)[0]  # what was counted here is not forgotten either
        store.close()


def test_a_loop_stands_in_too(clock):
    async def main():
        limiter = AsyncLimiter("10/minute", store=NOWHERE, clock=clock)
        answers = [await limiter.check("k") for _ in range(6)]
        assert [bool(answer) for answer in answers] == [True] * 5 + [False]
        assert answers[0].reason.startswith("local: could not be reached (")
        assert (await limiter.peek("k")).remaining == 0
        assert not await limiter.acquire("k", timeout=1)
        async with limiter.reserve("r", cost=4) as reservation:
            assert (await reservation.settle(1)).remaining == 4
        with pytest.raises(StoreUnavailable):
            await limiter.reset("k")
        await limiter.close()

    asyncio.run(main())


def test_mistakes_are_told_at_construction(clock):
    with pytest.raises(InvalidStore) as caught:
        Limiter("1/minute", on_store_error="open")
    assert str(caught.value) == "limiter: expected on_store_error to be local, allow or deny, got 'open'."
    with pytest.raises(InvalidStore) as caught:
        Limiter("1/minute", store=RedisStore(NOWHERE), deadline=1)
    assert str(caught.value) == (
        "store: expected clock, max_keys, deadline and local_share to be given to the store itself, got them beside it."
    )
    assert Limiter("1/minute", on_store_error="deny", deadline=1).check("k")  # in process nothing can fail


def test_scaled_limits_are_always_possible(clock):
    store = RedisStore(NOWHERE, clock=clock, local_share=0.37)
    for text in ("999983/minute", "100000000000/day", "1000000000000/day burst 4503", "7 per 3 microseconds"):
        limit = parse_limits(text)
        scaled = store.fallback.scale(limit)
        assert scaled.micros == limit.micros
        assert 0.37 * limit.count * 0.8 - 1 <= scaled.count <= 0.37 * limit.count


@pytest.mark.parametrize("key", ["text", b"bytes", ("login", 7), "long" * 100])
def test_every_kind_of_key_is_counted_in_one_place(clock, key):
    """A key of bytes or parts had two counters here: one for check, one for everything else."""
    limiter = Limiter("10/minute", store=NOWHERE, clock=clock)
    assert [limiter.check(key).remaining for _ in range(3)] == [4, 3, 2]
    assert limiter.peek(key).remaining == 2
    limiter.reserve(key, cost=2).settle(1)
    assert limiter.check(key).remaining == 0


@pytest.mark.parametrize("make", STORES)
def test_a_share_says_why_in_each_of_its_decisions(clock, make):
    store = make(clock=clock)
    limit = ReducedLimit.__new__(ReducedLimit)
    limit._build("10/minute", 10, 60_000_000, 10, "gcra", 1)
    limit._set(reason="local: is away")
    table = store.table("s", limit)
    told = [
        table.check("k"),
        *store.peek((Check("s", "k", limit, 1),)),
        *store.check((Check("s", "k", limit, 20),)),
        table.check(b"k", cost=11),
    ]
    assert [(one.allowed, one.reason) for one in told] == [
        (True, "local: is away"), (True, "local: is away"), (False, "local: is away"), (False, "local: is away"),
    ]  # fmt: skip
    plain = Limit.parse("10/minute")
    assert plain != limit
    assert store.table("s", plain).check("k").reason == ""
    assert store.peek((Check("s", "k", plain, 1),))[0].remaining == 8  # the states are the same


def test_a_decision_keeps_its_reason_when_the_next_has_another(clock):
    store = RedisStore(NOWHERE, clock=clock)
    plan = (Check("s", "k", Limit.parse("10/minute"), 1),)
    answers = [
        store.fall_back("check", StoreUnavailable("here", why), plan)[0] for why in ("is busy", "is gone", "is busy")
    ]
    assert [one.reason for one in answers] == ["local: is busy", "local: is gone", "local: is busy"]
    assert [one.remaining for one in answers] == [4, 3, 2]


def test_what_was_refused_before_the_outage_stays_refused(redis_server, clock):
    store = RedisStore(redis_server.url, clock=clock, prefix="denied", deadline=10)
    limiter = Limiter("4/hour", store=store, name="api")
    assert [bool(limiter.check("k")) for _ in range(5)] == [True] * 4 + [False]
    store.server.trip("is away")
    store.server.breaker.probe_at = float("inf")  # nobody looks
    refused = limiter.check("k")
    assert (refused.allowed, refused.limit, refused.reason) == (False, 4, "")  # as the store itself had said
    clock.advance(900)
    assert [limiter.check("k").reason for _ in range(2)] == ["local: is away"] * 2
    assert [bool(limiter.check("new")) for _ in range(3)] == [True, True, False]
    store.close()


@pytest.mark.parametrize("make", STORES)
def test_what_is_released_is_new_and_the_rest_is_not(clock, make):
    store = make(clock=clock)
    limit, near, far = (Limit.parse(text) for text in ("10/hour", "11/hour burst 5", "10/day"))
    for space, own in (("s", limit), ("s", far), ("t", limit)):
        store.table(space, own).check("k", 4)
    assert store.release("s", near)  # the same states
    assert store.peek((Check("s", "k", limit, 1),))[0].remaining == 10
    assert store.peek((Check("s", "k", near, 1),))[0].remaining == 5
    assert store.peek((Check("s", "k", far, 1),))[0].remaining == 6
    assert store.peek((Check("t", "k", limit, 1),))[0].remaining == 6


def test_rules_that_are_read_again_know_what_the_store_said(redis_server, clock):
    """A limit that was parsed anew started the outage with a full share."""
    store = RedisStore(redis_server.url, clock=clock, prefix="again", deadline=10)
    for text, times in (("10/hour", 8), ("10/hour", 0)):
        limiter = Limiter(text, store=store, name="api")
        for _ in range(times):
            limiter.check("k")
    store.server.trip("is away")
    store.server.breaker.probe_at = float("inf")
    assert [bool(limiter.check("k")) for _ in range(2)] == [True, False]
    assert store.release("api", limiter.limits)
    assert Limiter("10/hour", store=store, name="api").check("k").remaining == 4  # all is forgotten
    store.close()


def cut_off(store):
    """Begin an outage: nothing is asked until ``reconnect``."""
    server = store.server
    server.reach().wait()  # it may still connect for the first time
    server.drop(server.connection)
    server.trip("is away")
    server.breaker.probe_at = float("inf")


def reconnect(store):
    """End the outage, and wait until the probe has succeeded."""
    server = store.server
    server.breaker.probe_at = 0.0
    server.away()
    attempt = server.attempt
    if attempt is not None:
        attempt.wait()
    assert not server.breaker.is_open, server.breaker.why


LIMITS = [
    "100/minute",
    "100/minute burst 30 token_bucket",
    "100/minute leaky_bucket",
    "100/minute fixed_window",
    "100/minute sliding_log",  # kept as a ring
    "40/minute sliding_log",
    "100/minute sliding_window",
]


@pytest.mark.parametrize("text", LIMITS)
def test_what_was_admitted_in_an_outage_is_charged_when_the_store_is_back(redis_server, clock, text):
    """After an outage the store admitted a whole burst on top of what the fallback had admitted."""
    clock.move_to(clock.micros - clock.micros % 60_000_000)  # a window begins
    store = RedisStore(redis_server.url, clock=clock, prefix=f"owed {text}".replace(" ", "_"), deadline=10)
    limiter = Limiter(text, store=store, name="api")
    capacity = limiter.peek("k").limit
    cut_off(store)
    admitted = [limiter.check("k") for _ in range(capacity)]
    assert {answer.reason for answer in admitted} == {"local: is away"}
    assert sum(map(bool, admitted)) == capacity // 2
    reconnect(store)
    assert limiter.peek("k").remaining == capacity - capacity // 2
    assert sum(bool(limiter.check("k")) for _ in range(capacity)) == capacity - capacity // 2
    store.close()


def test_each_of_several_limits_is_charged_by_itself(redis_server, clock):
    store = RedisStore(redis_server.url, clock=clock, prefix="owed-set", deadline=10)
    limits = ["10/second", "1000/hour fixed_window", "500/hour sliding_log", "unlimited"]
    limiter = Limiter(limits, store=store, name="api")
    cut_off(store)
    for _ in range(20):  # 100 in 20 seconds
        assert sum(bool(limiter.check("k")) for _ in range(8)) == 5
        clock.advance(1)
    reconnect(store)
    parts = limiter.peek("k").parts()
    assert [part.remaining for part in parts][:3] == [10, 900, 400]
    store.close()


def test_what_has_recovered_meanwhile_is_not_charged(redis_server, clock):
    store = RedisStore(redis_server.url, clock=clock, prefix="owed-long", deadline=10)
    limiter = Limiter("60/minute", store=store, name="api")
    cut_off(store)
    admitted = 0
    for _ in range(600):  # ten minutes, in which 30 and then one every two seconds are admitted
        admitted += bool(limiter.check("k"))
        clock.advance(1)
    assert 320 <= admitted <= 330
    reconnect(store)
    assert 59 <= limiter.peek("k").remaining <= 60  # one in two seconds is recovered in one
    store.close()


def test_a_call_that_the_store_may_have_counted_is_not_charged_again(redis_server, clock):
    store = RedisStore(redis_server.url, clock=clock, prefix="owed-once", deadline=10)
    limiter = Limiter("100/hour", store=store, name="api")
    plan = store.prepare((("plan", Limit.parse("100/hour"), 1, None),))
    check = Check("api", "k", limiter.limits, 1)
    for charged, owed in ((None, 0), (False, 1)):
        error = StoreUnavailable("here", "gave no answer", charged)
        cut_off(store)
        assert limiter.check.__self__.fall_back("k", 1, "gave no answer", charged)
        assert store.fall_back("check", error, (check,))[0]
        assert plan.fall_back(("k",), "gave no answer", charged)[0]
        reconnect(store)
        assert limiter.peek("k").remaining == 100 - 2 * owed
        assert store.peek((Check("plan", "k", Limit.parse("100/hour"), 1),))[0].remaining == 100 - owed
    store.close()


def test_what_is_settled_here_is_charged_as_it_was_used(redis_server, clock):
    store = RedisStore(redis_server.url, clock=clock, prefix="owed-settled", deadline=10)
    limiter = Limiter("100/hour", store=store, name="api")
    cut_off(store)
    with limiter.reserve("k", cost=20) as reservation:
        reservation.settle(5)
    with limiter.reserve("k", cost=5) as reservation:
        reservation.settle(9)
    with pytest.raises(RuntimeError), limiter.reserve("k", cost=5):
        raise RuntimeError
    reconnect(store)
    assert limiter.peek("k").remaining == 100 - 5 - 9
    store.close()


def test_closing_a_store_that_is_back_charges_what_is_owed(redis_server, clock):
    store = RedisStore(redis_server.url, clock=clock, prefix="owed-closed", deadline=10)
    limiter = Limiter("100/hour", store=store, name="api")
    limiter.peek("k")
    error = StoreUnavailable("here", "answered OOM")
    assert store.fall_back("check", error, (Check("api", "k", limiter.limits, 30),))[0]
    store.close()
    other = Limiter("100/hour", store=f"{redis_server.url}?prefix=owed-closed&deadline=10", name="api", clock=clock)
    assert other.peek("k").remaining == 70
    other.close()


def test_a_loop_charges_before_it_decides(redis_server, clock):
    async def main():
        store = AsyncRedisStore(redis_server.url, clock=clock, prefix="owed-loop", deadline=10)
        limiter = AsyncLimiter("100/hour", store=store, name="api")
        assert (await limiter.peek("k")).remaining == 100
        server = store.server()
        server.down("is away")
        server.breaker.probe_at = float("inf")
        admitted = [await limiter.check("k") for _ in range(100)]
        assert sum(map(bool, admitted)) == 50
        server.breaker.probe_at = 0.0
        server.away()
        await server.attempt
        answers = await asyncio.gather(*[limiter.check("k") for _ in range(100)])
        assert {answer.reason for answer in answers} == {""}
        assert sum(map(bool, answers)) == 50
        await store.close()

    asyncio.run(main())


def test_what_is_owed_is_bounded(redis_server, clock):
    store = RedisStore(redis_server.url, clock=clock, prefix="owed-many", deadline=10)
    limiter = Limiter("10/hour", store=store, name="api")
    limiter.peek("k")
    cut_off(store)
    for number in range(MOST_KEYS + 500):
        limiter.check(f"k{number}")
    (table,) = store.fallback.owing
    assert len(table.owed.keys) == MOST_KEYS
    reconnect(store)
    while store.fallback.owing:  # the rest, beside the callers
        store.settle()
    assert limiter.peek("k0").remaining == limiter.peek(f"k{MOST_KEYS - 1}").remaining == 9
    store.close()


def test_a_forked_child_charges_nothing_for_its_parent(redis_server, clock):
    store = RedisStore(redis_server.url, clock=clock, prefix="owed-fork", deadline=10)
    limiter = Limiter("100/hour", store=store, name="api")
    limiter.peek("k")
    error = StoreUnavailable("here", "answered OOM")
    assert store.fall_back("check", error, (Check("api", "k", limiter.limits, 30),))[0]
    child = os.fork()
    if not child:
        code = 1
        try:
            code = 0 if limiter.peek("k").remaining == 100 and not store.fallback.owing else 2
            store.close()
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    store.settle()
    assert limiter.peek("k").remaining == 70
    store.close()


@pytest.mark.parametrize(
    ("text", "nodes", "cost"),
    [
        ("3/minute", 4, 1),
        ("1/minute", 2, 1),
        ("1/minute fixed_window", 2, 1),
        ("7/minute token_bucket", 10, 1),
        ("10/minute", 2, 7),
        ("10/minute", 2, 10),
    ],
)
def test_the_shares_of_all_nodes_add_up_to_the_limit(clock, text, nodes, cost):
    """Four nodes with a quarter each of 3 a minute admitted 4 at once; a cost above the share could never pass."""
    limits = [Limiter(text, store=NOWHERE, clock=clock, local_share=1 / nodes, name="api") for _ in range(nodes)]
    full = Limit.parse(text)
    chance, admitted, began = random.Random(text), [], clock.micros
    for _ in range(600):
        clock.move_to(clock.micros + chance.randrange(2_000_000))
        limiter = chance.choice(limits)
        before = clock.micros
        answer = limiter.check("k", cost=cost)
        assert answer.retry_after is not None
        if not answer:
            assert answer.retry_after > 0
            if chance.random() < 0.02:  # who waits as told is admitted, and not a microsecond before
                clock.move_to(before + round(answer.retry_after * 1e6) - 1)
                assert not limiter.peek("k", cost=cost)
                clock.move_to(clock.micros + 1)
                assert limiter.check("k", cost=cost)
                admitted.append((clock.micros, cost))
        else:
            admitted.append((clock.micros, cost))
    total = 0
    for at, taken in admitted:  # since the outage began: the limit, and what it refills
        total += taken
        assert total <= full.capacity + full.count * (at - began) / full.micros + 1e-6
    minutes = (clock.micros - began) / 60e6
    assert total >= full.count * minutes * 0.6  # and nobody is locked out


def test_a_cost_above_the_limit_itself_can_never_pass(clock):
    limiter = Limiter("10/minute", store=NOWHERE, clock=clock)
    assert limiter.check("k", cost=11).retry_after is None
    assert limiter.check("k", cost=6).retry_after == 12.0


def test_a_key_that_the_store_saw_at_its_limit_saves_up_from_there(redis_server, clock):
    store = RedisStore(redis_server.url, clock=clock, prefix="saves", deadline=10, local_share=0.25)
    limiter = Limiter("3/minute", store=store, name="api")
    assert all(limiter.check("k") for _ in range(3))
    cut_off(store)
    assert limiter.check("k").retry_after == 100.0  # 80 s are a cost of 1, and 0.75 of it would be there at once
    assert limiter.check("new").retry_after == 20.0
    store.close()
