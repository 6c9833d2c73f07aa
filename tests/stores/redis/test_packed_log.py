"""Logs as a server keeps them stand for the tuples of the rule."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratekeeper.limit import parse_limits
from ratekeeper.stores.redis.packed_log import LogSummary, PackedLog, is_partial, plain, whole_for

INSTANTS = st.lists(st.integers(0, 2**56 - 1), min_size=1, max_size=20).map(lambda found: tuple(sorted(found)))


def packed(instants):
    return PackedLog(b"".join(instant.to_bytes(7, "big") for instant in instants))


@given(INSTANTS, st.data())
def test_a_packed_log_reads_like_its_tuple(instants, data):
    log = packed(instants)
    index = data.draw(st.integers(-len(instants), len(instants) - 1))
    assert (len(log), log[index], log[index:]) == (len(instants), instants[index], instants[index:])
    assert plain(log) == instants
    assert list(log) == list(instants)
    with pytest.raises(IndexError):
        log[len(instants)]


def summary(live, *instants):
    return LogSummary(live.to_bytes(3, "big") + b"".join(instant.to_bytes(7, "big") for instant in instants))


def test_a_summary_tells_how_many_which_blocks_and_the_newest():
    log = summary(300, 6, 7, 9)
    assert (len(log), log.oldest, log[-1], log[0], log[1:]) == (300, 6, 9, 7, ())
    assert summary(300, 0, 0, 9)[0] == 0  # instant 0 is an instant as any other


def test_a_summary_stands_for_its_log_until_the_oldest_leaves_the_window():
    limits = parse_limits(["70/second sliding_log", "90 per 2 seconds sliding_log"])
    assert whole_for(summary(70, 5, 6, 9), 100, limits.limits[0]) == 1_000_000 - 95
    assert whole_for((summary(70, 5, 6, 9), summary(90, 1, 6, 9)), 100, limits) == 1_000_000 - 95
    assert whole_for((packed((5,)), summary(90, 1, 6, 9)), 100, limits) == 2_000_000 - 99
    assert whole_for(summary(0, 0, 0, 0), 100, limits.limits[0]) > 10**15  # of nothing, nothing leaves


def test_states_of_several_limits_are_made_plain_part_by_part():
    assert plain((5, packed((1, 2)), (packed((3,)), 4))) == (5, (1, 2), ((3,), 4))
    assert is_partial((5, LogSummary(bytes(24))))
    assert not is_partial((5, packed((1,))))


@pytest.mark.parametrize(("live", "instants"), [(3, (9, 5, 7)), (3, (5, 9, 7)), (1 << 22, (5, 6, 7))])
def test_a_summary_that_no_log_has_is_refused(live, instants):
    with pytest.raises(ValueError, match="a summary that no log has"):
        summary(live, *instants)


def test_a_loop_over_a_summary_ends():
    """A server that claimed a log from the future made a loop without end."""
    assert list(summary(3, 5, 6, 7)) == [6, 6, 6]
