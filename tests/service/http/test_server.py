"""The HTTP listener: order, bounds, and clients that mean harm."""

import asyncio
import socket
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratekeeper.service.options import Bounds
from tests import tier
from tests.service.running import running

CHECK = b'{"key":"%b","limit":"%d/hour"}'


def post(body, more=b""):
    return b"POST /v1/check HTTP/1.1\r\nhost: x\r\n%bcontent-length: %d\r\n\r\n%b" % (more, len(body), body)


def talk(service, sent):
    """What comes back until the listener hangs up."""
    with socket.create_connection(service.addresses["http"], 60) as client:
        client.sendall(sent)
        found = b""
        while part := client.recv(65536):
            found += part
        return found


@pytest.fixture(scope="module")
def service():
    with running() as found:
        yield found


def test_requests_sent_ahead_are_answered_in_order(service):
    sent = b"".join([post(CHECK % (b"ahead", 50)) for _ in range(60)])
    found = talk(service, sent + b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    left = [int(part.partition(b'"remaining":')[2].partition(b",")[0]) for part in found.split(b"HTTP/1.1 ")[1:61]]
    assert left == [*range(49, -1, -1), *[0] * 10]
    assert found.endswith(b"ok\n")


def test_exactly_the_limit_passes_of_ten_times_as_many_at_once(service):
    """Thirty connections, all pipelining."""
    found = []

    def client():
        sent = b"".join([post(CHECK % (b"crowd", 100)) for _ in range(33)])
        found.append(talk(service, sent + b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"))

    threads = [threading.Thread(target=client) for _ in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    text = b"".join(found)
    assert text.count(b'"allowed":true') == 100
    assert text.count(b'"allowed":false') == 30 * 33 - 100


def test_head_has_the_headers_and_no_body(service):
    found = talk(service, b"HEAD /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert b"content-length: 3\r\n" in found
    assert found.endswith(b"\r\n\r\n")


BROKEN = [
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b" 400 "),
    (b"GET / HTTP/9.9\r\n\r\n", b" 400 "),
    (
        b"POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b" 400 ",
    ),
    (b"POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab", b" 400 "),
    (b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 40_000 + b"\r\n\r\n", b" 431 "),
    (b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\n\r\n", b" 431 "),
    (b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 300 + b"\r\n", b" 431 "),
    (b"POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: 300000\r\n\r\n" + b"a" * 300_000, b" 413 "),
]


@pytest.mark.parametrize(("sent", "status"), BROKEN)
def test_what_cannot_be_taken_is_refused_and_the_connection_closed(service, sent, status):
    found = talk(service, sent)
    assert status in found.split(b"\r\n")[0] + b" "
    assert b"connection: close" in found


@pytest.mark.full  # it waits
def test_slow_clients_are_cut_off():
    with running(bounds=Bounds(send_for=0.0)) as service:
        assert b" 408 " in talk(service, b"GET / HTTP/1.1\r\nhost:")
    with running(bounds=Bounds(idle_for=0.0)) as service:
        assert talk(service, b"") == b""


def test_more_connections_than_there_is_room_for_are_rejected():
    with running(bounds=Bounds(connections=2)) as service:
        address = service.addresses["http"]
        with socket.create_connection(address) as one, socket.create_connection(address) as two:
            for client in (one, two):
                client.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
                assert client.recv(100).startswith(b"HTTP/1.1 200")
            assert talk(service, b"").startswith(b"HTTP/1.1 503")


def test_answers_under_way_finish_and_health_turns_red_first(tmp_path, monkeypatch):
    noticed, sleep, drain = asyncio.Event(), asyncio.sleep, 0.25  # the balancer's turn, as long as it takes

    async def until_noticed(seconds):
        await (noticed.wait() if seconds == drain else sleep(seconds))

    monkeypatch.setattr(asyncio, "sleep", until_noticed)
    rules = '[[rules]]\nname = "queue"\nby = "all"\nlimit = "100/second burst 100 leaky_bucket"\n'
    with running(tmp_path, 'trusted_proxies = ["127.0.0.1"]\n' + rules, drain=drain) as service:
        statuses = []
        threads = [
            threading.Thread(target=lambda: statuses.append(service.call("GET", "/v1/auth/path/")[0]))
            for _ in range(20)
        ]
        for thread in threads:
            thread.start()
        closing = threading.Thread(target=lambda: service.run(service.worker.close()))
        while service.worker.decider.counters.calls.get("http", 0) < 20:
            pass
        closing.start()
        while service.worker.decider.is_ready:
            pass
        assert service.call("GET", "/readyz")[0] == 503
        service.loop.call_soon_threadsafe(noticed.set)
        for thread in threads:
            thread.join()
        closing.join()
        assert statuses == [200] * 20


def test_an_answer_that_waits_holds_back_those_behind_it(tmp_path):
    rules = '[[rules]]\nname = "queue"\nby = "all"\nlimit = "20/second burst 20 leaky_bucket"\n'
    with running(tmp_path, 'trusted_proxies = ["127.0.0.1"]\n' + rules) as service:
        turn = b"GET /v1/auth/path/ HTTP/1.1\r\nhost: x\r\n\r\n"
        missing = b"GET /nowhere HTTP/1.1\r\nhost: x\r\n\r\n"
        last = b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        found = talk(service, turn + turn + missing + turn + last)
        assert [part[:3] for part in found.split(b"HTTP/1.1 ")[1:]] == [b"200", b"200", b"404", b"200", b"200"]
        assert found.endswith(b"ok\n")


@settings(max_examples=tier.examples(150))
@given(
    st.one_of(
        st.binary(max_size=300),
        st.tuples(
            st.sampled_from([b"GET", b"POST", b"BREW", b""]),
            st.sampled_from([b"/", b"/v1/check", b"/v1/auth", b"/v1/auth/path/%;", b"*", b"http://x/", b"/%zz\xff"]),
            st.lists(st.binary(max_size=40), max_size=4),
            st.binary(max_size=100),
        ).map(lambda parts: b"%b %b HTTP/1.1\r\n%b\r\n\r\n%b" % (parts[0], parts[1], b"\r\n".join(parts[2]), parts[3])),
    )
)
def test_no_bytes_bring_the_listener_down(service, sent):
    with socket.create_connection(service.addresses["http"], 60) as client:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        found = b""
        while part := client.recv(65536):
            found += part
    assert b" 500 " not in found
    assert service.call("GET", "/healthz")[0] == 200
