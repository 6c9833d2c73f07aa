"""Lines into columns: in C and in Python, and as the slow path reads them line by line."""

from datetime import UTC, datetime
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratekeeper.lab import log_columns as columns
from ratekeeper.lab.log_columns import Columns
from ratekeeper.lab.log_lines import LineReader
from ratekeeper.native import core

KINDS = [Columns] if core is None else [Columns, core.Columns]
LINE = b'1.2.3.4 - - [01/Mar/2026:12:00:00 +0000] "GET / HTTP/1.1" 200 5'


def seen(piece, zone, kind=None):
    """All that a reader makes of a piece; with no kind, line by line on the slow path."""
    reader = LineReader("access.log", format="common", zone=zone, wants_facts=kind is None)
    if kind is not None:
        reader.columns = kind(zone == "written")
    block = reader.read(piece)
    users = {place: facts["user"] for place, facts in block.facts.items() if "user" in facts}
    return block.times, block.clients, block.request_lines, users, reader.lines, reader.bad, reader.bad_examples


def check_twins(piece):
    for zone in ("written", "ignored"):
        expected = seen(piece, zone)
        for kind in KINDS:
            assert seen(piece, zone, kind) == expected, (kind, zone, piece)


clients = st.sampled_from([b"1.2.3.4", b"::1", b"h\xc3\xb6st", b"\xff", b"", b"a\tb", b"\\xff", b"a\x00b"])
stamps = st.one_of(
    st.builds(
        lambda stamp, zone: stamp.strftime("%d/%b/%Y:%H:%M:%S ").encode() + zone,
        st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31)),
        st.sampled_from([b"+0000", b"-0430", b"+9999", b"-9999", b"+01:0", b"*0000", b"+0a00"]),
    ),
    st.builds(
        lambda day, month, year, clock: f"{day:02}/{month}/{year:04}:{clock} +0000".encode(),
        st.integers(0, 32),
        st.sampled_from(["Feb", "Apr", "Dec", "feb", "Foo"]),
        st.sampled_from([0, 1900, 1969, 1970, 2000, 2023, 2024, 2100, 2112, 2113]),
        st.sampled_from(["00:00:00", "23:59:59", "24:00:00", "12:60:00", "12:00:60", "1:00:00 ", "12.00.00"]),
    ),
)
requests = st.sampled_from(
    [b"GET / HTTP/1.1", b"", b'"', rb"\"", rb"\x16\x03", b"GET /\xc3\xa9 HTTP/1.1", b"\xed\xa0\x80", b"-", b"\xff\xff"]
)
likely = st.builds(
    lambda client, who, stamp, request, rest: client + who + b"[" + stamp + b'] "' + request + b'"' + rest,
    clients,
    st.sampled_from([b" - - ", b" - ann ", b" - - - ", b"  - - ", b" x - "]),
    stamps,
    requests,
    st.sampled_from([b"", b" 200 5", b" 200 5 \"-\" \"\xff agent\"", b"\r", b'"']),
)  # fmt: skip


@st.composite
def damaged(draw):
    """A line with some bytes of it changed, cut out or doubled."""
    line = bytearray(draw(likely))
    for place in draw(st.lists(st.integers(0, max(0, len(line) - 1)), max_size=3)):
        line[place : place + draw(st.integers(0, 2))] = draw(st.binary(max_size=2))
    return bytes(line)


lines = st.one_of(likely, damaged(), st.just(LINE), st.binary(max_size=60)).map(lambda line: line.replace(b"\n", b""))


@given(st.lists(lines, max_size=12))
def test_c_and_python_read_what_the_slow_path_reads(some_lines):
    check_twins(b"".join(line + b"\n" for line in some_lines))


def test_every_day_is_where_the_calendar_has_it():
    start = int(datetime(1970, 1, 1, tzinfo=UTC).timestamp())
    stamps = [datetime.fromtimestamp(start + day * 86_400 + day % 86_400, UTC) for day in range(0, 142 * 365, 3)]
    piece = b"".join(
        b'a - - [%s] "GET / HTTP/1.1" 200 5\n' % stamp.strftime("%d/%b/%Y:%H:%M:%S +0000").encode() for stamp in stamps
    )
    for kind in KINDS:
        times, _, _, odd = kind(True).read(piece)
        assert times == [int(stamp.timestamp()) * 1_000_000 for stamp in stamps]
        assert odd == []


@pytest.mark.parametrize("kind", KINDS)
def test_unusual_lines_come_with_their_place_and_number(kind):
    piece = b"\n".join([b"", LINE, b"garbage", LINE, LINE, b"\xff", b"unfinished"])
    times, clients, texts, odd = kind(True).read(piece)
    assert (len(times), clients, texts) == (3, ["1.2.3.4"] * 3, ["GET / HTTP/1.1"] * 3)
    assert odd == [(0, 1, b""), (1, 3, b"garbage"), (3, 6, b"\xff")]


@pytest.mark.parametrize("kind", KINDS)
def test_more_texts_than_the_cache_holds_are_read_correctly(kind):
    chance = Random(1)
    expected = [f"GET /{chance.randrange(10**9)}/{'x' * chance.randrange(400)} HTTP/1.1" for _ in range(40_000)]
    piece = b"".join(LINE.replace(b"GET / HTTP/1.1", text.encode()) + b"\n" for text in expected)
    reader = kind(True)
    assert reader.read(piece)[2] == expected
    assert reader.read(piece)[2] == expected


@pytest.mark.parametrize("kind", KINDS)
def test_only_bytes_are_read(kind):
    for wrong in ("text", None, 5):
        with pytest.raises((TypeError, AttributeError)):
            kind(True).read(wrong)


@pytest.mark.skipif(core is None, reason="no native core here")
def test_the_native_reader_is_used_if_it_is_built():
    assert isinstance(columns.column_reader(True), core.Columns)
