"""WSGI servers that join ``X_Forwarded_For`` of a client with ``X-Forwarded-For`` of a proxy: neither is believed."""

import logging
import threading
from http.client import HTTPConnection
from wsgiref.simple_server import WSGIRequestHandler, make_server

import pytest

from ratekeeper import Policy
from ratekeeper.adapters.wsgi import RateLimitMiddleware

CHEROOT = "cheroot.wsgi"
RULES = {"trusted_proxies": ["127.0.0.0/8"], "rules": [{"name": "a", "limit": "3/minute"}]}
TIERS = {
    "trusted_proxies": ["127.0.0.0/8"],
    "tiers": {"from": "header:X-Plan", "default": "free"},
    "rules": [{"name": "a", "limit": {"free": "1/minute", "paid": "100/minute"}}],
}


def hello(environ, start_response):
    start_response("200 OK", [("content-length", "0")])
    return [b""]


class Quiet(WSGIRequestHandler):
    def log_message(self, *arguments):
        pass


def on_wsgiref(application):
    server = make_server("127.0.0.1", 0, application, handler_class=Quiet)
    return server.server_address, lambda: server.serve_forever(0.01), server.shutdown, server.server_close


def on_cheroot(application):
    server = pytest.importorskip(CHEROOT).Server(("127.0.0.1", 0), application, numthreads=1)
    server.prepare()
    return server.bind_addr, server.serve, server.stop, lambda: None


def statuses(server, application, requests):
    """The status of each request, given as its header lines: a client's, as a proxy that drops nothing passes them."""
    address, serve, stop, close = server(application)
    thread = threading.Thread(target=serve)
    thread.start()
    try:
        answers = []
        for lines in requests:
            connection = HTTPConnection(*address, timeout=60)
            connection.putrequest("GET", "/")
            for name, value in lines:
                connection.putheader(name, value)
            connection.endheaders()
            answers.append(connection.getresponse().status)
            connection.close()
        return answers
    finally:
        stop()
        thread.join()
        close()


REAL = ("X-Forwarded-For", "203.0.113.9")
SPOOFED = [[REAL, ("X_Forwarded_For", f"192.0.2.{number}")] for number in range(6)]
SPOOFED_FIRST = [lines[::-1] for lines in SPOOFED]


@pytest.mark.parametrize("server", [on_wsgiref, on_cheroot])
@pytest.mark.parametrize("requests", [SPOOFED, SPOOFED_FIRST])
def test_13_a_client_does_not_choose_its_address(server, requests):
    application = RateLimitMiddleware(hello, Policy.parse(RULES))
    assert statuses(server, application, requests) == [200, 200, 200, 429, 429, 429]


@pytest.mark.parametrize("server", [on_wsgiref, on_cheroot])
def test_13_a_client_does_not_choose_its_tier(server):
    application = RateLimitMiddleware(hello, Policy.parse(TIERS))
    assert statuses(server, application, [[REAL, ("X_Plan", "paid")]] * 2) == [200, 429]


@pytest.mark.parametrize("server", [on_wsgiref, on_cheroot])
def test_13_a_proxy_that_drops_underscores_is_believed(server):
    application = RateLimitMiddleware(hello, Policy.parse({**RULES, "proxies_drop_underscores": True}))
    clients = [[("X-Forwarded-For", f"192.0.2.{number}")] for number in range(6)]
    assert statuses(server, application, clients) == [200] * 6


def test_13_the_operator_is_told_once(caplog):
    application = RateLimitMiddleware(hello, Policy.parse(RULES))
    assert statuses(on_wsgiref, application, SPOOFED[:2]) == [200, 200]
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warning == (
        "'WSGIServer/0.2' may join X_Forwarded_For, which any client can write, with X-Forwarded-For of a trusted "
        "proxy. So no header of the proxy is believed, and all its clients count as one. If the proxy drops header "
        "names with underscores, as nginx does, set proxies_drop_underscores = true in the rules. Or use a server that "
        "drops them: gunicorn, gevent, mod_wsgi, waitress."
    )
