"""Records: states as bytes and back, what is no state, how long a record is kept, which names records have."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratekeeper import Limit
from ratekeeper.errors import InvalidStore
from ratekeeper.limit import empty_state, parse_limits
from ratekeeper.stores.compare_and_set.record import (
    MOST_REMEMBERED,
    StoredLimit,
    StoredLimits,
    decode_state,
    encode_state,
    lifetime,
    read_state,
)
from ratekeeper.testing.contract import random_cost, walk_limits

numbers = st.integers(-(2**70), 2**700) | st.integers(0, 2**64)
states = st.recursive(numbers, lambda part: st.lists(part, max_size=5).map(tuple), max_leaves=20)


@given(states)
def test_a_state_is_read_as_it_was_written(state):
    assert decode_state(encode_state(state)) == state


@given(st.binary(max_size=60), st.sampled_from([b"", b"n", b"q", b"t", b"t\0\0\0\x02"]))
def test_any_other_bytes_are_a_state_or_a_value_error(record, start):
    for limit in (Limit.parse("5/minute"), Limit.parse("2 concurrent"), Limit.parse("5/minute sliding_log")):
        try:
            state = read_state(start + record, limit)
        except ValueError:
            continue
        limit.rule.decide(state, 10**15, limit, 1)  # whatever it is, the rule can read it


@pytest.mark.parametrize(
    ("limit", "other"),
    [
        ("5/minute", (1, 2)),
        ("5/minute", -1),
        ("5/minute sliding_log", 7),
        ("5/minute sliding_log", ((1,), (2,))),
        ("2 concurrent", (1, 2, 3)),
        ("2 concurrent", ((1,), (2, 3), ())),
        (["5/minute", "9/hour"], 7),
        (["5/minute", "9/hour"], (7,)),
        (["5/minute", "9/hour sliding_log"], (7, 8)),
    ],
)
def test_a_state_of_another_kind_of_limit_is_refused(limit, other):
    with pytest.raises(ValueError, match="it has no state"):
        read_state(encode_state(other), parse_limits(limit))


def test_a_record_is_kept_until_its_state_means_nothing():
    for seed, limit in enumerate([*walk_limits(), Limit.parse("3 concurrent for 10 seconds")]):
        chance, now, state = random.Random(seed), 10**15, empty_state(limit)
        for _ in range(20):
            cost = random_cost(chance, limit)
            changed = limit.rule.decide(state, now, limit, cost)[0]
            state = chance.choice([changed, limit.rule.debit(state, now, limit, cost)])
            ends = now + lifetime(state, now, limit, 1) * 10**6
            assert limit.rule.reset_after(state, ends, limit) == 0
            now += chance.randrange(10**6)


def test_a_withdrawn_lease_is_noted_for_as_long_as_it_could_be_held():
    limit = Limit.parse("3 concurrent for 10 minutes")
    state = limit.rule.give_back(limit.rule.EMPTY, 0, limit, 0, 7, 15_000_000)
    assert lifetime(state, 0, limit, 1) >= 15


def test_names_keep_spaces_layouts_and_keys_apart_and_show_no_key():
    limits = [Limit.parse("5/minute"), Limit.parse("5/hour"), Limit.parse("5/minute sliding_log")]
    names = {
        StoredLimit(space, limit, "rk", secret).name(key)
        for space in ("a", "b\n", "ab")
        for limit in limits
        for key in ("alice", b"alice", "bob")
        for secret in (b"", b"secret")
    }
    assert len(names) == 3 * 3 * 3 * 2
    assert all(name.isascii() and name.isprintable() and " " not in name and len(name) < 100 for name in names)
    assert not any("alice" in name for name in names)
    assert StoredLimit("a", Limit.parse("unlimited"), "rk", b"").name("alice") == ""
    # A limit that reads the same states finds the same record.
    burst = Limit.parse("5/minute burst 9")
    assert StoredLimit("a", burst, "rk", b"").name("k") == StoredLimit("a", limits[0], "rk", b"").name("k")


def test_only_some_keys_are_remembered():
    stored = StoredLimit("a", Limit.parse("5/minute"), "rk", b"")
    for key in range(3 * MOST_REMEMBERED):
        stored.remember(str(key), key, 0, 0)
    assert len(stored.recent) + len(stored.older) <= 2 * MOST_REMEMBERED
    assert stored.recall(str(3 * MOST_REMEMBERED - 1)) == 3 * MOST_REMEMBERED - 1
    assert stored.recall("0") is None


def test_limits_that_are_equal_share_what_is_known_of_them_until_they_are_released():
    limits = StoredLimits("x://", "rk", "", None)
    first, second = Limit.parse("5/minute"), Limit.parse("5/minute")
    stored = limits.layout("s", first)
    assert limits.layout("s", second) is limits.layout("s", first) is stored
    limits.release("s", Limit.parse("5/minute burst 9"))  # it reads the same states
    assert limits.layout("s", first) is not stored


def test_a_log_must_fit_a_record():
    limits = StoredLimits("x://", "rk", "", 1000)
    limits.layout("s", Limit.parse("125/minute sliding_log"))
    limits.layout("s", Limit.parse("1000000/minute"))
    with pytest.raises(InvalidStore) as caught:
        limits.layout("s", Limit.parse("126/minute sliding_log"))
    assert str(caught.value) == (
        "store x://: expected a limit whose state fits a record of 1,000 bytes, got '126/minute sliding_log', "
        "which needs 1,008. Use sliding_window, or a lower count."
    )
