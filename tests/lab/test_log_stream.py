"""Files of any compression, merge_by_time by time, in blocks."""

import bz2
import codecs
import gzip
import io
import lzma
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratekeeper import InvalidInput
from ratekeeper.lab import log_stream as source
from ratekeeper.lab.log_lines import LineReader
from ratekeeper.lab.log_stream import LogSource, merge_by_time


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
