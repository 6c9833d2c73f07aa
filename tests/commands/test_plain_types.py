"""Help shows plain words for types."""

import pytest
from typer.main import get_command

from ratekeeper.commands.app import app
from tests.commands.command import run

COMMANDS = sorted(get_command(app).commands)


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_no_help_shows_types_of_python(name):
    text = run(*[name] * bool(name), "--help", env={"COLUMNS": "200"}).output
    assert "Usage:" in text
    for word in ("<str", "<int", "<float", "<path", "<bool", "<list", "INTEGER", "RANGE", "None", "list["):
        assert word not in text, word


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (
            "serve",
            ["--host HOST", "--port PORT", "--http HOST:PORT", "--workers N", "--tls-cert FILE", "--drain SECONDS"],
        ),
        ("replay", ["--rules -r FILE", "--field NAME=FIELD", "--top N"]),
        ("try", ["--store URL", "--key TEXT", "--json Print"]),
        ("simulate", ["--load NUMBER", "--clients N", "--plot FILE"]),
    ],
)
def test_options_say_what_they_take(command, words):
    shown = " ".join(run(command, "--help", env={"COLUMNS": "200"}).output.split())
    for each in words:
        assert each in shown
