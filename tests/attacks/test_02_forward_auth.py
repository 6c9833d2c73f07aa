"""Clients behind a proxy try to choose how ``/v1/auth`` reads or answers their request.

What Envoy asks is its prefix and then the client's own path and query, so everything behind the prefix is hostile.
"""

import socket

import pytest

from tests.service.running import running

RULES = """
trusted_proxies = ["127.0.0.1"]

[[rules]]
name = "login"
match = "/login"
by = "all"
limit = "1/hour"

[[rules]]
name = "cafe"
match = "/café"
by = "all"
limit = "1/hour"
"""


@pytest.fixture
def service(tmp_path):
    with running(tmp_path, RULES, still=True) as found:
        found.call("GET", "/v1/auth/path/login")
        found.call("GET", "/v1/auth/path/caf%C3%A9")
        yield found


def raw(service, target, *fields):
    """The status that the listener answers to a request line as it stands."""
    with socket.create_connection(service.addresses["http"], 60) as client:
        lines = [b"GET %b HTTP/1.1" % target, b"host: x", b"connection: close", *fields, b"", b""]
        client.sendall(b"\r\n".join(lines))
        received = b""
        while part := client.recv(65536):
            received += part
    return int(received.split(b" ", 2)[1])


QUERIES = [
    "deny_status=0429" + "0" * 4400, "deny_status=" + "4" * 5000, "deny_status=200", "deny_status=499", "deny_status=x",
    "deny_status=%34%32%39", "deny_status=%D9%A4", "deny_status=", "headers=original", "headers=forwarded",
    "headers=nonsense", "deny_status=404&headers=original", "&&&==", "?" * 100, "deny-200/original",
]  # fmt: skip


@pytest.mark.parametrize("query", QUERIES)
def test_02_the_query_of_a_client_changes_neither_status_nor_reading(service, query):
    spoof = {"X-Original-Method": "GET", "X-Original-URI": "/free", "X-Forwarded-Method": "GET",
             "X-Forwarded-Uri": "/free"}  # fmt: skip
    fields = [f"{name}: {value}".encode() for name, value in spoof.items()]
    assert raw(service, f"/v1/auth/path/login?{query}".encode(), *fields) == 429


@pytest.mark.parametrize(
    "target",
    [b"/login;v=1", b"/;x/login;jsessionid=1/", b"/login%3Bv=1", b"/x/..;a=b/login", b"/login#x", b"/login?#",
     b"//login", b"/Login", b"/./login", b"/%6cogin/", b"/caf\xc3\xa9", b"/CAF%c3%a9;x", b"/caf\xc3%a9",
     b"/login/deny-403/original/../..", b"/deny-200/../login", b"/original/../login"],
)  # fmt: skip
def test_02_every_spelling_of_a_path_meets_its_rule(service, target):
    # Raw bytes are not allowed in a request line, and the listener's parser rejects them: no 2xx either.
    assert raw(service, b"/v1/auth/path" + target) == (429 if target.isascii() else 400)
    original = [b"x-original-method: GET", b"x-original-uri: " + target]
    assert raw(service, b"/v1/auth/original", *original) == 429
    forwarded = [b"x-forwarded-method: GET", b"x-forwarded-uri: " + target]
    assert raw(service, b"/v1/auth/forwarded", *forwarded) == 429


def test_02_two_header_fields_of_one_name_are_an_error(service):
    for name in (b"method", b"uri", b"host"):
        fields = [b"x-original-method: GET", b"x-original-uri: /login", b"x-original-host: a"]
        fields.append(b"x-original-%b: /" % name)
        assert raw(service, b"/v1/auth/original", *fields) == 400


@pytest.mark.parametrize("status", ["0429" + "0" * 4400, "4" * 5000, "200", "099", "4e1", "%D9%A4", "", "4%202"])
def test_02_a_bad_status_is_a_mistake_of_the_caller_never_ours(service, status):
    for expected in (200, 400):  # an admitted call has no use for it
        body = {"key": "k", "limit": "1/hour"}
        assert service.post(f"/v1/check?deny_status={status}", body)[0] == expected
