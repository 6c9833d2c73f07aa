"""Servers that join ``X_Forwarded_For`` of a client with ``X-Forwarded-For`` of a proxy: the operator is told."""

import logging
import threading
from http.client import HTTPConnection
from wsgiref.simple_server import WSGIRequestHandler, make_server

import pytest

from ratekeeper import Policy
from ratekeeper.adapters.wsgi import RateLimitMiddleware

RULES = {"trusted_proxies": ["127.0.0.0/8"], "rules": [{"name": "a", "limit": "5/minute"}]}
ENVIRON = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "REMOTE_ADDR": "127.0.0.1"}


def hello(environ, start_response):
    start_response("200 OK", [("content-length", "0")])
    return [b""]


class Quiet(WSGIRequestHandler):
    def log_message(self, *arguments):
        pass


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_13_wsgiref_joins_the_names_and_the_operator_is_told_once(caplog):
    application = RateLimitMiddleware(hello, Policy.parse(RULES))
    with make_server("127.0.0.1", 0, application, handler_class=Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        try:
            for _ in range(2):
                connection = HTTPConnection(*server.server_address, timeout=60)
                connection.request("GET", "/", headers={"X-Forwarded-For": "203.0.113.9", "X_Forwarded_For": "1.2.3.4"})
                assert connection.getresponse().status == 200
                connection.close()
        finally:
            server.shutdown()
            thread.join()
    (warning,) = warnings_of(caplog)
    assert warning == (
        "'WSGIServer/0.2' joins X_Forwarded_For with X-Forwarded-For, so that a client behind a trusted proxy may "
        "choose its address. Let the proxy drop header names with underscores, as nginx does, or use a server that "
        "drops them: gunicorn, uWSGI, mod_wsgi, waitress."
    )


@pytest.mark.parametrize(
    ("server", "more", "expected"),
    [
        ("Cheroot/11.1.2 Server", {}, "'Cheroot/11.1.2 Server' joins X_Forwarded_For with X-Forwarded-For"),
        ("waitress", {}, "waitress removes X-Forwarded-For unless it is told clear_untrusted_proxy_headers=False"),
        ("waitress", {"HTTP_X_FORWARDED_FOR": "203.0.113.9"}, None),
        ("waitress", {"REMOTE_ADDR": "203.0.113.9"}, None),
        ("gunicorn/23.0.0", {}, None),
    ],
)
def test_13_only_servers_that_join_or_remove_names_are_warned_of(caplog, server, more, expected):
    middleware = RateLimitMiddleware(hello, Policy.parse(RULES))
    middleware({**ENVIRON, "SERVER_SOFTWARE": server, **more}, lambda *_: None)
    said = warnings_of(caplog)
    assert len(said) == (expected is not None)
    assert not said or said[0].startswith(expected)


def test_13_without_trusted_proxies_no_header_is_believed_so_nothing_is_said(caplog):
    middleware = RateLimitMiddleware(hello, limit="5/minute")
    middleware({**ENVIRON, "SERVER_SOFTWARE": "WSGIServer/0.2"}, lambda *_: None)
    assert warnings_of(caplog) == []
