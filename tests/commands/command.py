"""Commands, run in this process."""

from typer.testing import CliRunner

from ratekeeper.commands.app import app


def run(*words, stdin=None, env=None):
    return CliRunner().invoke(app, [str(word) for word in words], input=stdin, env=env)
