"""Strangers reach the service through a browser, without a token, or with an empty one."""

import logging
import os

import grpc
import pytest
from envoy.extensions.common.ratelimit.v3 import ratelimit_pb2
from envoy.service.ratelimit.v3 import rls_pb2
from grpc_health.v1 import health_pb2

from ratekeeper.errors import InvalidInput
from ratekeeper.service.options import Options
from ratekeeper.service.start import warn_of_exposure
from tests.attacks.test_02_forward_auth import raw
from tests.commands.command import run
from tests.service.running import ANY, running

KEY = {"key": "k", "limit": "1/hour"}


@pytest.fixture(scope="module")
def service():
    with running(allowed_hosts=("limits.example.com",), admin_token="sesame") as found:
        yield found


@pytest.mark.parametrize("path", ["/", "/metrics", "/openapi.json", "/v1/status", "/v1/live", "/v1/check", "/nowhere"])
def test_09_a_name_that_was_rebound_to_this_address_reads_nothing(service, path):
    for _ in range(3):  # a head that is in the cache is refused like a new one
        assert service.call("GET", path, headers={"Host": "evil.example"})[0] == 421
    assert service.call("GET", "/healthz", headers={"Host": "evil.example"})[0] == 200


@pytest.mark.parametrize("path", ["/v1/check", "/v1/reset", "/v1/admin/kill", "/v1/admin/reload"])
@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1", "https://limits.example.com.evil"]
)
def test_09_another_page_changes_nothing(service, path, origin):
    headers = {"Origin": origin, "Authorization": "Bearer sesame", "Content-Type": "text/plain"}
    for _ in range(3):
        assert service.call("POST", path, KEY, headers)[0] == 403


def test_09_its_own_page_may_write(service):
    host = "{}:{}".format(*service.addresses["http"])
    for origin, name in ((f"http://{host}", host), ("https://limits.example.com", "limits.example.com")):
        assert service.call("POST", "/v1/check", KEY, {"Origin": origin, "Host": name})[0] == 200


def test_13_two_host_headers_are_refused_everywhere(service):
    for path in (b"/", b"/healthz", b"/v1/auth/path/", b"/v1/check"):
        assert raw(service, path, b"host: y") == 400


@pytest.mark.parametrize("option", ["--token", "--admin-token"])
@pytest.mark.parametrize("token", ["", " ", " padded", "padded ", "line\nfeed", "clé"])
def test_09_a_token_that_protects_nothing_is_refused(option, token):
    with pytest.raises(InvalidInput, match=f"{option}: expected a token of printable ASCII without spaces around it"):
        Options(**{option[2:].replace("-", "_"): token})


@pytest.mark.parametrize("name", ["RATEKEEPER_TOKEN", "RATEKEEPER_ADMIN_TOKEN"])
def test_09_an_empty_variable_is_no_token(name, monkeypatch):
    log = logging.getLogger("ratekeeper")
    before = log.handlers[:], log.level, log.propagate
    monkeypatch.setitem(os.environ, name, "")
    try:
        result = run("serve", "--http", "127.0.0.1:0")
    finally:
        log.handlers[:], log.propagate = before[0], before[2]
        log.setLevel(before[1])
    assert result.exit_code == 2
    assert f"{name}: expected a token" in result.output.replace("\n", " ")


def asked(channel, metadata):
    call = channel.unary_unary(
        "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
        rls_pb2.RateLimitRequest.SerializeToString,
        rls_pb2.RateLimitResponse.FromString,
    )
    entry = ratelimit_pb2.RateLimitDescriptor.Entry(key="path", value="/")
    descriptor = ratelimit_pb2.RateLimitDescriptor(entries=[entry])
    try:
        call(rls_pb2.RateLimitRequest(domain="d", descriptors=[descriptor]), timeout=20, metadata=metadata)
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def test_09_the_token_is_asked_on_every_listener():
    with running(token="open sesame", grpc=ANY, resp=ANY) as service:
        with grpc.insecure_channel("{}:{}".format(*service.addresses["grpc"])) as channel:
            bad = [(), [("authorization", "Bearer open")], [("authorization", "open sesame")],
                   [("authorization", "Bearer open sesame")] * 2, [("authorization", "Basic open sesame")]]  # fmt: skip
            assert [asked(channel, metadata) for metadata in bad] == [grpc.StatusCode.UNAUTHENTICATED] * len(bad)
            assert asked(channel, [("authorization", "Bearer open sesame")]) == grpc.StatusCode.OK
            check = channel.unary_unary(
                "/grpc.health.v1.Health/Check",
                health_pb2.HealthCheckRequest.SerializeToString,
                health_pb2.HealthCheckResponse.FromString,
            )
            assert check(health_pb2.HealthCheckRequest(), timeout=20).status == health_pb2.HealthCheckResponse.SERVING
        assert service.post("/v1/check", KEY)[0] == 401
        assert service.post("/v1/check", KEY, Authorization="Bearer open sesame")[0] == 200


@pytest.mark.parametrize(
    ("options", "warnings"),
    [
        ({"http": "127.0.0.1:8080", "grpc": "[::1]:1", "resp": "localhost:2"}, 0),
        ({"http": "0.0.0.0:8080"}, 2),
        ({"http": ":8080", "token": "t"}, 1),
        ({"http": None, "grpc": "10.0.0.1:8081"}, 2),
        ({"http": None, "resp": "[::]:6380", "token": "t"}, 1),
    ],
)
def test_09_listening_beyond_this_host_is_said_loudly(options, warnings, caplog):
    warn_of_exposure(Options(**options))
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == warnings
    assert all(message.startswith("EXPOSED: --") for message in messages)
