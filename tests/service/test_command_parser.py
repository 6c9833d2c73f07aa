"""Commands from bytes: the same for every way to cut them into parts, and bounded in what is kept."""

import re
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ratekeeper.service.command_parser import LONGEST_LINE, CommandParser, ProtocolError
from tests import tier

MOST_BYTES, MOST_WORDS = 1000, 8


def command(*words):
    return b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])


def reference(sent):
    """All commands in ``sent``, and whether it ends ``between`` two, ``inside`` one, or in an ``error``.

    A plain reading of the protocol over bytes that are all here.
    """
    commands, at, has_sent_array = [], 0, False
    while at < len(sent):
        if sent[at : at + 1] != b"*":
            if empty := re.compile(rb"\r?\n").match(sent, at):
                at = empty.end()
            elif sent[at:] == b"\r":
                return commands, "inside"
            elif has_sent_array or not re.compile(rb"[A-Za-z]").match(sent, at):
                return commands, "error"
            elif line := re.compile(rb"[^\n]{1,%d}\n" % (LONGEST_LINE - 1)).match(sent, at):
                commands.append(line.group().split())
                at = line.end()
            else:
                return commands, "inside" if len(sent) - at < LONGEST_LINE else "error"
            continue
        words, size = [], 0
        count, at, state = number(sent, at)
        if state:
            return commands, state
        if count > MOST_WORDS:
            return commands, "error"
        has_sent_array = True
        while len(words) < count:
            if at == len(sent):
                return commands, "inside"
            if sent[at : at + 1] != b"$":
                return commands, "error"
            length, at, state = number(sent, at)
            if state:
                return commands, state
            size += length
            if length < 0 or size > MOST_BYTES:
                return commands, "error"
            word, end = sent[at : at + length], sent[at + length : at + length + 2]
            if len(end) < 2:
                return commands, "inside"
            if end != b"\r\n":
                return commands, "error"
            words.append(word)
            at += length + 2
        if words:
            commands.append(words)
    return commands, "between"


def number(sent, at):
    line = re.compile(rb"[*$](-?[0-9]+)\r\n").match(sent, at)
    if line and len(line.group()) <= 14:
        return int(line.group(1)), line.end(), ""
    end = sent.find(b"\r\n", at, at + 14)
    return 0, at, "error" if end >= 0 or len(sent) - at >= 14 else "inside"


def parsed(parts):
    """The same by the parser, from parts."""
    parser = CommandParser(MOST_BYTES, MOST_WORDS)
    commands = []
    try:
        for part in parts:
            parser.feed(part)
            while (words := parser.next_command()) is not None:
                commands.append(words)
            assert parser.held <= MOST_BYTES + 64 * MOST_WORDS + LONGEST_LINE
            assert parser.is_between == (parser.held == 0)
    except ProtocolError:
        return commands, "error"
    return commands, "between" if parser.is_between else "inside"


def cut(sent, places):
    marks = [0, *sorted({place % (len(sent) + 1) for place in places}), len(sent)]
    return [part for start, end in pairwise(marks) if (part := sent[start:end])]


WORDS = st.one_of(
    st.binary(max_size=12),
    st.sampled_from([b"\r\n", b"\r\n*1\r\n$4\r\nPING\r\n", b"a\nPING\r\n", b"\n*1234", b"$", b"*", b"x" * 300]),
)
COMMANDS = st.lists(WORDS, min_size=1, max_size=MOST_WORDS).map(lambda words: command(*words))
PIECES = st.one_of(
    COMMANDS,
    st.sampled_from([b"\r\n", b"*0\r\n", b"*-1\r\n", b"PING\r\n", b"ECHO a b\n", b"*2\r\n$4\r\nECHO\r\n"]),
)
HOSTILE = st.one_of(
    st.binary(max_size=40),
    st.sampled_from(
        [b"*9\r\n",
         b"*99999999999999\r\n", b"$4\r\n", b"*1\r\n:5\r\n", b"*1\r\n$-1\r\n", b"*1\r\n$1001\r\n", b"*+1\r\n",
         b"*1\r\n$3\r\nabXcd", b"\x16\x03\x01", b"POST / HTTP/1.1\r\n", b"*1\r\n*1\r\n"]
    ),
)  # fmt: skip


