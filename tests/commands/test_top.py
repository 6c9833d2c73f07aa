"""ratekeeper top: on a running service, once, in a pipe, and while the service is away."""

import io
import json
import sys
import time

import pytest

from ratekeeper.commands import top as top_module
from ratekeeper.commands.output import CommandFailed
from ratekeeper.commands.service_client import ServiceClient
from ratekeeper.commands.top_screen import View
from tests.commands.command import run
from tests.servers import closed_port
from tests.service.running import running

RULES = """
[[rules]]
name = "per-ip"
by = "ip"
limit = "2/hour"
"""


@pytest.fixture
def service(tmp_path):
    with running(tmp_path, RULES, token="sesame") as found:
        for _ in range(5):
            found.post("/v1/check", {"request": {"ip": "203.0.113.9"}}, authorization="Bearer sesame")
        found.worker.routes.dashboard.tick()
        yield found


def url_of(service):
    return f"http://127.0.0.1:{service.addresses['http'][1]}"


def test_once_shows_everything(service):
    result = run("top", url_of(service), "--once", "--token", "sesame")
    assert result.exit_code == 0, result.output
    for words in ("ratekeeper at http://127.0.0.1", "1 worker", "store memory answers in", "per-ip", "2/hour",
                  "refused most, this minute"):  # fmt: skip
        assert words in result.output
    assert "\x1b" not in result.output


def test_once_as_json_for_scripts(service):
    result = run("top", url_of(service), "--once", "--json", env={"RATEKEEPER_TOKEN": "sesame"})
    figures = json.loads(result.output)
    assert figures["table"][0]["totals"] == {"allowed": 2, "refused": 3}
    assert figures["refused_clients"][0][1] == 3
    assert set(figures["per_second"]) == {"allowed", "refused"}


def test_a_wrong_token_and_a_service_that_is_away(service):
    result = run("top", url_of(service), "--token", "wrong")
    assert result.exit_code == 2
    assert "expected the token of the service, got another one" in result.output
    with closed_port() as port:
        result = run("top", f"http://127.0.0.1:{port}", "--json")
    assert result.exit_code == 3
    assert "does not answer" in json.loads(result.output)["error"]


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


def test_a_terminal_is_redrawn_and_given_back(service, monkeypatch):
    screen, pauses = Terminal(), []
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stdin", io.StringIO())  # no keyboard
    for name, value in {"TERM": "xterm", "COLUMNS": "60", "LINES": "12", "NO_COLOR": ""}.items():
        monkeypatch.setenv(name, value)

    def pause(seconds):
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(top_module.time, "sleep", pause)
    with pytest.raises(KeyboardInterrupt):
        top_module.watch(ServiceClient(url_of(service), "sesame", "--token"), 1.0, once=False, as_json=False)
    shown = screen.getvalue()
    assert shown.startswith(top_module.OPEN)
    assert shown.endswith(top_module.CLOSE)
    assert shown.count("\x1b[H") == 3
    for frame in shown.split("\x1b[H")[1:]:
        assert frame.count("\n") <= 11


def test_a_service_that_goes_away_is_waited_for_but_a_changed_token_is_not():
    answers = [CommandFailed("it does not answer", 3), CommandFailed("wrong token", 2)]

    class Client:
        def ask(self, path):
            raise answers.pop(0)

    shown = []
    with pytest.raises(CommandFailed, match="wrong token"):
        top_module.look_again(Client(), View(), 1.0, shown.append, lambda seconds: False)
    assert shown == ["it does not answer"]


def test_the_pause_ends_when_somebody_types_q(monkeypatch):
    import os
    import pty

    keyboard, terminal = pty.openpty()
    with os.fdopen(terminal) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        monkeypatch.setattr(sys, "stdout", Terminal())
        with top_module.other_screen() as pause:
            os.write(keyboard, b"x")
            assert pause(0.01) is False
            os.write(keyboard, b"q")
            began = time.monotonic()
            assert pause(60) is True
            assert time.monotonic() - began < 50
    os.close(keyboard)
