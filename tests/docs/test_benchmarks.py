"""The command that runs the benchmarks lists them, and runs none that was not asked for."""

import sys

import pytest

from bench.__main__ import main


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_lists_the_benchmarks(option, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench", option])
    assert main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Run the named benchmarks, or all: ``python -m bench [name ...]``."
    described = [line.split(maxsplit=1) for line in lines[2:]]
    assert {"fleet", "walks"} < {words[0] for words in described}
    assert all(len(words) == 2 for words in described)


def test_a_name_that_is_no_benchmark_is_an_error(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench", "fleets"])
    assert main() == 2
    assert "got 'fleets'. See --help." in capsys.readouterr().err
