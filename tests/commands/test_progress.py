"""A progress bar where somebody sees it."""

import io

from rich.console import Console

from ratekeeper.commands import progress


def test_where_nobody_sees_it_there_is_none(monkeypatch):
    for wanted, is_terminal in ((True, False), (False, True)):
        monkeypatch.setattr(progress, "err", Console(force_terminal=is_terminal))
        with progress.progress_bar("lines", wanted) as update:
            assert update is None


def test_a_bar_for_each_work(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(progress, "err", Console(file=screen, force_terminal=True, width=120))
    now = iter(range(100))
    with progress.progress_bar("lines", clock=lambda: float(next(now))) as update:
        for done in range(3):
            update("reading [a] log", done, 4, done * 1000)
        update("deciding", 0, 0, 0)
    shown = screen.getvalue()
    assert "reading [a] log" in shown
    assert "50 % 2,000 lines, 667/s" in shown


def test_a_rate_needs_a_moment():
    assert progress.count_text(0, "lines", 5.0) == ""
    assert progress.count_text(1200, "calls", 0.1) == "1,200 calls"
    assert progress.count_text(1_200_000, "lines", 4.0) == "1,200,000 lines, 300,000/s"
