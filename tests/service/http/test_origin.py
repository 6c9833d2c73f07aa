"""Host and Origin: a web page of a stranger cannot use this service through a visitor's browser."""

import pytest

from ratekeeper.service.http.origin import is_local, refusal
from ratekeeper.service.http.server import Call


def call_with(*headers):
    return Call("POST", "/v1/check", "", [(name.encode(), value.encode()) for name, value in headers], b"", "127.0.0.1")


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True), ("[::1]", True), ("10.1.2.3", True), ("localhost", True), ("dash.localhost", True),
        ("ratekeeper", True), ("ratekeeper.default.svc", True), ("a.b.svc.cluster.local", True), ("x.internal", True),
        ("", True), ("evil.example", False), ("127.0.0.1.evil.example", False), ("127.0.0.1.nip.io", False),
        ("local.evil.example", False), ("localhost.evil.example", False), ("svc.example", False),
    ],
)  # fmt: skip
def test_a_name_that_strangers_can_register_is_not_local(host, local):
    assert is_local(host) is local


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([("host", "127.0.0.1:8080")], None),
        ([("host", "127.0.0.1:8080"), ("origin", "http://127.0.0.1:8080")], None),
        ([("host", "LocalHost:8080"), ("origin", "http://localhost:8080")], None),
        ([("host", "limits.example.com"), ("origin", "https://limits.example.com")], None),
        ([("host", "ratekeeper:8080"), ("origin", "https://limits.example.com")], None),
        ([], None),
        ([("host", "evil.example:8080")], 421),
        ([("host", "evil.example."), ("origin", "http://evil.example.")], 421),
        ([("host", "127.0.0.1:8080"), ("origin", "http://evil.example")], 403),
        ([("host", "127.0.0.1:8080"), ("origin", "http://127.0.0.1:3000")], 403),
        ([("host", "127.0.0.1:8080"), ("origin", "null")], 403),
        ([("host", "127.0.0.1:8080"), ("origin", "")], 403),
        ([("host", "127.0.0.1:8080"), ("origin", "file://127.0.0.1:8080")], 403),
        ([("host", "127.0.0.1:8080"), ("origin", "http://127.0.0.1:8080"), ("origin", "http://evil.example")], 403),
        ([("origin", "http://evil.example")], 403),
    ],
)
def test_a_call_of_another_page_is_refused(headers, status):
    response = refusal(call_with(*headers), {"limits.example.com"})
    assert (None if response is None else int(response.split(b" ")[1])) == status


def test_the_refusals_say_what_to_do():
    response = refusal(call_with(("host", "evil.example")), ())
    assert (
        b"host: expected an address or an allowed name, got 'evil.example'. If this name is yours, start the service "
        b"with --allowed-host and the name."
    ) in response
    response = refusal(call_with(("host", "x"), ("origin", "null")), ())
    assert (
        b"origin: expected a page of this service, got 'null'. If that page is yours, start the service with "
        b"--allowed-host and its name."
    ) in response
