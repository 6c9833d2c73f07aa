"""Real nginx, Traefik, Caddy, HAProxy and Envoy ask a real service before a real application.

Each file of deploy/ is run in its two variants: fail open and fail closed.
"""

import json
import os
import signal
import time

import pytest

from tests.real.proxies import (
    FILES,
    HTTP_FILES,
    RULES,
    Answer,
    application,
    call,
    exchange,
    proxy,
    service_process,
)
from tests.servers import closed_port
from tests.service.running import ANY, running

pytestmark = pytest.mark.real


@pytest.fixture
def app():
    with application() as server:
        yield server


@pytest.fixture
def service(tmp_path):
    with running(tmp_path, RULES, grpc=ANY) as found:
        yield found


def ports(service):
    return service.addresses["http"][1], service.addresses["grpc"][1]


@pytest.mark.parametrize("file", FILES)
def test_the_limit_holds(tmp_path, file, service, app):
    """Of what is left of 10, exactly that many pass; a POST is counted as a POST; the fields and the body arrive."""
    with proxy(tmp_path, file, *ports(service), app.port) as port:
        used = app.seen
        posts = [call(port, "POST", "/write", b"x=1") for _ in range(4)]
        assert [status for status, _, _ in posts] == [200, 200, 429, 429]
        assert 1790 <= int(posts[2][1]["retry-after"]) <= 1800
        gets = [call(port, "GET", "/read") for _ in range(30)]
        statuses = [status for status, _, _ in gets]
        assert statuses.count(200) == 10 - used - 2
        assert statuses.count(429) == len(statuses) - statuses.count(200)
        _, fields, body = gets[-1]
        assert 300 <= int(fields["retry-after"]) <= 360
        assert fields["ratelimit"].startswith('"all";r=0;t=3')
        assert fields["ratelimit-policy"] == '"all";q=10;w=3600'
        assert (fields["x-ratelimit-limit"], fields["x-ratelimit-remaining"]) == ("10", "0")
        assert fields["content-type"].startswith("application/json")
        assert json.loads(body)["error"] == "rate_limited"
        if not file.startswith("traefik"):  # it has no way to add fields of the answer to the response
            assert gets[0][1]["ratelimit"].startswith(f'"all";r={10 - used - 3};')
        assert app.seen == 10
        spoof = {"X-Original-Method": "GET", "X-Original-URI": "/free", "X-Forwarded-For": "192.0.2.77",
                 "X-Forwarded-Uri": "/free", "X-RateLimit-Status": "200", "X-Original-Host": "x"}  # fmt: skip
        assert call(port, "GET", "/read?deny_status=200&headers=forwarded", **spoof)[0] == 429
        assert app.seen == 10


HOSTILE = [
    ("GET", "/read", [(f"x-{number}", "y") for number in range(201)]),
    ("GET", "/read", [("x-long", "y" * 40_000)]),
    ("GET", "/read", [(f"x-{number}", "y" * 900) for number in range(50)]),
    ("GET", "/read?" + "q" * 9_000, []),
    ("GET", "/" + "p" * 40_000, []),
    ("GET", "/read?deny_status=0429" + "0" * 4400, []),
    ("GET", "/read", [("content-length", "99999999999999999999")]),
    ("GET", "/read", [("expect", "100-continue")]),
    ("GET", "/read", [("x-forwarded-for", "1.2.3.4, " * 3000)]),
    ("GET", "/read", [("x-original-uri", "/a"), ("x-original-uri", "/b")]),
    ("GET", "/read", [("x-forwarded-uri", "/a"), ("x-forwarded-method", "HEAD")]),
    ("BREW", "/read", []),
    ("OPTIONS", "*", []),
    ("GET", "/read", [("connection", "x-forwarded-for, x-original-uri, x-original-method, x-forwarded-uri")]),
    ("GET", "http://other/read", []),
    ("GET", "/caf\xe9", []),
    ("GET", "/read#x", []),
    ("GET", "/%00", []),
]


@pytest.mark.parametrize("file", FILES)
def test_no_request_of_a_client_that_has_used_its_limit_reaches_the_application(tmp_path, file, service, app):
    with proxy(tmp_path, file, *ports(service), app.port) as port:
        while call(port, "GET", "/")[0] == 200:
            pass
        app.seen = 0
        for method, target, fields in HOSTILE:
            try:
                status = exchange(port, method, target.encode("latin-1").decode("latin-1"), headers=fields)[0]
            except (OSError, ValueError) as error:  # the proxy hung up, or http.client will not send it
                status = repr(error)
            assert app.seen == 0, (method, target[:40], fields[:1], status)


