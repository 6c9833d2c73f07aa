"""Logs as a server keeps them stand for the tuples of the rule."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratekeeper.stores.redis.packed_log import LogSummary, PackedLog, is_partial, plain

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


def test_a_summary_tells_how_many_which_blocks_and_the_newest():
    summary = LogSummary((300).to_bytes(3, "big") + (7).to_bytes(7, "big") + (9).to_bytes(7, "big"))
    assert (len(summary), summary[-1], summary[0], summary[1:]) == (300, 9, 7, ())
    empty = LogSummary((2).to_bytes(3, "big") + bytes(7) + (9).to_bytes(7, "big"))
    assert empty[0] == 9  # nothing blocks: all that is read is the newest


def test_states_of_several_limits_are_made_plain_part_by_part():
    assert plain((5, packed((1, 2)), (packed((3,)), 4))) == (5, (1, 2), ((3,), 4))
    assert is_partial((5, LogSummary(bytes(17))))
    assert not is_partial((5, packed((1,))))
