"""The WSGI middleware, through werkzeug's test client and the validator of the standard library."""

import gc
from wsgiref.validate import validator

import pytest
from werkzeug.test import Client

from ratekeeper.adapters.wsgi import RateLimitMiddleware, request_of
from tests.adapters.cases import CASES, HERE, Answer, Step, rules, run


def application(environ, start_response):
    start_response("200 OK", [("X-App", "yes"), ("Content-Type", "text/plain")])
    return iter([b"one", b"two", b"three"]) if environ["PATH_INFO"] == "/stream" else [b"ok"]


def send(app, step):
    answer = Client(app).open(
        step.path, method=step.method, headers=list(step.headers), environ_overrides={"REMOTE_ADDR": step.peer}
    )
    with answer:
        return Answer(answer.status_code, [(name.lower(), value) for name, value in answer.headers], answer.data)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cases(case):
    def client(policy):
        app = RateLimitMiddleware(application, policy)
        return lambda step: send(app, step)

    run(case, client)


def test_what_is_sent_keeps_to_pep_3333():
    app = validator(RateLimitMiddleware(validator(application), rules({"limit": "2/minute"})))
    assert [send(app, Step(method=method)).status for method in ("GET", "POST", "GET", "HEAD")] == [200, 200, 429, 429]


def test_a_stream_is_handed_on_as_it_is():
    class Stream:
        closed = False

        def __iter__(self):
            return iter([b"x"])

        def close(self):
            self.closed = True

    stream = Stream()

    def streaming(environ, start_response):
        start_response("200 OK", [])
        return stream

    app = RateLimitMiddleware(streaming, rules({"limit": "1/minute"}))
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "REMOTE_ADDR": HERE}
    assert (
        app(environ, lambda status, headers: None) is stream
    )  # neither gathered nor wrapped: close and file_wrapper work


def test_a_request_leaves_nothing_to_the_garbage_collector():
    app = RateLimitMiddleware(application, rules({"limit": "1000/minute"}))

    def ask():
        environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "REMOTE_ADDR": HERE, "HTTP_ACCEPT": "*/*"}
        app(environ, lambda status, headers: None)

    ask()
    gc.collect()
    for _ in range(20):
        ask()
    assert gc.collect() < 20  # a cycle among the environ, the request and its verdict would leave some of each


def test_an_error_of_the_application_may_start_again():
    started = []

    def failing(environ, start_response):
        start_response("200 OK", [])
        try:
            raise ZeroDivisionError
        except ZeroDivisionError as error:
            start_response("500 Oops", [], (type(error), error, None))
        return []

    app = RateLimitMiddleware(failing, rules({"limit": "1/minute"}))
    app({"REQUEST_METHOD": "GET", "PATH_INFO": "/"}, lambda *arguments: started.append(arguments))
    assert [(status, len(rest)) for status, _, *rest in started] == [("200 OK", 0), ("500 Oops", 1)]
    assert all(dict(headers)["x-ratelimit-remaining"] == "0" for _, headers, *_ in started)


def test_facts_are_what_the_application_verified():
    settings = rules({"by": "user", "limit": "1/minute"}, identity={"user": "app:user"})
    app = RateLimitMiddleware(application, settings, facts=lambda environ: {"user": environ["REMOTE_ADDR"][-1]})
    assert [send(app, Step(peer=peer)).status for peer in ("192.0.2.1", "198.51.100.1", "192.0.2.2")] == [200, 429, 200]


def test_a_request_is_read_from_its_environ():
    environ = {
        "REQUEST_METHOD": "POST",
        "SCRIPT_NAME": "/app",
        "PATH_INFO": "/caf\u00c3\u00a9",
        "QUERY_STRING": "a=b",
        "REMOTE_ADDR": "",  # a UNIX socket
        "CONTENT_LENGTH": "12",
        "HTTP_X_API_KEY": "k",
        "HTTP_HOST": "Example.com:80",
    }
    request = request_of(environ)
    assert (request.method, request.path, request.peer, request.query) == ("POST", "/app/café", None, b"a=b")
    assert (request.length, request.value(b"x-api-key"), request.host) == (12, "k", "example.com")


def test_header_fields_are_found_in_the_environ_as_they_are_listed():
    environ = {
        "REQUEST_METHOD": "POST", "PATH_INFO": "/x", "CONTENT_LENGTH": "7", "HTTP_X_NAME": " café ", "HTTP_HOST": "h",
        "HTTP_EMPTY": "",
    }  # fmt: skip
    request = request_of(environ)
    assert dict(request.headers) == {
        b"content-length": b"7", b"x-name": " café ".encode("latin-1"), b"host": b"h", b"empty": b"",
    }  # fmt: skip
    for name, value in request.headers:
        assert request.values(name) == [value.decode("latin-1")]
        assert request.value(name) == (value.decode("latin-1").strip() or None)
    assert request.values(b"x_name") == request.values(b"missing") == []
    assert request.value(b"x_name") is None
    assert (request.length, request.host) == (7, "h")
    assert request_of({**environ, "CONTENT_LENGTH": ""}).values(b"content-length") == []
