"""Fair turns: a client with one small request never waits for the pipelines of others."""

from fuzz import listeners
from ratekeeper.service import connection as connection_module
from ratekeeper.service import listener as listener_module
from ratekeeper.service.http.response import response
from ratekeeper.service.http.server import HttpListener
from ratekeeper.service.options import Bounds

CHECK = b"POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}"


def http_listener():
    return listeners.made(lambda: HttpListener(lambda call: response(200, b"ok"), Bounds()))


def http_client(listener):
    connection, transport = listener.connection_class(listener), listeners.Transport()
    connection.connection_made(transport)
    return connection, transport


def set_clock(monkeypatch, clock):
    for module in (listener_module, connection_module):
        monkeypatch.setattr(module, "perf_counter", clock)


def test_in_one_turn_of_the_loop_one_larger_read_is_parsed_and_every_small_one(monkeypatch):
    set_clock(monkeypatch, lambda: 0.0)  # requests take no time
    listener = http_listener()
    clients = [http_client(listener) for _ in range(5)]
    for connection, _ in clients[:4]:
        connection.data_received(CHECK * 40)
    clients[4][0].data_received(CHECK)
    assert [bool(transport.sent) for _, transport in clients] == [True, False, False, False, True]
    listener.loop.run()
    answers = [bytes(transport.sent).count(b"HTTP/1.1 200 OK") for _, transport in clients]
    assert answers == [40, 40, 40, 40, 1]
    assert not any(transport.is_paused for _, transport in clients)
    clients[1][0].data_received(CHECK * 40)  # another turn
    assert bytes(clients[1][1].sent).count(b"HTTP/1.1 200 OK") == 80


def test_slices_become_smaller_while_requests_take_long(monkeypatch):
    now, took = [0.0], [0.002]

    def clock():
        now[0] += took[0]
        return now[0]

    set_clock(monkeypatch, clock)
    listener = http_listener()
    connection, transport = http_client(listener)
    sizes = []
    receive = connection.receive
    monkeypatch.setattr(connection, "receive", lambda part: (sizes.append(len(part)), receive(part)))
    connection.data_received(CHECK * 400)
    for took[0] in (0.002, 0.0):
        listener.loop.run()
    assert sizes[:5] == [4096, 2048, 1024, 512, 512]
    assert bytes(transport.sent).count(b"HTTP/1.1 200 OK") == 400
    connection.data_received(CHECK * 400)
    listener.loop.run()
    assert listener.slice == 4096
