"""Every example in the documentation runs.

The blocks of a page run in order, in one namespace; those with a prompt must print what they show.  Blocks with a
title, such as ``title="test_app.py"``, are the files of a small project, whose tests are run by pytest.
Nothing may wait for real time.
"""

import asyncio
import doctest
import importlib
import pkgutil
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

import pytest

import ratekeeper
from ratekeeper.clock import MonotonicClock
from ratekeeper.testing import FakeClock, frozen

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
FENCE = re.compile(
    r"^(?P<indent> *)```(?:python|pycon|py)\b(?P<options>[^\n]*)\n(?P<code>.*?)^(?P=indent)```", re.M | re.S
)
TITLE = re.compile(r'title="([\w/]+\.py)"')


class Block(NamedTuple):
    line: int
    title: str | None
    code: str


def blocks(text: str) -> list[Block]:
    """The Python blocks of a page."""
    found = []
    for fence in FENCE.finditer(text):
        title = TITLE.search(fence["options"])
        line = text.count("\n", 0, fence.start("code"))
        found.append(Block(line, title and title[1], textwrap.dedent(fence["code"])))
    return found


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def refuse(*_: Any) -> NoReturn:
    raise AssertionError("an example waits for real time: give it a FakeClock")


class Still(FakeClock):
    """Time for all limiters in memory: it stands, so that what a page shows does not depend on how busy we are."""

    sleep = asleep = refuse


def sleepless(monkeypatch: pytest.MonkeyPatch) -> None:
    async def arefuse(seconds: float, result: object = None) -> object:
        return await real_asleep(0, result) if seconds == 0 else refuse()

    real_asleep = asyncio.sleep
    monkeypatch.setattr(time, "sleep", refuse)
    monkeypatch.setattr(asyncio, "sleep", arefuse)
    monkeypatch.setattr(MonotonicClock, "sleep", refuse)
    monkeypatch.setattr(MonotonicClock, "asleep", refuse)


def run(page: str, examples: list[Block]) -> None:
    """Run the blocks in order in one namespace; an error points at the line of the page."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in examples:
        if ">>>" in block.code:
            told: list[str] = []
            # The namespace is shared, so what a doctest defines is there for the next block.
            examples_of = doctest.DocTestParser().get_examples(block.code, page)
            test = doctest.DocTest(examples_of, names, page, page, block.line, block.code)
            doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=told.append, clear_globs=False)
            names.update(test.globs)
            assert not told, "".join(told)
        else:
            exec(compile("\n" * block.line + block.code, page, "exec"), names)


def run_project(folder: Path, files: list[Block]) -> None:
    """Run the tests of the small project that a page shows, as its reader would."""
    for block in files:
        path = folder / str(block.title)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.code, "utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", "--rootdir", "."]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_example_runs(
    page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = blocks(page.read_text("utf-8"))
    files = [block for block in found if block.title]
    if files:
        run_project(tmp_path, files)
    sleepless(monkeypatch)
    monkeypatch.chdir(tmp_path)
    with frozen(Still(1_000_000)):
        run(name_of(page), [block for block in found if not block.title])


def modules_with_examples() -> list[ModuleType]:
    names = [info.name for info in pkgutil.walk_packages(ratekeeper.__path__, "ratekeeper.")]
    sources = {name: ROOT / "src" / (name.replace(".", "/") + ".py") for name in names}
    found = [name for name, path in sources.items() if path.is_file() and ">>> " in path.read_text("utf-8")]
    return [ratekeeper, *map(importlib.import_module, found)]


@pytest.mark.parametrize("module", modules_with_examples(), ids=lambda module: module.__name__)
def test_every_example_in_a_docstring_runs(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    sleepless(monkeypatch)
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
        sleepless(monkeypatch)
        page = '```python\nfrom ratekeeper import Limiter\nl = Limiter("1/s")\nl.acquire("a")\nl.acquire("a")\n```\n'
        with pytest.raises(AssertionError, match="waits for real time"):
            run("page.md", blocks(page))

    def test_a_failing_test_of_a_shown_project_is_found(self, tmp_path: Path) -> None:
        page = '```python title="test_x.py"\ndef test_x():\n    assert False\n```\n'
        with pytest.raises(AssertionError, match="1 failed"):
            run_project(tmp_path, blocks(page))
