"""The endpoint for nginx, Traefik, Caddy, HAProxy and Envoy: it counts the original request of a trusted proxy."""

import pytest

from ratekeeper.errors import InvalidInput
from ratekeeper.service.http.forward_auth import EXPECTED, question_of, target_of
from tests.service.http.conftest import RULES
from tests.service.running import running


def test_auth_counts_the_original_request_of_a_trusted_proxy(service):
    headers = {"X-Original-Method": "POST", "X-Original-URI": "/submit?x=1", "X-Forwarded-For": "198.51.100.7"}
    answers = [service.call("GET", "/v1/auth/original", headers=headers) for _ in range(3)]
    assert [status for status, _, _ in answers] == [200, 200, 429]
    assert (answers[2][1]["retry-after"], answers[2][1]["x-ratelimit-status"]) == ("1800", "429")
    assert "x-ratelimit-body" not in answers[2][1]


def test_a_proxy_that_understands_few_statuses_gets_the_rest_as_header_fields(service):
    headers = {"X-Original-Method": "POST", "X-Original-URI": "/submit", "X-Forwarded-For": "198.51.100.11"}
    answers = [service.call("GET", "/v1/auth/deny-403/original", headers=headers) for _ in range(3)]
    status, fields, body = answers[2]
    assert (status, fields["x-ratelimit-status"], fields["retry-after"]) == (403, "429", "1800")
    assert answers[0][0] == 200
    assert fields["x-ratelimit-body"].startswith('{"error": "rate_limited", ')
    assert body["error"] == "rate_limited"


def test_auth_reads_what_traefik_and_caddy_write(service):
    headers = {"X-Forwarded-Method": "POST", "X-Forwarded-Uri": "/submit", "X-Forwarded-For": "198.51.100.8"}
    assert [service.call("GET", "/v1/auth/forwarded", headers=headers)[0] for _ in range(3)] == [200, 200, 429]


def test_auth_reads_the_request_itself_behind_a_prefix(service):
    headers = {"X-Forwarded-For": "198.51.100.9"}
    assert [service.call("POST", "/v1/auth/path/submit", headers=headers)[0] for _ in range(3)] == [200, 200, 429]


def test_a_client_cannot_choose_what_it_is_counted_as(service):
    """A proxy passes a client's own headers on: only those that the address names are read."""
    both = {"X-Original-Method": "GET", "X-Original-URI": "/", "X-Forwarded-Method": "POST",
            "X-Forwarded-Uri": "/submit", "X-Forwarded-For": "198.51.100.10"}  # fmt: skip
    chosen = [service.call("GET", "/v1/auth/forwarded?headers=original", headers=both)[0] for _ in range(3)]
    assert chosen == [200, 200, 429]


@pytest.mark.parametrize(
    ("path", "form", "rest", "deny", "unavailable"),
    [
        ("/v1/auth/original", "original", "", 0, 0),
        ("/v1/auth/deny-403/original", "original", "", 403, 0),
        ("/v1/auth/unavailable-499/deny-400/forwarded", "forwarded", "", 400, 499),
        ("/v1/auth/path", "path", "", 0, 0),
        ("/v1/auth/path/", "path", "/", 0, 0),
        ("/v1/auth/path/deny-403/original", "path", "/deny-403/original", 0, 0),
        ("/v1/auth/unavailable-403/path//original", "path", "//original", 0, 403),
    ],
)
def test_the_address_says_where_the_request_is(path, form, rest, deny, unavailable):
    question = question_of(path)
    assert (question.form, question.path, question.deny, question.unavailable) == (form, rest, deny, unavailable)


@pytest.mark.parametrize(
    "path",
    ["/v1/auth", "/v1/auth/", "/v1/auth//original", "/v1/auth/original/", "/v1/auth/limited", "/v1/auth/deny-403",
     "/v1/auth/deny-200/original", "/v1/auth/deny-500/original", "/v1/auth/deny-0403/original",
     "/v1/auth/deny-٤٠٣/original", "/v1/auth/deny-403/deny-404/original", "/v1/auth/deny-" + "4" * 5000 + "/path/",
     "/v1/auth/ORIGINAL", "/v1/auth/pathological"],
)  # fmt: skip
def test_another_address_is_refused_and_says_what_to_write(path):
    with pytest.raises(InvalidInput) as caught:
        question_of(path)
    assert str(caught.value) == EXPECTED == (
        "auth: expected /v1/auth/original, /v1/auth/forwarded or /v1/auth/path/..., with deny-NNN or unavailable-NNN "
        "(400 to 499) before the last word. Correct the address in the proxy's configuration."
    )  # fmt: skip


def test_a_mistake_of_the_configuration_is_answered_with_400(service):
    for path in ("/v1/auth", "/v1/auth?headers=original", "/v1/auth/submit"):
        status, _, body = service.call("GET", path, headers={"X-Original-Method": "GET", "X-Original-URI": "/"})
        assert (status, body["detail"]) == (400, EXPECTED)
    status, _, body = service.call("GET", "/v1/auth/original", headers={"X-Original-URI": "/"})
    assert (status, body["detail"]) == (
        400,
        "auth: expected the original request in x-original-method and x-original-uri. Let the proxy set both.",
    )


def test_raw_bytes_and_fragments_are_other_spellings_of_a_path():
    assert target_of("/caf\xc3\xa9") == "/caf%C3%A9"
    assert target_of("/login#x") == "/login"
    assert target_of("#") == target_of("") == "/"
    assert target_of("/a?b=\xff") == "/a?b=%FF"


def test_auth_believes_no_other_peer(tmp_path):
    with running(tmp_path, RULES.replace("127.0.0.1", "192.0.2.1")) as service:
        headers = {"X-Original-Method": "GET", "X-Original-URI": "/"}
        status, _, body = service.call("GET", "/v1/auth/original", headers=headers)
        assert status == 403
        assert body["detail"] == "auth: expected a proxy that trusted_proxies names, got another peer."
