"""Bytes of one client that become commands of another: the Redis listener under every way to cut a command."""

import random
import shutil
import socket
import subprocess

import pytest
import redis

from ratekeeper.service.options import Bounds
from tests.service.running import ANY, running
from tests.service.test_command_parser import command

PONG = b"+PONG\r\n"
NO_PASSWORD = b"-NOAUTH Authentication required.\r\n"


@pytest.fixture(scope="module")
def service():
    with running(resp=ANY, still=True) as found:
        yield found


def connect(service):
    sock = socket.create_connection(service.addresses["resp"], 60)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def talk(service, parts):
    """Send parts, each when the server has read the one before; all it answers until it hangs up."""
    with connect(service) as sock, connect(service) as other:
        try:
            for part in parts:
                sock.sendall(part)
                other.sendall(command(b"PING"))
                assert other.recv(100) in (PONG, NO_PASSWORD)
            sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it has hung up already
        return received(sock)


def received(sock):
    answer = b""
    try:
        while part := sock.recv(65536):
            answer += part
    except ConnectionResetError:
        pass
    return answer


COMMANDS = [
    [b"CL.THROTTLE", b"five-%d", b"15", b"30", b"60"],
    [b"CL.THROTTLE", b"six-%d", b"15", b"30", b"60", b"2"],
    [b"RK.CHECK", b"%d", b"3/hour", b"COST", b"2"],
    [b"ECHO", b"a\r\n*1\r\n$4\r\nPING\r\n"],
    [b"PING"],
]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: f"{words[0].decode()}-{len(words)}")
def test_a_command_is_the_same_wherever_it_is_cut(service, words):
    def fresh(number):
        return command(*[word % number if b"%d" in word else word for word in words]) + command(b"PING")

    expected = talk(service, [fresh(10_000)])
    assert expected.endswith(PONG)
    for place in range(1, len(fresh(10_001))):
        sent = fresh(10_000 + place)
        assert talk(service, [sent[:place], sent[place:]]) == expected, place


def test_a_pipeline_is_the_same_in_any_parts(service):
    rng = random.Random(15)
    for turn in range(20):
        key = b"pipeline-%d" % turn
        sent = b"".join([command(b"CL.THROTTLE", key, b"19", b"20", b"3600") for _ in range(30)])
        places = sorted(rng.sample(range(1, len(sent)), rng.randrange(1, 12)))
        parts = [sent[start:end] for start, end in zip([0, *places], [*places, len(sent)], strict=True)]
        answers = talk(service, parts).split(b"*5\r\n")[1:]
        left = [int(answer.split(b"\r\n")[2][1:]) for answer in answers]
        assert left == [*range(19, -1, -1), *[0] * 10], turn


@pytest.mark.full  # 100,000 commands
def test_redis_cli_pipes_100_000_commands(service):
    binary = shutil.which("redis-cli")
    if binary is None:
        pytest.skip("no redis-cli here")
    sent = b"".join([command(b"CL.THROTTLE", b"piped-%d" % (number % 1000), b"99", b"100", b"60")
                     for number in range(100_000)])  # fmt: skip
    words = [binary, "-p", str(service.addresses["resp"][1]), "--pipe"]
    done = subprocess.run(words, input=sent, capture_output=True, check=True)
    assert b"errors: 0, replies: 100000" in done.stdout


def test_a_user_name_with_a_line_feed_is_a_user_name(service):
    """The replies of a pooled connection stay with their commands."""
    name = "eve\nCL.THROTTLE eve 1000 1000 1\r\n*1\r\n$4\r\nPING\r\n"
    with redis.Redis(port=service.addresses["resp"][1], socket_timeout=60, max_connections=1) as client:
        for key in ("bob", name, "bob", name):
            client.execute_command("CL.THROTTLE", key, 0, 1, 3600)
        assert client.execute_command("CL.THROTTLE", name, 0, 1, 3600)[0] == 1
        assert client.execute_command("CL.THROTTLE", "bob", 0, 1, 3600)[0] == 1
        assert client.ping() is True


