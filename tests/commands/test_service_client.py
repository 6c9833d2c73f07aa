"""Asking a service: what each trouble says, and that a token goes nowhere else."""

import http.server
import threading
from contextlib import contextmanager

import pytest

from ratekeeper.commands.output import CommandFailed
from ratekeeper.commands.service_client import ServiceClient, base_of, trouble_of
from ratekeeper.errors import InvalidInput
from tests.servers import closed_port
from tests.service.running import running


@contextmanager
def answering(status, body, **headers):
    """A server that is no ratekeeper; yields its URL and the requests that it got."""
    got = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            got.append((self.path, self.headers.get("authorization")))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", got
        finally:
            server.shutdown()
            thread.join()


def ask(url, token=None, path="/v1/status"):
    try:
        return ServiceClient(url, token, "--token").ask(path)
    except CommandFailed as error:
        return error.code, str(error).replace(base_of(url), "URL")


def test_a_service_answers_with_its_token_only():
    with running(token="sesame") as service:
        url = f"127.0.0.1:{service.addresses['http'][1]}"
        assert ask(url, "sesame")["workers"] == 1
        advice = "Give --token or RATEKEEPER_TOKEN."
        assert ask(url) == (2, f"URL: expected the token of the service, got none. {advice}")
        assert ask(url, "wrong") == (2, f"URL: expected the token of the service, got another one. {advice}")
        code, text = ask(url, "sesame", "/nowhere")
        assert (code, "nowhere" in text) == (2, True)  # the words of the service


def test_other_servers_are_told_from_a_service():
    with answering(200, b"<html>") as (url, _):
        assert ask(url) == (2, "URL: expected a ratekeeper service, got a page that is no JSON. Correct the URL.")
    with answering(404, b"not here") as (url, _):
        assert ask(url) == (2, "URL: expected a ratekeeper service, got the status 404. Correct the URL.")


def test_a_token_does_not_follow_a_redirect():
    with answering(200, b"{}") as (elsewhere, got), answering(302, b"", location=elsewhere) as (url, _):
        assert ask(url, "sesame") == (2, "URL: expected a ratekeeper service, got the status 302. Correct the URL.")
        assert got == []


def test_nobody_answers():
    with closed_port() as port:
        code, text = ask(f"http://127.0.0.1:{port}")
    assert code == 3
    assert text == "URL: does not answer ([Errno 111] Connection refused). Start it, or correct the URL."


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:99999", "http://[::1", ""])
def test_what_is_no_url(url):
    with pytest.raises(InvalidInput, match=r"URL: expected a URL such as http://127.0.0.1:8080, got"):
        base_of(url)


def test_a_base_has_no_password_and_no_path():
    assert base_of("https://user:pw@example.com:9/x?y") == "https://example.com:9"
    assert base_of("localhost:8080") == "http://localhost:8080"


def test_advice_fits_the_trouble():
    assert trouble_of("https", "CERTIFICATE_VERIFY_FAILED")[1] == "Name the authority with --ca FILE."
    assert trouble_of("http", "Remote end closed connection")[1] == "If it speaks TLS, use https:// in the URL."
    assert trouble_of("https", "certificate required")[1] == "If it asks for a certificate, give one with --cert FILE."
    assert trouble_of("https", "refused")[1] == "Start it, or correct the URL."
