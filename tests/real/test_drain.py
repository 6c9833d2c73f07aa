"""A service that is told to end while clients ask: every request that was sent is answered."""

import os
import signal
import socket
import threading
import time

import pytest

from tests.real.command import serving
from tests.real.load import Lag

pytestmark = pytest.mark.real
SHORT = bool(os.environ.get("RATEKEEPER_REAL_SHORT"))
CLIENTS = 40
REQUEST = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"


class Client(threading.Thread):
    """Asks one request after the other, on a kept connection as long as the service keeps it, until it is refused."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.port = port
        self.answered, self.lost, self.told = 0, [], 0  # told: answers that said the connection ends

    def run(self):
        while True:
            try:
                connection = socket.create_connection(("127.0.0.1", self.port), 20)
            except OSError:
                return  # refused at the listener: nothing was sent
            with connection:
                while self.ask(connection):
                    pass

    def ask(self, connection):
        response = b""
        try:
            connection.sendall(REQUEST)
            while b"ok\n" not in response:
                part = connection.recv(4096)
                if not part:
                    raise ConnectionResetError(f"closed after {response!r}")
                response += part
        except OSError as error:
            self.lost.append(str(error))
            return False
        self.answered += 1
        is_last = b"connection: close" in response.lower()
        self.told += is_last
        return not is_last


@pytest.mark.parametrize("workers", [1, 2])
def test_no_request_is_lost_when_the_service_ends_under_load(tmp_path, workers):
    """One to six requests of forty connections were, each time: connections that looked idle were closed at once."""
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rules]]\nname = "a"\nlimit = "1000000/day"\n')
    for _ in range(1 if SHORT else 20):
        with serving(tmp_path, rules, "--workers", workers) as service:
            clients = [Client(service.port) for _ in range(CLIENTS)]
            for client in clients:
                client.start()
            until = time.monotonic() + 60
            while not all(client.answered >= 5 for client in clients):
                assert time.monotonic() < until
                time.sleep(0.01)
            service.signal(signal.SIGTERM)
            for client in clients:
                client.join(60)
            assert service.process.wait(60) == 0
        assert not any(client.is_alive() for client in clients)
        assert all(client.answered for client in clients)
        assert [lost for client in clients for lost in client.lost] == []
        assert sum(client.told for client in clients) >= CLIENTS


def test_a_connection_that_is_idle_does_not_hold_up_the_end(tmp_path):
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rules]]\nname = "a"\nlimit = "1000000/day"\n')
    with serving(tmp_path, rules) as service, socket.create_connection(("127.0.0.1", service.port)) as connection:
        connection.sendall(REQUEST)
        assert connection.recv(4096).endswith(b"ok\n")
        began = time.monotonic()
        with Lag() as lag:
            service.signal(signal.SIGTERM)
            assert connection.recv(4096) == b""
            assert service.process.wait(60) == 0
        assert time.monotonic() - began < 5 + 20 * lag.worst
