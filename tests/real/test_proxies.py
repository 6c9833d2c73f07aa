"""Real nginx, Traefik, Caddy, HAProxy and Envoy ask a real service before a real application."""

import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.real.proxies import DEPLOY, RULES, application, binary, call, filled, free_port, started
from tests.servers import closed_port
from tests.service.running import ANY, running

pytestmark = pytest.mark.real
TOOLS = Path(sys.prefix, "tools")  # where scripts/ensure-tools puts what the machine does not have


@contextmanager
def nginx(folder, pattern, service, app):
    port = free_port()
    site = filled(
        DEPLOY / "nginx" / f"{pattern}.conf",
        UPSTREAM=f"127.0.0.1:{app}", RATEKEEPER=f"127.0.0.1:{service}", LISTEN=f"127.0.0.1:{port}",
    )  # fmt: skip
    temporary = "".join(
        [f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")]
    )
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/pid; error_log {folder}/error.log; events {{}}\n"
        f"http {{ access_log off; {temporary}\n{site}\n}}"
    )
    words = [binary("nginx", "/usr/sbin/nginx"), "-e", f"{folder}/error.log", "-c", f"{folder}/nginx.conf"]
    with started(words, port, folder):
        yield port


@contextmanager
def caddy(folder, service, app):
    port = free_port()
    words = {"UPSTREAM": f"127.0.0.1:{app}", "RATEKEEPER": f"127.0.0.1:{service}", "LISTEN": f"127.0.0.1:{port}"}
    (folder / "Caddyfile").write_text(filled(DEPLOY / "caddy" / "Caddyfile", **words))
    with started([binary("caddy"), "run", "--config", f"{folder}/Caddyfile"], port, folder):
        yield port


@contextmanager
def traefik(folder, service, app):
    port = free_port()
    words = {"app:8000": f"127.0.0.1:{app}", "ratekeeper:8080": f"127.0.0.1:{service}"}
    (folder / "dynamic.yml").write_text(filled(DEPLOY / "traefik" / "dynamic.yml", **words))
    options = [f"--entrypoints.web.address=127.0.0.1:{port}", f"--providers.file.filename={folder}/dynamic.yml",
               "--global.checknewversion=false", "--global.sendanonymoususage=false"]  # fmt: skip
    with started([binary("traefik", TOOLS / "traefik"), *options], port, folder):
        until = time.monotonic() + 20
        while call(port, "GET", "/")[0] == 404:  # it listens before it has read its routes
            assert time.monotonic() < until
            time.sleep(0.05)
        yield port


@contextmanager
def haproxy(folder, service, app):
    port = free_port()
    words = {"UPSTREAM": f"127.0.0.1:{app}", "RATEKEEPER": f"127.0.0.1:{service}", "LISTEN": f"127.0.0.1:{port}",
             "LUA": DEPLOY / "haproxy" / "ratekeeper.lua"}  # fmt: skip
    (folder / "haproxy.cfg").write_text(filled(DEPLOY / "haproxy" / "haproxy.cfg", **words))
    with started([binary("haproxy", "/usr/sbin/haproxy"), "-f", f"{folder}/haproxy.cfg"], port, folder):
        yield port


@contextmanager
def envoy(folder, name, door, service, app):
    port, admin = free_port(), free_port()
    text = filled(DEPLOY / "envoy" / f"{name}.yaml", **{
        "port_value: 10000": f"port_value: {port}",
        "port_value: 8000": f"port_value: {app}",
        f"port_value: {door}": f"port_value: {service}",
    })  # fmt: skip
    text += f"admin: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {admin}}}}}}}\n"
    (folder / "envoy.yaml").write_text(text)
    words = [binary("envoy", TOOLS / "envoy"), "-c", f"{folder}/envoy.yaml", "--concurrency", "1", "-l", "error"]
    with started([*words, "--disable-hot-restart"], port, folder):
        yield port


@pytest.fixture
def app():
    with application() as port:
        yield port


@pytest.fixture
def service(tmp_path):
    with running(tmp_path, RULES) as found:
        yield found


def the_limit_holds(port, used):
    """Of what is left of 10, exactly that many pass; a POST is counted as a POST; Retry-After comes through."""
    posts = [call(port, "POST", "/write", b"x=1") for _ in range(4)]
    assert [status for status, _ in posts] == [200, 200, 429, 429]
    assert 1790 <= int(posts[2][1]["retry-after"]) <= 1800
    gets = [call(port, "GET", "/read") for _ in range(100)]
    statuses = [status for status, _ in gets]
    assert statuses.count(200) == 10 - used - 2
    assert statuses.count(429) == len(statuses) - statuses.count(200)
    assert 300 <= int(gets[-1][1]["retry-after"]) <= 360


@pytest.mark.parametrize("pattern", ["deny-403", "deny-429"])
def test_nginx(tmp_path, pattern, service, app):
    with nginx(tmp_path, pattern, service.addresses["http"][1], app) as port:
        spoof = {"X-Original-Method": "GET", "X-Original-URI": "/read", "X-Forwarded-For": "192.0.2.77"}
        the_limit_holds(port, 1)
        assert call(port, "GET", "/read", **spoof)[0] == 429


def test_nginx_lets_requests_pass_when_nobody_answers(tmp_path, app):
    with closed_port() as service, nginx(tmp_path, "deny-429", service, app) as port:
        assert call(port, "GET", "/read")[0] == 200


def test_caddy(tmp_path, service, app):
    with caddy(tmp_path, service.addresses["http"][1], app) as port:
        the_limit_holds(port, 1)
        assert call(port, "GET", "/", **{"X-Original-URI": "/free", "X-Forwarded-For": "192.0.2.77"})[0] == 429


def test_traefik(tmp_path, service, app):
    with traefik(tmp_path, service.addresses["http"][1], app) as port:
        the_limit_holds(port, 1)
        assert call(port, "GET", "/", **{"X-Original-URI": "/free", "X-Forwarded-For": "192.0.2.77"})[0] == 429


def test_haproxy(tmp_path, service, app):
    with haproxy(tmp_path, service.addresses["http"][1], app) as port:
        the_limit_holds(port, 1)


def test_envoy_ext_authz(tmp_path, service, app):
    with envoy(tmp_path, "ext_authz", 8080, service.addresses["http"][1], app) as port:
        the_limit_holds(port, 1)


def test_envoy_rate_limit_filter(tmp_path, app):
    limits = tmp_path / "limits.yaml"
    limits.write_text(
        "domain: edge\ndescriptors:\n"
        "  - {key: path, value: /limited, rate_limit: {unit: day, requests_per_unit: 20, algorithm: gcra}}\n"
    )
    with (
        running(envoy_config=limits, grpc=ANY, http=None) as service,
        envoy(tmp_path, "ratelimit", 8081, service.addresses["grpc"][1], app) as port,
    ):
        answers = [call(port, "GET", "/limited") for _ in range(200)]
        statuses = [status for status, _ in answers]
        assert (statuses.count(200), statuses.count(429)) == (20, 180)
        assert 4300 <= int(answers[-1][1]["retry-after"]) <= 4320
        assert call(port, "GET", "/other")[0] == 200
