"""The commands: what they print, and the codes they exit with."""

import json
import subprocess
import sys

from typer.testing import CliRunner

from ratekeeper import __version__
from ratekeeper.commands.app import app
from tests.commands.command import run


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
    for name in ("serve", "check", "explain", "try", "keys", "peek", "reset"):
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
