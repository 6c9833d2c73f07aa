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
def test_serve_tells_a_mistake_and_opens_nothing(tmp_path):
    found = run("serve", tmp_path / "none.toml")
    assert found.exit_code == 2
    assert run("serve", "--http", "nonsense").exit_code == 2
    assert run("serve", "--http", "off").exit_code == 2
    found = run("serve", "--envoy-config", tmp_path / "none.yaml")
    assert (found.exit_code, "expected --grpc HOST:PORT beside --envoy-config" in one_line(found)) == (2, True)
    found = run("serve", "--http", "127.0.0.1:0", "--state", "/proc/none")
    assert (found.exit_code, "--state: expected a folder to write in, got '/proc/none'" in one_line(found)) == (2, True)


@pytest.mark.usefixtures("own_logs")
@pytest.mark.parametrize("door", ["--http", "--resp", "--grpc"])
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("shares", [False, True])
def test_serve_tells_of_an_address_that_is_taken(door, workers, shares):
    """Also where both share theirs with workers: two services would each count half of the calls, without a word."""
    with socket.create_server(("127.0.0.1", 0), reuse_port=shares) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        found = run("serve", "--http", "off", door, address, "--workers", workers)
    assert found.exit_code == 2, found.output
    assert f"{door}: expected an address that" in one_line(found)
    assert address in one_line(found)


def one_line(found):
    return found.output.replace("\n", " ")


@pytest.mark.usefixtures("own_logs")
def test_serve_opens_one_door_at_each_address():
    address = f"127.0.0.1:{free_port()}"
    found = run("serve", "--http", address, "--resp", address, "--workers", 2)
    assert found.exit_code == 2
    assert f"--resp: expected an address of its own, got '{address}', that of --http." in one_line(found)


def test_the_service_says_what_to_open_and_to_type(tmp_path, capsys):
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
