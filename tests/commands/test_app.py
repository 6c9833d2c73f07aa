"""The commands: what they print, and the codes they exit with."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from ratekeeper import __version__
from ratekeeper.commands.app import app
from tests.commands.command import run

COMMANDS = get_command(app).commands
# An option, and the variable that sets it in every command that has the option.
VARIABLES = {
    "store": ("RATEKEEPER_STORE", "shm://elsewhere"),
    "token": ("RATEKEEPER_TOKEN", "sesame"),
    "admin_token": ("RATEKEEPER_ADMIN_TOKEN", "sesame"),
    "url": ("RATEKEEPER_URL", "http://192.0.2.1:1"),
}
USERS = [(name, each.name) for name, command in COMMANDS.items() for each in command.params if each.name in VARIABLES]
ARGUMENTS = {
    "check": ["rules.toml"],
    "try": ["1/hour"],
    "peek": ["me", "--limit", "1/hour"],
    "reset": ["me", "--limit", "1/hour"],
    "digest": ["203.0.113.9"],
}
ROOT = Path(__file__).parents[2]
LOG, SAMPLE_RULES = str(ROOT / "tests/data/nasa-aug95-400.log"), str(ROOT / "src/ratekeeper/service/sample.toml")
PRINTING = [
    ["info"],
    ["check", SAMPLE_RULES, "--offline"],
    ["explain", SAMPLE_RULES, "GET /x"],
    ["try", "5/minute", "--calls", "2000"],
    ["simulate", "10/second"],
    ["replay", LOG, "--rules", SAMPLE_RULES],
    ["replay", LOG, "--rules", SAMPLE_RULES, "--json"],
    ["demo"],
    ["doctor"],
    ["digest", "203.0.113.9", "--rules", SAMPLE_RULES, "--json"],
]


def test_the_table_of_variables_has_every_variable():
    used = {each.envvar for command in COMMANDS.values() for each in command.params if each.envvar}
    assert used == {variable for variable, _ in VARIABLES.values()}
    assert len(USERS) >= 13


@pytest.mark.parametrize(("command", "option"), USERS)
def test_every_command_obeys_the_variables_of_its_options(monkeypatch, command, option):
    variable, value = VARIABLES[option]
    monkeypatch.setenv(variable, value)
    context = COMMANDS[command].make_context(command, list(ARGUMENTS.get(command, ())))
    assert context.params[option] in (value, [value], (value,))
    if command not in ("top", "migrate"):  # there the URL is an argument
        words = [*ARGUMENTS.get(command, ()), "--" + option.replace("_", "-"), "given"]
        assert COMMANDS[command].make_context(command, words).params[option] in ("given", ["given"], ("given",))


def test_the_docs_have_the_variables():
    text = (ROOT / "docs/reference/cli.md").read_text("utf-8")
    for command, option in USERS:
        row = next(line for line in text.splitlines() if line.startswith(f"| `{VARIABLES[option][0]}`"))
        assert f"`{command}`" in row


@pytest.mark.full
@pytest.mark.parametrize("words", PRINTING)
def test_a_reader_that_closes_the_pipe_ends_it_quietly(words):
    command = [sys.executable, "-m", "ratekeeper", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert (process.stderr.read(), process.wait(100)) == (b"", 141)


@pytest.mark.full
def test_an_interrupt_ends_it_quietly():
    command = [sys.executable, "-u", "-m", "ratekeeper", "try", "1/hour"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()  # it waits for somebody to type
        process.send_signal(signal.SIGINT)
        assert process.wait(100) == 130
        assert process.stderr.read() == b""


def test_errors_are_json_with_json(tmp_path):
    (tmp_path / "bad.toml").write_text('[[rules]]\nname = "a"\nlimit = "0 concurrent"\n')
    result = run("check", tmp_path / "bad.toml", "--json")
    assert result.exit_code == 2
    assert json.loads(result.output)["error"].startswith("bad.toml: rules[0].limit")


def test_the_version_is_printed():
    assert run("--version").output == f"ratekeeper {__version__}\n"


def test_shells_complete_commands_options_and_algorithms():
    def completed(*words):
        environment = {"COMP_WORDS": " ".join(["ratekeeper", *words]), "COMP_CWORD": str(len(words))}
        result = CliRunner().invoke(
            app, env={"_RATEKEEPER_COMPLETE": "complete_bash", **environment}, prog_name="ratekeeper"
        )
        return result.output.split()

    assert completed("se") == ["serve"]
    assert completed("serve", "--w") == ["--workers"]
    assert completed("try", "1/hour", "--algorithm", "sliding") == ["sliding_log", "sliding_window"]


def test_every_command_has_an_example_in_its_help():
    for name in sorted(COMMANDS):
        result = run(name, "--help")
        assert result.exit_code == 0
        assert f"ratekeeper {name}" in result.output, name


COMMANDS_ON_STORES = [
    ["try", "5/minute", "--calls", "1"],
    ["peek", "me", "--limit", "1/hour", "--store", "redis://127.0.0.1:1/0"],
    ["keys", "--store", "redis://127.0.0.1:1/0"],
]


def test_commands_on_stores_do_not_load_the_service():
    code = (
        "import sys; from ratekeeper.commands.app import app\n"
        f"for command in {COMMANDS_ON_STORES}: app(command, standalone_mode=False)\n"
        "print([name for name in sys.modules if name.startswith('ratekeeper.service')], file=sys.stderr)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert ended.stderr.splitlines()[-1] == "[]"
