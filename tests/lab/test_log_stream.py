"""Files of any compression, merge_by_time by time, in blocks."""

import bz2
import codecs
import gzip
import io
import lzma
import random
import zlib
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratekeeper import InvalidInput
from ratekeeper.lab import load_trace
from ratekeeper.lab import log_stream as source
from ratekeeper.lab.log_lines import LineReader
from ratekeeper.lab.log_stream import LogSource, merge_by_time
from tests import tier


def line(second, client="1.1.1.1", path="/"):
    clock = f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
    return f'{client} - - [01/Mar/2026:{clock} +0000] "GET {path} HTTP/1.1" 200 5\n'


def read(*paths):
    sources = [LogSource(str(path), LineReader(str(path))) for path in paths]
    events = [
        event
        for block in merge_by_time(sources)
        for event in zip(block.times, block.clients, block.request_lines, strict=True)
    ]  # fmt: skip
    for log in sources:
        log.close()
    return events, sources


def zstd(data):
    return pytest.importorskip("zstandard").compress(data)


@pytest.mark.parametrize("compress", [bytes, gzip.compress, bz2.compress, lzma.compress, zstd])
def test_compression_is_recognised_by_the_first_bytes(tmp_path, compress):
    text = "".join(line(second) for second in range(500))
    path = tmp_path / "log"
    path.write_bytes(compress(text.encode()))
    events, sources = read(path)
    assert len(events) == 500
    assert sources[0].reader.bad == 0


@pytest.mark.parametrize("compress", [bytes, gzip.compress, bz2.compress, lzma.compress, zstd])
def test_a_trace_of_calls_may_be_compressed(tmp_path, compress):
    (tmp_path / "trace").write_bytes(compress(b"12.5,ann\n" * 20_000 + b"12.75,bob,3\n"))
    assert len(load_trace(tmp_path / "trace")) == 20_001


def test_all_parts_of_a_concatenated_file_are_read(tmp_path):
    (tmp_path / "log.gz").write_bytes(gzip.compress(line(1).encode()) + gzip.compress(line(2).encode()))
    assert len(read(tmp_path / "log.gz")[0]) == 2
    (tmp_path / "log.zst").write_bytes(zstd(line(1).encode()) + zstd(line(2).encode()))
    assert len(read(tmp_path / "log.zst")[0]) == 2