@settings(max_examples=tier.examples(500))
@given(st.lists(st.one_of(PIECES, HOSTILE), max_size=6).map(b"".join), st.lists(st.integers(0, 5000), max_size=12))
@example(command(b"ECHO", b"x" * MOST_BYTES), [1, 7, 8])
def test_any_bytes_in_any_parts_give_what_the_reference_reads(sent, places):
    assert parsed(cut(sent, places)) == reference(sent)


@settings(max_examples=tier.examples(100))
@given(st.lists(COMMANDS, min_size=1, max_size=4).map(b"".join))
def test_one_byte_at_a_time_gives_the_same_commands(sent):
    expected = parsed([sent])
    assert expected[1] == "between"
    assert parsed([sent[at : at + 1] for at in range(len(sent))]) == expected


def test_every_cut_of_every_command_in_two():
    commands = [
        [b"CL.THROTTLE", b"user:42", b"15", b"30", b"60"], [b"PING"], [b"ECHO", b""], [b"RK.CHECK", b"a\r\nb", b"3/s"],
    ]  # fmt: skip
    sent = b"".join([command(*words) for words in commands])
    for place in range(len(sent) + 1):
        assert parsed(cut(sent, [place])) == (commands, "between"), place


def test_a_line_end_in_a_word_ends_nothing():
    words = [b"ECHO", b"eve\nCL.THROTTLE eve 1 1 1\r\n*1\r\n$4\r\nQUIT\r\n"]
    assert parsed([command(*words)]) == ([words], "between")


def test_a_program_never_types():
    assert parsed([command(b"PING"), b"PING\r\n"]) == ([[b"PING"]], "error")
    assert parsed([b"*0\r\n", b"PING\r\n"]) == ([], "error")
    assert parsed([b"PING\r\n", command(b"PING")]) == ([[b"PING"], [b"PING"]], "between")
    assert parsed([command(b"PING"), b"\r\n", command(b"ECHO", b"x")])[1] == "between"  # as redis-cli --pipe does


REFUSED = [
    (b"*9\r\n", "expected a command of at most 8 words"),
    (b"*1\r\n$1001\r\n", "expected a command of at most 1000 bytes"),
    (b"*2\r\n$600\r\n" + b"x" * 600 + b"\r\n$600\r\n", "expected a command of at most 1000 bytes"),
    (b"*1\r\n$99999999999999\r\n", "expected a shorter command"),
    (b"*99999999999999", "expected a command of fewer words"),
    (b"*1\r\n:5\r\n", "expected '$', got ':'"),
    (b"*1\r\n$-1\r\n", "expected the length of a word, got a negative one"),
    (b"*1\r\n$x\r\n", "expected a whole number"),
    (b"*1\r\n$3\r\nabcd\r\n", "expected a line end behind a word of the announced length"),
    (b"\x16\x03\x01\x02", "expected '*', got '\\x16'"),
    (b"{", "expected '*', got '{'"),
    (b"A" * LONGEST_LINE, "expected a shorter line"),
    (b"\rA", "expected a shorter line"),
]


@pytest.mark.parametrize(("sent", "message"), REFUSED)
def test_what_can_never_become_a_command_is_refused_at_once(sent, message):
    parser = CommandParser(MOST_BYTES, MOST_WORDS)
    parser.feed(sent)
    with pytest.raises(ProtocolError) as error:
        parser.next_command()
    assert str(error.value) == message


def test_what_is_kept_is_counted():
    parser = CommandParser(MOST_BYTES, MOST_WORDS)
    assert parser.held == 0
    parser.feed(b"*2\r\n$4\r\nECHO\r\n$900\r\n" + b"x" * 100)
    assert parser.next_command() is None
    assert parser.held == 904 + 2 * 64
    assert not parser.is_between