def outcome(port, app):
    """The status of one request, whether it reached the application, and its seconds."""
    app.seen, began = 0, time.monotonic()
    status = call(port, "GET", "/read", wait=30)[0]
    return status, app.seen, time.monotonic() - began


def expect(file, port, app):
    """The proxy answers in time, and as its variant says, although the service does not."""
    for _ in range(3):
        status, seen, seconds = outcome(port, app)
        if file.endswith("open"):
            assert (status, seen) == (200, 1)
        else:
            assert (status in (500, 502, 503, 504), seen) == (True, 0), status
        assert seconds < 2.0


@pytest.mark.parametrize("file", FILES)
def test_a_service_that_is_killed_hangs_or_restarts(tmp_path, file, app):
    with service_process(tmp_path, RULES) as (process, http, grpc), proxy(tmp_path, file, http, grpc, app.port) as port:
        assert outcome(port, app)[:2] == (200, 1)
        os.kill(process.pid, signal.SIGSTOP)
        expect(file, port, app)
        os.kill(process.pid, signal.SIGCONT)
        until = time.monotonic() + 20
        while (used := call(port, "GET", "/read"))[0] != 429:  # it limits again
            assert time.monotonic() < until, used
        process.kill()
        process.wait(20)
        expect(file, port, app)


@pytest.mark.parametrize("file", FILES)
def test_a_service_that_nobody_started(tmp_path, file, app):
    with closed_port() as http, closed_port() as grpc, proxy(tmp_path, file, http, grpc, app.port) as port:
        expect(file, port, app)


@pytest.mark.parametrize("file", HTTP_FILES)
def test_every_status_has_its_meaning(tmp_path, file, app):
    """4xx refuses, whoever is at fault; 5xx is a failure, and the variant decides."""
    with application(Answer) as broken, proxy(tmp_path, file, broken.port, 0, app.port) as port:
        for answered in (301, 400, 401, 403, 404, 408, 413, 422, 429, 431, 499, 500, 502, 503, 504):
            broken.status = answered
            status, seen, _ = outcome(port, app)
            passes = file.endswith("open") and answered >= 500
            assert (seen, status == 200) == (passes, passes), (answered, status)


@pytest.mark.parametrize("file", FILES)
def test_a_rule_that_denies_without_its_store_is_no_failure(tmp_path, file, app):
    with closed_port() as redis:
        rules = f'store = "redis://127.0.0.1:{redis}/0"\non_store_error = "deny"\n' + RULES
        with running(tmp_path, rules, grpc=ANY) as service, proxy(tmp_path, file, *ports(service), app.port) as port:
            for _ in range(3):
                status, seen, _ = outcome(port, app)
                assert seen == 0
                expected = 429 if file.startswith("ratelimit") else 403 if "ext_authz" in file else 503
                if file == "traefik/fail-open":
                    expected = 403
                assert status == expected


SPELLINGS = [
    "/write", "/write?x=1", "//write", "/Write", "/write/", "/%77rite", "/./write", "/x/../write", "/write;v=1",
]  # fmt: skip


@pytest.mark.parametrize("file", FILES)
def test_every_spelling_of_a_path_is_one_path(tmp_path, file, service, app):
    with proxy(tmp_path, file, *ports(service), app.port) as port:
        statuses = [call(port, "POST", path, b"x")[0] for path in SPELLINGS]
        assert statuses == [200, 200, *[429] * (len(SPELLINGS) - 2)]


def test_envoy_with_a_file_of_its_own_limits(tmp_path, app):
    limits = tmp_path / "limits.yaml"
    limits.write_text(
        "domain: edge\ndescriptors:\n  - key: remote_address\n    descriptors:\n"
        "      - {key: method, value: GET, descriptors: [{key: host, descriptors: [{key: path, value: /limited, "
        "rate_limit: {unit: day, requests_per_unit: 20, algorithm: gcra}}]}]}\n"
    )
    with (
        running(envoy_config=limits, grpc=ANY, http=None) as service,
        proxy(tmp_path, "ratelimit/fail-closed", 0, service.addresses["grpc"][1], app.port) as port,
    ):
        answers = [call(port, "GET", "/limited") for _ in range(50)]
        statuses = [status for status, _, _ in answers]
        assert (statuses.count(200), statuses.count(429)) == (20, 30)
        assert 4300 <= int(answers[-1][1]["retry-after"]) <= 4320
        assert call(port, "GET", "/other")[0] == 200