@pytest.mark.parametrize("compress", [gzip.compress, zstd])
def test_a_truncated_file_is_read_up_to_its_end(tmp_path, compress, monkeypatch):
    monkeypatch.setattr(source, "CHUNK", 5_000)
    complete = compress("".join(line(second) for second in range(9_000)).encode())
    (tmp_path / "log").write_bytes(complete[: len(complete) * 2 // 3])
    events, (log,) = read(tmp_path / "log")
    assert 0 < len(events) < 9_000
    assert log.error == "Compressed file ended before the end-of-stream marker was reached"
    assert log.reader.bad == 0


def zstd_parts():
    return pytest.importorskip("zstandard").ZstdDecompressor().decompressobj()


FORMATS = [
    (gzip.compress, lambda: zlib.decompressobj(31)),
    (bz2.compress, bz2.BZ2Decompressor),
    (lzma.compress, lzma.LZMADecompressor),
    (zstd, zstd_parts),
]


def byte_by_byte(data, start):
    """All lines that can be decompressed, and whether the file ends well: the slow and simple way."""
    part, begun, text = start(), False, b""
    try:
        for at in range(len(data)):
            text += part.decompress(data[at : at + 1])
            begun = True
            if part.eof:
                part, begun = start(), False
    except Exception:
        return text.count(b"\n"), False
    ends_open = not begun and text != b"" and not text.endswith(b"\n")  # damage may hit the last line feed
    return text.count(b"\n") + ends_open, not begun


def logs_of(compress):
    """A file of one part, and one of three; no two lines are alike, so that they do not compress to nothing."""
    count = tier.steps(500, 100)
    lines = [
        line(second % 60, f"10.{second % 7}.{second * second % 251}.9", f"/{hash(second**7)}")
        for second in range(3 * count)
    ]
    yield compress("".join(lines).encode())
    yield b"".join([compress("".join(lines[start : start + count]).encode()) for start in (0, count, 2 * count)])


@pytest.mark.parametrize(("compress", "start"), FORMATS)
def test_every_line_before_the_end_of_a_truncated_file_is_counted(tmp_path, compress, start):
    for data in logs_of(compress):
        last = len(data)
        cuts = [6, 7, 11, 30, last // 3, last // 2, last - 40, last - 9, last - 8, last - 4, last - 1, last]
        for cut in cuts:
            (tmp_path / "log").write_bytes(data[:cut])
            events, (log,) = read(tmp_path / "log")
            lines, is_sound = byte_by_byte(data[:cut], start)
            assert (len(events), log.reader.lines, log.reader.bad, not log.error) == (lines, lines, 0, is_sound), cut
            assert log.error in ("", "Compressed file ended before the end-of-stream marker was reached")


@pytest.mark.parametrize(("compress", "start"), FORMATS)
def test_every_line_before_damaged_bytes_is_counted(tmp_path, compress, start):
    chance = random.Random(7)
    found = set()
    for data in logs_of(compress):
        for _ in range(tier.steps(60, 12)):
            place = chance.randrange(6, len(data))
            damaged = bytearray(data)
            damaged[place : place + 3] = chance.randbytes(3)
            (tmp_path / "log").write_bytes(damaged)
            _, (log,) = read(tmp_path / "log")
            lines, is_sound = byte_by_byte(damaged, start)
            assert (log.reader.lines, not log.error) == (lines, is_sound), place
            found.add(0 < lines < 1500 and not is_sound)
    assert True in found


def test_the_lines_of_a_truncated_file_smaller_than_a_chunk_are_counted(tmp_path):
    complete = gzip.compress("".join(line(second % 60) for second in range(1_500)).encode())
    (tmp_path / "log").write_bytes(complete[:-20])
    events, (log,) = read(tmp_path / "log")
    assert 1_300 < len(events) < 1_500
    assert log.error


@pytest.mark.parametrize(("compress", "start"), FORMATS)
def test_padding_after_a_compressed_file_is_no_damage_but_other_bytes_are(tmp_path, compress, start):
    complete = compress(line(1).encode())
    for tail, is_damaged in ((bytes(512), False), (b"garbage, and more of it" * 3, True)):
        (tmp_path / "log").write_bytes(complete + tail)
        events, (log,) = read(tmp_path / "log")
        assert (len(events), bool(log.error)) == (1, is_damaged)


@given(
    st.lists(st.lists(st.integers(0, 80_000), max_size=40), min_size=1, max_size=3),
    st.sampled_from([60, 300, 1 << 17]),
)
def test_files_are_merged_by_time_and_nothing_is_lost(tmp_path_factory, logs, chunk):
    folder = tmp_path_factory.mktemp("logs")
    paths = []
    for number, seconds in enumerate(logs):
        paths.append(folder / f"{number}.log")
        paths[-1].write_text("".join(line(second, f"10.0.0.{number}") for second in sorted(seconds)))
    before, source.CHUNK = source.CHUNK, chunk
    try:
        events, sources = read(*paths)
    finally:
        source.CHUNK = before
    assert [event[0] for event in events] == sorted(event[0] for event in events)
    expected = sorted((second, f"10.0.0.{number}") for number, seconds in enumerate(logs) for second in seconds)
    origin = 1772323200
    assert sorted((at // 1_000_000 - origin, client) for at, client, _ in events) == expected
    assert sum(log.late for log in sources) == 0


def test_lines_slightly_out_of_order_are_sorted(tmp_path):
    (tmp_path / "log").write_text("".join(line(second) for second in [5, 3, 9, 4, 30, 24]))
    events, (log,) = read(tmp_path / "log")
    assert [event[0] // 1_000_000 % 60 for event in events] == [3, 4, 5, 9, 24, 30]
    assert log.late == 0


def test_late_lines_count_at_the_time_of_the_stream(tmp_path, monkeypatch):
    monkeypatch.setattr(source, "CHUNK", 200)
    (tmp_path / "log").write_text(
        "".join(line(second) for second in [0, 1, 2, 100, 101, 102, 130, 131, 132, 5, 133, 200])
    )
    events, (log,) = read(tmp_path / "log")
    times = [event[0] for event in events]
    assert times == sorted(times)
    assert (len(times), log.late) == (12, 1)


def test_lines_after_a_clock_reset_are_shifted(tmp_path, monkeypatch):
    monkeypatch.setattr(source, "CHUNK", 2000)
    before, after = range(40_000, 40_200), range(36_400, 36_800)  # an hour earlier, as in a night of October
    (tmp_path / "log").write_text("".join(line(second) for second in [*before, *after]))
    events, (log,) = read(tmp_path / "log")
    times = [at // 1_000_000 % 86_400 for at, _, _ in events]
    assert times == sorted(times)
    assert log.clock_resets == 1
    # All but those of the piece in which it happened keep their distance.
    assert times[:170] == list(before)[:170]
    assert [late - early for early, late in pairwise(times[-350:])] == [1] * 349
    assert times[-1] - 40_200 < 400
    assert log.late < 30


def test_a_corrected_clock_is_used_again(tmp_path, monkeypatch):
    monkeypatch.setattr(source, "CHUNK", 2000)
    seconds = [*range(40_000, 40_200), *range(36_400, 36_600), *range(40_500, 40_700)]
    (tmp_path / "log").write_text("".join(line(second) for second in seconds))
    events, (log,) = read(tmp_path / "log")
    times = [at // 1_000_000 % 86_400 for at, _, _ in events]
    assert times == sorted(times)
    assert log.clock_resets == 1
    assert times[-200:] == list(range(40_500, 40_700))


def test_a_byte_order_mark_is_skipped(tmp_path):
    (tmp_path / "log").write_bytes(codecs.BOM_UTF8 + line(1).encode())
    assert [client for _, client, _ in read(tmp_path / "log")[0]] == ["1.1.1.1"]


def test_a_very_long_line_takes_bounded_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(source, "CHUNK", 1000)
    monkeypatch.setattr(source, "LONGEST_LINE", 2000)
    (tmp_path / "log").write_text(line(1) + "x" * 100_000 + "\n" + line(2) + line(3).strip())
    events, (log,) = read(tmp_path / "log")
    assert len(events) == 3
    assert log.reader.bad == 1


def test_the_standard_input_is_a_dash(monkeypatch):
    raw = io.BufferedReader(io.BytesIO(gzip.compress(line(1).encode())))
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=raw))
    assert len(read("-")[0]) == 1


def test_a_missing_file_raises():
    with pytest.raises(InvalidInput, match=r"^cannot read nothing.log: no such file or directory\.$"):
        LogSource("nothing.log", LineReader("nothing.log"))
