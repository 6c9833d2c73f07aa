"""Refusals that are remembered: C and Python tell the same, at every instant and for every key and cost."""

import random

import pytest

from ratekeeper import InvalidInput, native
from ratekeeper.decision import Decision, new_decision
from ratekeeper.keys import encode
from ratekeeper.limit import empty_state, parse_limits
from ratekeeper.stores.redis import refusal as refusals
from ratekeeper.testing.contract import walk_limits
from tests import tier

KEYS = ["k", "ключ", "\ud800", "k" * 300, b"k", bytes(300), ("k", 1), (("k",), b"k"), bytearray(b"k")]
PURE = (refusals.Refusal, refusals.Recall)
needs_core = pytest.mark.skipif(native.core is None, reason="there is no C core")


@pytest.fixture(params=["pure", pytest.param("native", marks=needs_core)])
def kinds(request):
    return PURE if request.param == "pure" else (native.core.Refusal, native.core.Recall)


class Nanos:
    """A clock that stands where it is put."""

    def __init__(self):
        self.now = 0

    def __call__(self):
        return self.now


def test_a_refusal_told_later_is_the_rules_own(kinds):
    chance = random.Random(3)
    for limit in walk_limits():
        for _ in range(50):
            sent, now = chance.randrange(2**55), chance.randrange(2**50)
            state, cost, more = empty_state(limit), chance.randrange(1, 9), chance.randrange(3)
            passed = chance.randrange(10**9)
            refusal = kinds[0](limit, cost, state, now, sent, sent + 10**9, False)
            told = refusal.decision(cost + more, sent + passed)
            expected = new_decision(Decision, (False, limit, state, now + passed // 1000, cost + more))
            assert (told, told.at, bool(told)) == (expected, expected.at, False)
            assert (refusal.limit, refusal.cost, refusal.sent, refusal.until) == (limit, cost, sent, sent + 10**9)


def holds(refusal, limit, cost, nanos):
    return refusal is not None and refusal.holds(limit, cost, nanos)


@needs_core
def test_both_find_the_same_on_a_random_walk():
    chance = random.Random(5)
    limits = [parse_limits(text) for text in ("5/minute", "6/minute", "5/minute sliding_log")]
    clock, walked = Nanos(), ({}, {})
    looks = [
        [recall(by_key, limit, clock).hit for limit in limits]
        for (_, recall), by_key in zip((PURE, (native.core.Refusal, native.core.Recall)), walked, strict=True)
    ]
    found = {True: 0, False: 0}
    for _ in range(tier.steps(20_000)):
        act, key = chance.randrange(10), chance.choice(KEYS)
        if act == 0:
            limit, cost, partial = chance.choice(limits), chance.randrange(1, 4), chance.random() < 0.3
            arguments = (limit, cost, empty_state(limit), chance.randrange(2**50), clock.now, clock.now + 50, partial)
            for refusal, by_key in zip((refusals.Refusal, native.core.Refusal), walked, strict=True):
                by_key[encode(key)] = refusal(*arguments)
        elif act == 1:
            for by_key in walked:
                by_key.pop(encode(key), None)
        elif act == 2:
            clock.now = max(0, clock.now + chance.choice([0, 1, 20, 49, 50, -1, -30]))
        else:
            which, cost = chance.randrange(3), chance.randrange(1, 5)
            pure, core = (hits[which](key, cost) for hits in looks)
            assert (pure, pure and pure.at) == (core, core and core.at)
            assert [hits[which].__self__.known(encode(key), cost) for hits in looks] == [pure, core]
            assert (pure is None) == (not holds(walked[1].get(encode(key)), limits[which], cost, clock.now))
            found[pure is not None] += 1
    assert min(found.values()) > tier.steps(300, 30)


def test_a_key_or_cost_that_is_none_is_an_error_once_there_is_something_to_find(kinds):
    refusal, recall = kinds
    limit, clock, by_key = parse_limits("5/minute"), Nanos(), {}
    hit = recall(by_key, limit, clock).hit
    assert hit("k", 1) is None
    by_key["k"] = refusal(limit, 1, 0, 0, 0, 10**9, False)
    for key, cost in (("k", 0), ("k", "1"), ("k", 2.5), ("k", 10**18), (None, 1), (b"", 1), (("k", 1.5), 1)):
        with pytest.raises(InvalidInput):
            hit(key, cost)
    assert hit("", 1) is None
    assert hit("k", 1).at == 0


def test_the_machines_own_clock_is_the_one_python_reads(kinds):
    from time import monotonic_ns

    refusal, recall = kinds
    limit, by_key = parse_limits("5/minute"), {}
    hit = recall(by_key, limit, monotonic_ns).hit
    for _ in range(100):
        sent = monotonic_ns()
        by_key["k"] = refusal(limit, 1, 0, 0, sent, sent + 10**12, False)
        at = hit("k", 1).at
        assert 0 <= at <= (monotonic_ns() - sent) // 1000 + 1
