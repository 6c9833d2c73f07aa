"""The command lists the benchmarks and runs none that was not asked for; charts show what they recorded."""

import json
import sys

import pytest

pytest.importorskip("bench", reason="a source archive has no benchmarks")

from bench import charts, harness
from bench.__main__ import main


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_lists_the_benchmarks(option, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench", option])
    assert main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Run the named benchmarks, or all: ``python -m bench [name ...]``."
    described = [line.split(maxsplit=1) for line in lines[2:] if line]
    assert described.pop()[0] == "--json"
    assert {"fleet", "walks"} < {words[0] for words in described}
    assert all(len(words) == 2 for words in described)


def test_a_name_that_is_no_benchmark_is_an_error(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench", "fleets"])
    assert main() == 2
    assert "got 'fleets'. See --help." in capsys.readouterr().err


def test_what_is_recorded_has_its_best_and_its_spread(tmp_path):
    harness.record("race", "ns", {"ours": [3.0, 1.0, 2.0, 5.0, 4.0], "once": [7.0]})
    harness.record("rates", "a second", {"ours": [3.0, 1.0, 2.0]}, most=True)
    found = json.loads(harness.write("trial", tmp_path).read_text("utf-8"))
    race, rates = found["races"]
    first = {"name": "ours", "best": 1.0, "quartile_1": 2.0, "median": 3.0, "quartile_3": 4.0, "rounds": 5}
    once = {"name": "once", "best": 7.0, "quartile_1": 7.0, "median": 7.0, "quartile_3": 7.0, "rounds": 1}
    assert race == {"title": "race", "unit": "ns", "better": "less", "figures": [first, once]}
    assert (rates["better"], rates["figures"][0]["best"]) == ("more", 3.0)
    assert {"date", "python", "processor", "cores", "load", "engine", "versions"} < set(found)
    assert harness.write("trial", tmp_path) is None  # nothing is written twice


def test_the_charts_are_drawn_from_the_results(capsys):
    assert charts.main(["--check"]) == 0, capsys.readouterr().out


def test_a_chart_shows_every_figure_and_tells_the_conditions():
    results = {path.stem: json.loads(path.read_text("utf-8")) for path in harness.RESULTS.glob("*.json")}
    for name, (_, sources, panels) in charts.CHARTS.items():
        for scheme in charts.COLOURS:
            drawn = (charts.PICTURES / f"bench-{name}-{scheme}.svg").read_text("utf-8")
            for panel in panels(results):
                for label, figure, _ in panel.bars:
                    assert f">{label}<" in drawn
                    assert len(label) <= 30, "the label has no room"
                    assert charts.number(figure["best"]) in drawn
            for source in sources:
                assert results[source]["date"] in drawn
                assert results[source]["python"] in drawn
