"""The lab's commands: what they print and write, and the codes they exit with."""

import gzip
import json
from pathlib import Path

import pytest

from tests.commands.command import run

SAMPLE = Path(__file__).parents[1] / "data" / "nasa-aug95-400.log"
RULES = Path(__file__).parents[2] / "examples" / "lab" / "rules.toml"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["simulate", "10/second", "-t", "nonsense"], "traffic: expected a shape"),
        (["simulate", "0/second"], "expected a count from 1"),
        (["simulate", "10/second", "-a", "gcar"], "Did you mean 'gcra'?"),
        (["simulate", "10/second", "--plot", "x.gif"], "plot 'x.gif': expected a name that ends in .png, .svg, .pdf."),
        (["simulate", "10/second", "--trace", "no.log"], "cannot read no.log: no such file or directory."),
        (
            ["replay", "no.log", "-r", RULES, "--html", "no/x.html"],
            "cannot write no/x.html: no such file or directory.",
        ),
        (
            ["replay", "no.log", "-r", RULES, "--csv", "no/x.csv"],
            "cannot write no/x.csv: no such file or directory.",
        ),
        (["replay", "no.log", "-r", RULES, "--json-file", "no/x"], "cannot write no/x: no such file or directory."),
        (
            ["replay", "no.log", "-r", RULES, "--plot", "no/x.svg"],
            "cannot write no/x.svg: no such file or directory.",
        ),
        (["simulate", "10/second", "--html", "."], "cannot write .: is a directory."),
        (["replay", "no.log", "-r", RULES], "cannot read no.log: no such file or directory."),
        (["replay", SAMPLE, "-r", "no.toml"], "cannot read no.toml: no such file or directory"),
        (["replay", SAMPLE, "-r", RULES, "--suggest", "many"], "--suggest: expected a share such as '0.1%' or 0.001"),
        (["replay", SAMPLE, "-r", RULES, "--field", "client"], "--field: expected 'client=remote_addr', got 'client'."),
        (["replay", SAMPLE, "-r", RULES, "--zone", "mars"], "zone: expected auto, written or ignored, got 'mars'."),
    ],
)
def test_errors_exit_with_2(words, message):
    result = run(*words)
    assert result.exit_code == 2
    assert message in result.output


@pytest.mark.full  # it draws plots
def test_replay_prints_text_and_writes_files(tmp_path):
    result = run(
        "replay", SAMPLE, "--rules", RULES, "--suggest", "0.1%", "--html", tmp_path / "report.html",
        "--csv", tmp_path / "clients.csv", "--json-file", tmp_path / "all.json", "--plot", tmp_path / "replay.png",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert result.output.startswith("400 requests by 45 clients")
    assert json.loads((tmp_path / "all.json").read_text())["refused"] == 6
    assert len((tmp_path / "clients.csv").read_text().splitlines()) == 46
    assert (tmp_path / "replay.png").read_bytes().startswith(b"\x89PNG")
    assert "in24.inetnebr.com" in (tmp_path / "report.html").read_text()


def test_replay_reads_the_standard_input_and_hides_clients():
    result = run("replay", "-", "-r", RULES, "--anonymous", "--json", stdin=gzip.compress(SAMPLE.read_bytes()))
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["requests"] == 400
    assert "inetnebr" not in result.output


def test_replay_compares_two_rules_files(tmp_path):
    (tmp_path / "new.toml").write_text('[[rules]]\nname = "a"\nlimit = "1/minute"\n')
    output = json.loads(run("replay", SAMPLE, "-r", tmp_path / "new.toml", "--against", RULES, "--json").output)
    assert output["comparison"]["newly_refused"] > 100
    assert output["comparison"]["newly_allowed"] == 0


def test_json_with_a_file_writes_it_and_never_over_a_log(tmp_path):
    report, log = tmp_path / "all.json", tmp_path / "log.json"
    for _ in range(2):  # over the report of before
        result = run("replay", SAMPLE, "--rules", RULES, "--html", tmp_path / "report.html", "--json", report)
        assert result.exit_code == 0, result.output
        assert result.output.startswith("400 requests by 45 clients")
        assert json.loads(report.read_text())["refused"] == 6
    log.write_text(event := '{"time": 1, "remote_addr": "192.0.2.1", "request": "GET / HTTP/1.1"}\n')
    assert json.loads(run("replay", "-r", RULES, "--json", log).output)["requests"] == 1
    result = run("replay", log, "-r", RULES, "--json-file", log)
    assert result.exit_code == 2
    assert "expected a file to write to, got one of the logs. Choose another name." in result.output.replace("\n", " ")
    assert log.read_text() == event


def test_a_damaged_log_is_reported_and_no_error(tmp_path):
    (tmp_path / "log.gz").write_bytes(gzip.compress(SAMPLE.read_bytes())[:-100])
    result = run("replay", str(tmp_path / "log.gz"), "-r", RULES, "--json")
    assert result.exit_code == 0
    figures = json.loads(result.stdout)
    assert figures["requests"] > 0
    assert figures["broken"][0].startswith(
        f"{tmp_path / 'log.gz'}: the file is damaged after {figures['lines']:,} lines: "
    )
