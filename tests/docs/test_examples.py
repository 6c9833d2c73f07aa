"""Every example in the documentation runs.

The blocks of a page run in order in one namespace; blocks with a prompt must print what they show.  Blocks with a
title, such as ``title="test_app.py"``, are the files of a small project, and pytest runs its tests.
No example may wait for real time.
"""

import asyncio
import doctest
import importlib
import os
import pkgutil
import re
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

import pytest

import ratekeeper
from ratekeeper.clock import MonotonicClock
from ratekeeper.testing import FakeClock, frozen

ROOT = Path(__file__).parents[2]
ALIKE = ("from-drf-throttles.md", "from-django-ratelimit.md")  # small projects like those of django.md and drf.md
PAGES = [
    pytest.param(page, marks=pytest.mark.full) if page.name in ALIKE else page
    for page in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
]
FENCE = re.compile(
    r"^(?P<indent> *)```(?:python|pycon|py)\b(?P<options>[^\n]*)\n(?P<code>.*?)^(?P=indent)```", re.M | re.S
)
TITLE = re.compile(r'title="([\w/]+\.py)"')


class Block(NamedTuple):
    line: int
    title: str | None
    code: str


def blocks(text: str) -> list[Block]:
    """Return the Python blocks of a page."""
    parsed = []
    for fence in FENCE.finditer(text):
        title = TITLE.search(fence["options"])
        line = text.count("\n", 0, fence.start("code"))
        parsed.append(Block(line, title and title[1], textwrap.dedent(fence["code"])))
    return parsed


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def fail_to_sleep(*_: Any) -> NoReturn:
    raise AssertionError("an example waits for real time: give it a FakeClock")


class StoppedClock(FakeClock):
    """The clock of all limiters in memory.  It does not move, so the output of a page does not depend on the load."""

    sleep = asleep = fail_to_sleep


def forbid_sleeping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of other libraries may sleep: pyrate-limiter has one, for as long as the process lives."""

    async def only_yield(seconds: float, result: object = None) -> object:
        if seconds and not threading.current_thread().daemon:
            fail_to_sleep()
        return await real_asleep(seconds, result)

    def sleep(seconds: float) -> None:
        if not threading.current_thread().daemon:
            fail_to_sleep()
        real_sleep(seconds)

    real_asleep, real_sleep = asyncio.sleep, time.sleep
    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(asyncio, "sleep", only_yield)
    monkeypatch.setattr(MonotonicClock, "sleep", fail_to_sleep)
    monkeypatch.setattr(MonotonicClock, "asleep", fail_to_sleep)


def run(page: str, examples: list[Block]) -> None:
    """Run the blocks in order in one namespace; an error points at the line of the page."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in examples:
        if ">>>" in block.code:
            failures: list[str] = []
            # The namespace is shared, so the next block sees the names that a doctest defines.
            examples_of = doctest.DocTestParser().get_examples(block.code, page)
            test = doctest.DocTest(examples_of, names, page, page, block.line, block.code)
            doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=failures.append, clear_globs=False)
            names.update(test.globs)
            assert not failures, "".join(failures)
        else:
            exec(compile("\n" * block.line + block.code, page, "exec"), names)


def run_project(folder: Path, files: list[Block]) -> None:
    """Run the tests of the small project that a page shows.

    Of the installed pytest plugins only ours is loaded, by its entry point: the others take a second to import.
    """
    for block in files:
        path = folder / str(block.title)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.code, "utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "ratekeeper", "-p", "no:cacheprovider", "-W", "error"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    result = subprocess.run(
        [*command, "--rootdir", "."], cwd=folder, env=environment, capture_output=True, text=True, timeout=100
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_example_runs(
    page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    examples = blocks(page.read_text("utf-8"))
    files = [block for block in examples if block.title]
    if files:
        run_project(tmp_path, files)
    forbid_sleeping(monkeypatch)
    monkeypatch.chdir(tmp_path)
    with frozen(StoppedClock(1_000_000)):
        run(name_of(page), [block for block in examples if not block.title])


def modules_with_examples() -> list[ModuleType]:
    names = [info.name for info in pkgutil.walk_packages(ratekeeper.__path__, "ratekeeper.")]
    sources = {name: ROOT / "src" / (name.replace(".", "/") + ".py") for name in names}
    with_examples = [name for name, path in sources.items() if path.is_file() and ">>> " in path.read_text("utf-8")]
    return [ratekeeper, *map(importlib.import_module, with_examples)]


@pytest.mark.parametrize("module", modules_with_examples(), ids=lambda module: module.__name__)
def test_every_example_in_a_docstring_runs(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    forbid_sleeping(monkeypatch)
    outcome = doctest.testmod(module)
    assert outcome.attempted > 0
    assert outcome.failed == 0


class TestTheRunnerItself:
    def test_a_wrong_answer_is_found(self) -> None:
        with pytest.raises(AssertionError, match=r"Expected:\s+3\s+Got:\s+2"):
            run("page.md", blocks("```pycon\n>>> 1 + 1\n3\n```\n"))

    def test_an_error_points_at_the_line_of_the_page(self) -> None:
        with pytest.raises(ZeroDivisionError) as error:
            run("page.md", blocks("# Title\n\n```python\nx = 1\nx / 0\n```\n"))
        assert error.traceback[-1].lineno == 4  # counted from 0

    def test_blocks_share_their_names(self) -> None:
        first = "```python\nx = 1\n```\n"
        second = "- a list\n\n    ```pycon\n    >>> x\n    1\n    >>> y = 2\n    ```\n"
        third = "```python\nassert y == 2\n```\n"
        run("page.md", blocks(f"{first}\n{second}\n{third}"))

    def test_an_example_that_waits_is_found(self, monkeypatch: pytest.MonkeyPatch) -> None:
        forbid_sleeping(monkeypatch)
        page = '```python\nfrom ratekeeper import Limiter\nl = Limiter("1/s")\nl.acquire("a")\nl.acquire("a")\n```\n'
        with pytest.raises(AssertionError, match="waits for real time"):
            run("page.md", blocks(page))

    def test_a_failing_test_of_a_shown_project_is_found(self, tmp_path: Path) -> None:
        page = '```python title="test_x.py"\ndef test_x():\n    assert False\n```\n'
        with pytest.raises(AssertionError, match="1 failed"):
            run_project(tmp_path, blocks(page))
