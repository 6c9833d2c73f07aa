"""Which WSGI servers drop header names with underscores, and what the operator is told about the others."""

import io
import logging

import pytest

from ratekeeper import Policy
from ratekeeper.adapters.wsgi import RateLimitMiddleware
from ratekeeper.adapters.wsgi_server import joins_names

RULES = {"trusted_proxies": ["127.0.0.0/8"], "rules": [{"name": "a", "limit": "5/minute"}]}
ENVIRON = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "REMOTE_ADDR": "127.0.0.1"}


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        # Each was started and asked: it drops the name.
        ("gunicorn/27.0.1", False),
        ("gunicorn/22.0.0", False),
        ("gevent/20.0 Python/3.11", False),
        ("waitress", False),
        ("Werkzeug/3.1.9", False),
        ("Apache/2.4.62 (Debian) mod_wsgi/4.9.4 Python/3.11", False),
        # These join the two names, or keep the one that came last.
        ("gunicorn/20.1.0", True),
        ("gunicorn/", True),
        ("gunicorn", True),
        ("Cheroot/11.1.2 Server", True),
        ("WSGIServer/0.2", True),
        ("Granian", True),
        (None, True),  # uWSGI, Hypercorn, a2wsgi, asgiref, Starlette, Tornado, Twisted
        ("", True),
    ],
)
def test_servers(server, expected):
    environ = ENVIRON if server is None else {**ENVIRON, "SERVER_SOFTWARE": server}
    assert joins_names(environ) is expected


def test_the_server_of_django_drops_them_and_says_that_it_is_wsgiref():
    handlers = pytest.importorskip("django.core.handlers.wsgi")
    stream = handlers.LimitedStream(io.BytesIO(), 0)
    assert not joins_names({**ENVIRON, "SERVER_SOFTWARE": "WSGIServer/0.2", "wsgi.input": stream})
    assert joins_names({**ENVIRON, "SERVER_SOFTWARE": "WSGIServer/0.2", "wsgi.input": io.BytesIO()})


@pytest.mark.parametrize(
    ("server", "more", "expected"),
    [
        ("Cheroot/11.1.2 Server", {}, "'Cheroot/11.1.2 Server' may join X_Forwarded_For"),
        (None, {}, "The WSGI server may join X_Forwarded_For"),
        ("waitress", {}, "waitress removes X-Forwarded-For unless it is told clear_untrusted_proxy_headers=False"),
        ("waitress", {"HTTP_X_FORWARDED_FOR": "203.0.113.9"}, None),
        ("waitress", {"REMOTE_ADDR": "203.0.113.9"}, None),
        ("gunicorn/23.0.0", {}, None),
    ],
)
def test_only_servers_that_join_or_remove_names_are_warned_of(caplog, server, more, expected):
    middleware = RateLimitMiddleware(lambda *_: [], Policy.parse(RULES))
    named = {} if server is None else {"SERVER_SOFTWARE": server}
    middleware({**ENVIRON, **named, **more}, lambda *_: None)
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) == (expected is not None)
    assert not said or said[0].startswith(expected)


@pytest.mark.parametrize("rules", [{"rules": RULES["rules"]}, {**RULES, "proxies_drop_underscores": True}])
def test_where_no_header_can_be_forged_nothing_is_said(caplog, rules):
    middleware = RateLimitMiddleware(lambda *_: [], Policy.parse(rules))
    middleware({**ENVIRON, "SERVER_SOFTWARE": "WSGIServer/0.2"}, lambda *_: None)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