def test_a_name_with_a_line_feed_in_two_segments(service):
    sent = command(b"CL.THROTTLE", b"mallory", b"0", b"1", b"3600") * 2
    evil = command(b"CL.THROTTLE", b"x\nPING\r\n", b"0", b"1", b"3600")
    for place in range(1, len(evil)):
        answer = talk(service, [sent, evil[:place], evil[place:]])
        assert PONG not in answer
        assert answer.count(b"*5\r\n") == 3


OTHER_PROTOCOLS = [
    b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nCL.THROTTLE victim 0 1 3600\r\n",
    b"GET /CL.THROTTLE HTTP/1.1\r\nHost: x\r\n\r\nPING\r\n",
    b"Host: 127.0.0.1\r\nPING\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nPING\r\n",
    b"EHLO mail.example.com\r\nPING\r\n",
    b"SSH-2.0-OpenSSH_9.0\r\nPING\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03PING\r\n",
    b"{\"jsonrpc\": \"2.0\"}\nPING\r\n",
    b"<?xml version=\"1.0\"?>\nPING\r\n",
]  # fmt: skip


@pytest.mark.parametrize("sent", OTHER_PROTOCOLS)
def test_another_protocol_is_hung_up_on(service, sent):
    """A browser that is led here, or a mail server: nothing that they carry runs as a command."""
    answer = talk(service, [sent])
    assert answer.startswith(b"-ERR Protocol error: ")
    assert answer.count(b"\r\n") == 1
    with redis.Redis(port=service.addresses["resp"][1], socket_timeout=60) as client:
        assert client.execute_command("CL.THROTTLE", "victim", 0, 1, 3600, 0)[2] == 1  # nothing was taken


def test_a_program_that_stops_speaking_arrays_is_hung_up_on(service):
    answer = talk(service, [command(b"PING"), b"PING\r\nPING\r\n"])
    assert answer == PONG + b"-ERR Protocol error: expected '*', got 'P'\r\n"


def held(service):
    return service.worker.listeners[1].held


def test_a_command_that_announces_too_much_is_refused_before_it_arrives(service):
    assert talk(service, [b"*2\r\n$4\r\nECHO\r\n$262145\r\n"]).startswith(b"-ERR Protocol error: expected a command of")
    words = [b"ECHO", *[b"x" * 40_000] * 8]
    assert talk(service, [command(*words)]).startswith(b"-ERR Protocol error: expected a command of at most 262144")


def test_incomplete_commands_of_all_clients_have_one_bound():
    """Clients that never finish a command hold no more than the bound, and do not keep others out."""
    with running(resp=ANY, bounds=Bounds(held=250_000)) as service:
        clients = [connect(service) for _ in range(40)]
        for client in clients:
            client.sendall(b"*2\r\n$4\r\nECHO\r\n$100000\r\n" + b"x" * 50_000)
        with connect(service) as good:
            for _ in range(5):
                good.sendall(command(b"PING"))
                assert good.recv(100) == PONG
                assert held(service) <= 250_000
        assert service.worker.decider.counters.turned_away["resp"] == 38  # the last two may go on
        assert clients[0].recv(100).startswith(b"-ERR Protocol error: expected the rest of the command sooner")
        for client in clients:
            client.close()
    assert held(service) == 0


def test_an_unknown_client_may_send_little():
    with running(resp=ANY, token="secret") as service:
        assert talk(service, [b"*2\r\n$4\r\nAUTH\r\n$16385\r\n"]).startswith(b"-ERR Protocol error")
        assert talk(service, [b"*11\r\n"]).startswith(b"-ERR Protocol error")
        sent = command(b"AUTH", b"secret") + command(b"ECHO", b"x" * 20_000)
        assert len(talk(service, [sent])) > 20_000


def test_an_http_header_without_end_is_refused():
    """The same hole in the other protocol: the bound holds inside a header, not only between two."""
    with running() as service, socket.create_connection(service.addresses["http"], 60) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nx: ")
        try:
            for _ in range(100):
                sock.sendall(b"x" * 10_000)
        except OSError:
            pass  # it has hung up
        assert received(sock).startswith(b"HTTP/1.1 431 ")
        assert service.worker.listeners[0].held == 0
