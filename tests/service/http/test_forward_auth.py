"""The endpoint for nginx, Traefik and Caddy: it counts the original request of a trusted proxy."""

from tests.service.http.conftest import RULES
from tests.service.running import running


def test_auth_counts_the_original_request_of_a_trusted_proxy(service):
    headers = {"X-Original-Method": "POST", "X-Original-URI": "/submit?x=1", "X-Forwarded-For": "198.51.100.7"}
    answers = [service.call("GET", "/v1/auth", headers=headers) for _ in range(3)]
    assert [status for status, _, _ in answers] == [200, 200, 429]
    assert answers[2][1]["retry-after"] == "1800"
    status, fields, _ = service.call("GET", "/v1/auth?deny_status=403", headers=headers)
    assert (status, fields["x-ratelimit-status"], fields["retry-after"]) == (403, "429", "1800")


def test_auth_reads_what_traefik_and_caddy_write(service):
    headers = {"X-Forwarded-Method": "POST", "X-Forwarded-Uri": "/submit", "X-Forwarded-For": "198.51.100.8"}
    assert [service.call("GET", "/v1/auth", headers=headers)[0] for _ in range(3)] == [200, 200, 429]


def test_auth_reads_the_request_itself_behind_a_prefix(service):
    headers = {"X-Forwarded-For": "198.51.100.9"}
    assert [service.call("POST", "/v1/auth/submit", headers=headers)[0] for _ in range(3)] == [200, 200, 429]


def test_a_client_cannot_choose_what_it_is_counted_as(service):
    """A proxy passes a client's own headers on: both families at once are refused unless one is chosen."""
    both = {"X-Original-Method": "GET", "X-Original-URI": "/", "X-Forwarded-Method": "POST",
            "X-Forwarded-Uri": "/submit", "X-Forwarded-For": "198.51.100.10"}  # fmt: skip
    assert service.call("GET", "/v1/auth", headers=both)[0] == 400
    chosen = [service.call("GET", "/v1/auth?headers=forwarded", headers=both)[0] for _ in range(3)]
    assert chosen == [200, 200, 429]


def test_auth_believes_no_other_peer(tmp_path):
    with running(tmp_path, RULES.replace("127.0.0.1", "192.0.2.1")) as service:
        headers = {"X-Original-Method": "GET", "X-Original-URI": "/"}
        status, _, body = service.call("GET", "/v1/auth", headers=headers)
        assert status == 403
        assert body["detail"] == "auth: expected a proxy that trusted_proxies names, got another peer."
