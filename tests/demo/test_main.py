"""The demonstration shows what distinguishes the algorithms, on a terminal and in a pipe."""

import io
import re
import subprocess
import sys
from itertools import pairwise

import pytest

from ratekeeper.algorithms import ALGORITHMS
from ratekeeper.demo import __main__ as demo
from ratekeeper.lab.text import style_for
from ratekeeper.testing import FakeClock

COLOUR = re.compile(r"\x1b\[\d+m")


class Screen(io.StringIO):
    """A terminal of 24 lines of 80."""

    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


@pytest.fixture
def lanes() -> dict[str, demo.DemoLane]:
    return {lane.name: lane for lane in demo.run(FakeClock(start=12.345678), lambda lanes, tick: None)}


def test_every_call_is_accounted_for(lanes: dict[str, demo.DemoLane]) -> None:
    assert list(lanes) == list(ALGORITHMS)
    for lane in lanes.values():
        assert len(lane.admitted) + len(lane.refused) == sum(demo.PATTERN)


def test_only_the_fixed_window_admits_twice_its_limit_at_the_boundary(lanes: dict[str, demo.DemoLane]) -> None:
    most = {name: lane.most_within(200_000) for name, lane in lanes.items()}
    assert most.pop("fixed_window") == 20
    assert most == {"sliding_log": 10, "sliding_window": 10, "token_bucket": 11, "gcra": 11, "leaky_bucket": 2}


def test_the_log_never_admits_more_than_its_limit_in_any_second(lanes: dict[str, demo.DemoLane]) -> None:
    assert lanes["sliding_log"].most_within(1_000_000) == 10


def test_the_leaky_bucket_delays_and_spaces_its_calls(lanes: dict[str, demo.DemoLane]) -> None:
    assert [name for name, lane in lanes.items() if lane.longest_wait()] == ["leaky_bucket"]
    assert lanes["leaky_bucket"].longest_wait() == 900_000
    turns = [call.turn_at for call in lanes["leaky_bucket"].admitted]
    assert min(after - before for before, after in pairwise(turns)) == 100_000


def test_gcra_and_token_bucket_agree(lanes: dict[str, demo.DemoLane]) -> None:
    assert lanes["gcra"].admitted == lanes["token_bucket"].admitted
    assert lanes["gcra"].refused == lanes["token_bucket"].refused


def test_a_pipe_gets_plain_text() -> None:
    done = subprocess.run([sys.executable, "-m", "ratekeeper.demo", "--fast"], capture_output=True, timeout=100)
    text = done.stdout.decode()
    assert done.returncode == 0
    assert "\x1b" not in text
    assert re.search(r"^fixed_window +48 +29 +- +20 +20$", text, re.M)
    assert re.search(r"^leaky_bucket +43 +34 +900 ms +2 +10$", text, re.M)
    assert max(map(len, text.splitlines())) <= 100


def test_an_encoding_without_blocks_gets_digits() -> None:
    assert style_for("ascii", colours=False).bars([0, 1, 3, 12], 4, demo.FULL_BAR) == " 138"


def test_on_a_terminal_it_redraws_in_place_and_in_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(demo, "MONOTONIC", FakeClock(start=5))
    for name, value in {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert demo.main([]) == 0
    shown = screen.getvalue()
    assert shown.count("\x1b[20A") == len(demo.PATTERN) - 1
    assert {"\x1b[31m", "\x1b[32m", "\x1b[33m"} <= set(COLOUR.findall(shown))
    last = COLOUR.sub("", shown.rpartition("\x1b[20A")[2]).replace("\x1b[K", "")
    piped = subprocess.run([sys.executable, "-m", "ratekeeper.demo", "--fast"], capture_output=True, timeout=100)
    assert piped.stdout.decode().endswith(last)


def test_a_terminal_that_cannot_be_redrawn_gets_the_end_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in [("TERM", "dumb"), ("COLUMNS", "20"), ("LINES", "5")]:
        screen = Screen()
        monkeypatch.setattr(sys, "stdout", screen)
        monkeypatch.setattr(demo, "MONOTONIC", None)  # real time is not looked at
        for variable, usual in {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"}.items():
            monkeypatch.setenv(variable, usual)
        monkeypatch.setenv(name, value)
        assert demo.main([]) == 0
        assert not re.search(r"\x1b\[\d+A", screen.getvalue())
        assert "fixed_window" in screen.getvalue()


@pytest.mark.parametrize(("columns", "lines"), [(60, 24), (80, 12), (30, 10)])
def test_a_small_terminal_gets_a_small_picture(columns: int, lines: int, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(demo, "MONOTONIC", FakeClock())
    for name, value in {"TERM": "xterm", "COLUMNS": str(columns), "LINES": str(lines)}.items():
        monkeypatch.setenv(name, value)
    assert demo.main([]) == 0
    live = screen.getvalue().partition("\nalgorithm")[0].partition("calls.\n")[2]
    frames = re.split(r"\x1b\[\d+A", live)
    assert len(frames) == len(demo.PATTERN)
    for frame in frames[:-1]:
        drawn = COLOUR.sub("", frame).replace("\x1b[K", "").strip("\n").splitlines()
        assert len(drawn) < lines
        assert max(map(len, drawn)) < columns


def test_it_starts_to_draw_at_once() -> None:
    slept: list[int] = []

    class Watched(FakeClock):
        def sleep(self, micros: int) -> None:
            slept.append(micros)
            super().sleep(micros)

    demo.run(Watched(start=12.345678), lambda lanes, tick: None)
    assert slept[:2] == [0, demo.TICK]


def test_colours_can_be_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert demo.main(["--fast"]) == 0
    assert not COLOUR.search(screen.getvalue())


def test_a_reader_that_closes_the_pipe_ends_it_quietly() -> None:
    command = [sys.executable, "-m", "ratekeeper.demo", "--fast"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as demo_process:
        assert demo_process.stdout is not None
        assert demo_process.stderr is not None
        demo_process.stdout.close()
        errors = demo_process.stderr.read()
        assert (demo_process.wait(timeout=100), errors) == (demo.BROKEN_PIPE, b"")


def test_an_interrupt_ends_it_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    class Impatient(FakeClock):
        def sleep(self, micros: int) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(demo, "MONOTONIC", Impatient())
    monkeypatch.setattr(sys, "stdout", Screen())
    for name, value in {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"}.items():
        monkeypatch.setenv(name, value)
    assert demo.main([]) == 130
