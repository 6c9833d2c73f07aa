"""ratekeeper serve: what it says when it starts, and when it cannot."""

import logging
import socket

import pytest

from tests.commands.command import run
from tests.servers import free_port


@pytest.fixture
def own_logs():
    """``serve`` sets up the logs of its process; here that process is the test's."""
    log = logging.getLogger("ratekeeper")
    before = log.handlers[:], log.level, log.propagate
    yield
    log.handlers[:], log.propagate = before[0], before[2]
    log.setLevel(before[1])


@pytest.mark.usefixtures("own_logs")
def test_serve_reports_errors_before_it_listens(tmp_path):
    result = run("serve", tmp_path / "none.toml")
    assert result.exit_code == 2
    assert run("serve", "--http", "nonsense").exit_code == 2
    assert run("serve", "--http", "off").exit_code == 2
    result = run("serve", "--envoy-config", tmp_path / "none.yaml")
    assert (result.exit_code, "expected --grpc HOST:PORT beside --envoy-config" in one_line(result)) == (2, True)
    result = run("serve", "--http", "127.0.0.1:0", "--state", "/proc/none")
    assert (result.exit_code, "--state: expected a folder to write in, got '/proc/none'" in one_line(result)) == (
        2,
        True,
    )


@pytest.mark.usefixtures("own_logs")
@pytest.mark.parametrize("option", ["--http", "--resp", "--grpc"])
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("shares", [False, True])
def test_serve_reports_an_address_in_use(option, workers, shares):
    """Even if both share the address between workers: each of two services would silently count half of the calls."""
    with socket.create_server(("127.0.0.1", 0), reuse_port=shares) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = run("serve", "--http", "off", option, address, "--workers", workers)
    assert result.exit_code == 2, result.output
    assert f"{option}: expected an address that" in one_line(result)
    assert address in one_line(result)


def one_line(result):
    return result.output.replace("\n", " ")


@pytest.mark.usefixtures("own_logs")
def test_serve_needs_different_addresses():
    address = f"127.0.0.1:{free_port()}"
    result = run("serve", "--http", address, "--resp", address, "--workers", 2)
    assert result.exit_code == 2
    assert f"--resp: expected an address of its own, got '{address}', that of --http." in one_line(result)


def test_the_start_up_message_shows_what_to_open_and_type(tmp_path, capsys):
    from ratekeeper.commands.serve import greeting
    from ratekeeper.service.options import Options

    rules = tmp_path / "rules.toml"
    greeting(Options(rules=rules, resp="127.0.0.1:0"))({"http": ("0.0.0.0", 8080), "resp": ("127.0.0.1", 6380)})
    said = capsys.readouterr().err
    for words in (
        "http://127.0.0.1:8080/",
        "deny_status=429",
        "curl -si",
        f"edit {rules}, then kill -HUP",
        "redis-cli",
    ):
        assert words in said


def test_serve_obeys_the_environment_variable_of_the_store(monkeypatch):
    """As keys, peek, reset and check do."""
    started = []
    monkeypatch.setattr("ratekeeper.service.start.start", lambda options, _: started.append(options) or 0)
    assert run("serve", "--quiet", env={"RATEKEEPER_STORE": "redis://127.0.0.1:1/0"}).exit_code == 0
    assert run("serve", "--quiet", "--store", "memory://", env={"RATEKEEPER_STORE": "redis://x"}).exit_code == 0
    assert [options.store for options in started] == ["redis://127.0.0.1:1/0", "memory://"]


@pytest.mark.usefixtures("own_logs")
@pytest.mark.parametrize(
    ("words", "address"),
    [
        ([], "127.0.0.1:8080"),
        (["--port", 9000], "127.0.0.1:9000"),
        (["--host", "0.0.0.0"], "0.0.0.0:8080"),
        (["--host", "::1", "--port", 0], "[::1]:0"),
        (["--http", "127.0.0.1:1"], "127.0.0.1:1"),
        (["--http", "off"], None),
    ],
)
def test_a_host_and_a_port_are_the_address_of_http(monkeypatch, words, address):
    started = []
    monkeypatch.setattr("ratekeeper.service.start.start", lambda options, _: started.append(options) or 0)
    assert run("serve", "--quiet", *words).exit_code == 0
    assert [options.http for options in started] == [address]


@pytest.mark.usefixtures("own_logs")
def test_two_ways_to_say_the_address_are_one_too_many():
    result = run("serve", "--http", "off", "--port", 9000)
    assert (result.exit_code, "got both" in one_line(result)) == (2, True)
    result = run("serve", "--host", "127.0.0.1:9000")
    assert (result.exit_code, "Give the port with --port." in one_line(result)) == (2, True)
