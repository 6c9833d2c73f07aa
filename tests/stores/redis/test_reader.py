"""Which bytes are whole replies: the same in Python and in C, however they are cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratekeeper import native
from ratekeeper.stores.redis.reader import MOST_BYTES, MOST_DEPTH, MOST_LINE, PureReplyFrames, ReplyReader, exactly
from ratekeeper.stores.redis.resp import LONGEST_ERROR, BrokenReply, ErrorReply
from tests import tier

FRAMES = [PureReplyFrames, *([native.core.ReplyFrames] if native.core is not None else [])]


def array(parts):
    return b"*%d\r\n%b" % (len(parts), b"".join(parts))


leaves = st.one_of(
    st.binary(max_size=30).map(lambda text: b"$%d\r\n%b\r\n" % (len(text), text)),
    st.integers(-(10**17), 10**17).map(lambda number: b":%d\r\n" % number),
    st.sampled_from([b"+OK\r\n", b"-ERR x\r\n", b"$-1\r\n", b"*-1\r\n", b"*0\r\n", b"+\r\n"]),
)
replies = st.recursive(leaves, lambda inner: st.lists(inner, min_size=1, max_size=4).map(array), max_leaves=12)
noise = st.lists(
    st.sampled_from([b"*", b"$", b":", b"+", b"-", b"\r\n", b"\n", b"\r", b"-1", b"0", b"1", b"2", b"9" * 9, b"a"]),
    max_size=14,
).map(b"".join)


def read(frames, stream, cuts):
    """What is whole after each part, joined; and whether the stream was found to be none."""
    whole, last = b"", 0
    for cut in [*sorted(cuts), len(stream)]:
        cut = min(cut, len(stream))
        try:
            whole += frames.whole(stream[last:cut])
        except ValueError:
            return None
        last = cut
    return whole


@given(st.lists(replies, max_size=5), st.lists(st.integers(0, 200), max_size=8))
@pytest.mark.parametrize("frames", FRAMES)
def test_whole_replies_pass_however_they_are_cut(frames, sent, cuts):
    stream = b"".join(sent)
    assert read(frames(), stream, cuts) == stream
    assert read(frames(), stream + b"$5\r\nab", cuts) == stream  # the rest is kept


damaged = replies.map(lambda reply: reply[:-1] + b"?")


@given(st.one_of(noise, st.binary(max_size=40), damaged), st.lists(st.integers(0, 60), max_size=8))
def test_both_twins_find_the_same_in_any_bytes(stream, cuts):
    answers = {read(frames(), stream, cuts) for frames in FRAMES}
    assert len(answers) == 1
    assert answers == {read(PureReplyFrames(), stream, [])}  # wherever it is cut


@pytest.mark.parametrize("frames", FRAMES)
def test_bounds_are_kept_at_the_first_byte_beyond(frames):
    for stream in [
        b"+" + b"x" * (MOST_LINE - 1),
        b"$%d\r\n" % (MOST_BYTES + 1),
        b"*1048577\r\n",
        b"*1\r\n" * (MOST_DEPTH + 1),
        b"*2\r\n$%d\r\n" % MOST_BYTES,
        *[b"*1048576\r\n" + b":1\r\n" * 1_048_576] * (tier.FULL or frames is not PureReplyFrames),  # 0.5 s in Python
    ]:
        reader = frames()
        with pytest.raises(ValueError, match="no reply begins or goes on like that"):
            reader.whole(stream)
        with pytest.raises(ValueError, match="no reply"):  # and it stays so
            reader.whole(b"+OK\r\n")
    assert frames().whole(b"+" + b"x" * (MOST_LINE - 2)) == b""
    assert frames().whole(b"*1\r\n" * MOST_DEPTH) == b""


def test_a_reader_makes_values():
    reader = ReplyReader()
    assert reader.feed(b"*2\r\n:1\r\n$2\r\nab\r\n+O") == [[1, b"ab"]]
    (ok, error) = reader.feed(b"K\r\n-ERR \x1b[2J" + b"x" * 500 + b"\r\n")
    assert ok == b"OK"
    assert isinstance(error, ErrorReply)
    assert str(error).isprintable()
    assert len(str(error)) == LONGEST_ERROR
    with pytest.raises(BrokenReply, match=r"spoke another protocol \(no reply begins or goes on like that\)"):
        reader.feed(b"HTTP/1.1 400\r\n")
    with pytest.raises(BrokenReply, match="spoke another protocol"):
        ReplyReader().feed(b":007\r\n")


def test_as_many_replies_as_commands():
    assert exactly([1, 2], 2) == [1, 2]
    with pytest.raises(BrokenReply, match="sent 2 replies to 1 commands"):
        exactly([1, 2], 1)
