"""A progress bar where somebody sees it."""

import io

from rich.console import Console

from ratekeeper.commands import progress


def test_where_nobody_sees_it_there_is_none(monkeypatch):
    for wanted, is_terminal in ((True, False), (False, True)):
        monkeypatch.setattr(progress, "err", Console(force_terminal=is_terminal))
        with progress.progress_bar(wanted) as update:
            assert update is None


def test_a_bar_for_each_work(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(progress, "err", Console(file=screen, force_terminal=True, width=80))
    with progress.progress_bar() as update:
        for done in range(3):
            update("reading [a] log", done, 3)
        update("deciding", 0, 0)
    assert "reading [a] log" in screen.getvalue()
