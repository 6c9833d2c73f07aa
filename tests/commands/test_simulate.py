"""ratekeeper simulate: what it prints and writes, and the codes that it exits with."""

import json
from pathlib import Path

import pytest

from ratekeeper.lab import load_trace
from tests.commands.command import run

SAMPLE = Path(__file__).parents[1] / "data" / "nasa-aug95-400.log"


def test_simulate_prints_a_table():
    result = run("simulate", "10/second", "-a", "all", "-t", "boundary")
    assert result.exit_code == 0
    assert "10/second fixed_window          80        0  2.00 x" in result.output
    assert result.output.count("refused") == 7  # the head has one, and so has each lane


def test_simulate_prints_json_and_writes_files(tmp_path):
    result = run(
        "simulate", "10/second, 300/minute", "5/second", "-t", "burst", "--seed", "3", "--shared", "--json",
        "--html", tmp_path / "report.html",
    )  # fmt: skip
    assert result.exit_code == 0
    output = json.loads(result.output)
    assert [lane["limit"] for lane in output["lanes"]] == ["10/second, 300/minute", "5/second"]
    assert (output["traffic"]["seed"], output["traffic"]["shared"]) == (3, True)
    assert (tmp_path / "report.html").read_text().startswith("<!DOCTYPE html>")


@pytest.mark.full  # it loads matplotlib, as a replay does in the quick tier
def test_simulate_draws(tmp_path):
    assert run("simulate", "5/second", "--plot", tmp_path / "lanes.svg").exit_code == 0
    assert "<svg" in (tmp_path / "lanes.svg").read_text()


def test_simulate_takes_a_trace(tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("0.5,ann\n0.75,bob,3\n\n0.6,ann,2\n")
    output = json.loads(run("simulate", "3/minute sliding_log", "--trace", trace, "--json").output)
    assert (output["lanes"][0]["asked"], output["lanes"][0]["admitted"]) == (6, 6)
    output = json.loads(run("simulate", "1/minute fixed_window", "--trace", SAMPLE, "--json").output)
    assert output["lanes"][0]["calls"] == 400
    assert load_trace(SAMPLE).clients[0] == "in24.inetnebr.com"


def test_an_invalid_trace_is_an_error(tmp_path):
    (tmp_path / "trace").write_text("0.5,ann\nnonsense\n")
    result = run("simulate", "1/s", "--trace", tmp_path / "trace")
    assert "line 2: expected seconds, client and cost, got 'nonsense'." in result.output.replace("\n", " ")
    (tmp_path / "trace").write_text("nonsense\n")
    assert "got neither" in run("simulate", "1/s", "--trace", tmp_path / "trace").output
