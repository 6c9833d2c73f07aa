"""A real proxy in front of a small application, asking a real service: what each proxy's test needs."""

import http.client
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.servers import free_port

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
TOOLS = Path(sys.prefix, "tools")  # where scripts/ensure-tools puts what the machine does not have
RULES = """
trusted_proxies = ["127.0.0.1"]

[[rules]]
name = "all"
by = "ip"
limit = "10/hour"

[[rules]]
name = "writes"
match = "POST /write"
by = "ip"
limit = "2/hour"
"""
HTTP_FILES = [
    "nginx/fail-open", "nginx/fail-closed", "caddy/fail-open", "caddy/fail-closed", "traefik/fail-open",
    "traefik/fail-closed", "haproxy/fail-open", "haproxy/fail-closed", "ext_authz/fail-open", "ext_authz/fail-closed",
]  # fmt: skip
FILES = [*HTTP_FILES, "ratelimit/fail-open", "ratelimit/fail-closed"]


class App(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.seen += 1
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"hi")

    do_POST = do_GET

    def log_message(self, *words):
        pass


class Application(ThreadingHTTPServer):
    """``seen`` counts the requests that reached it."""

    daemon_threads = True
    seen = 0
    status = 200  # that ``Answer`` gives


@contextmanager
def application(handler=App):
    server = Application(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    server.port = server.server_address[1]
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Answer(App):
    """A service that answers every question with one status, as the real one does only when it is broken."""

    def do_GET(self):
        self.send_response(self.server.status)
        self.send_header("content-length", "0")
        self.end_headers()

    do_POST = do_GET


def binary(name, *places):
    present = next((str(place) for place in places if Path(place).exists()), None) or shutil.which(name)
    if present is None:
        pytest.skip(f"no {name} here")
    return present


@contextmanager
def started(words, port, folder):
    """A process that listens on ``port``."""
    log = (folder / "proxy.log").open("wb")
    process = subprocess.Popen(words, stdout=log, stderr=log)
    try:
        until = time.monotonic() + 20
        while True:
            try:
                call(port, "GET", "/ready-or-not", wait=10)  # counted, so it must not be asked for twice
                break
            except OSError:
                assert process.poll() is None, (folder / "proxy.log").read_text()
                assert time.monotonic() < until, (folder / "proxy.log").read_text()
                time.sleep(0.05)
        yield process
    finally:
        process.terminate()
        process.wait(20)
        log.close()


def call(port, method, path, body=None, wait=10, **headers):
    """The status, the header fields and the body of one answer."""
    status, fields, received = exchange(port, method, path, body, wait, list(headers.items()))
    return status, {name.lower(): value for name, value in fields}, received


def exchange(port, method, path, body=None, wait=10, headers=()):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=wait)
    body = body.encode() if isinstance(body, str) else body
    try:
        connection.putrequest(method, path)
        for name, value in headers:
            connection.putheader(name, value)
        if body is not None:
            connection.putheader("content-length", str(len(body)))
        connection.endheaders(body)
        answer = connection.getresponse()
        return answer.status, answer.getheaders(), answer.read()
    finally:
        connection.close()


def filled(path, **words):
    """A deployed configuration with its places filled in."""
    text = path.read_text()
    for name, value in words.items():
        assert name in text, f"{path}: {name}"
        text = text.replace(name, str(value))
    return text


def nginx(folder, variant, service, app):
    port = free_port()
    site = filled(
        DEPLOY / "nginx" / f"{variant}.conf",
        UPSTREAM=f"127.0.0.1:{app}", RATEKEEPER=f"127.0.0.1:{service}", LISTEN=f"127.0.0.1:{port}",
    )  # fmt: skip
    temporary = "".join(
        [f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")]
    )
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/pid; error_log {folder}/error.log; events {{}}\n"
        f"http {{ access_log off; large_client_header_buffers 8 64k; {temporary}\n{site}\n}}"
    )
    words = [binary("nginx", "/usr/sbin/nginx"), "-e", f"{folder}/error.log", "-c", f"{folder}/nginx.conf"]
    return started(words, port, folder), port


def caddy(folder, variant, service, app):
    port = free_port()
    words = {"UPSTREAM": f"127.0.0.1:{app}", "RATEKEEPER": f"127.0.0.1:{service}", "LISTEN": f"127.0.0.1:{port}"}
    (folder / "Caddyfile").write_text(filled(DEPLOY / "caddy" / f"{variant}.Caddyfile", **words))
    command = [binary("caddy"), "run", "--config", f"{folder}/Caddyfile", "--adapter", "caddyfile"]
    return started(command, port, folder), port


@contextmanager
def routed(running, port):
    """Traefik listens before it has read its routes, and answers 404 until then."""
    with running as process:
        until = time.monotonic() + 20
        while call(port, "GET", "/")[0] == 404:
            assert time.monotonic() < until
            time.sleep(0.05)
        yield process


def traefik(folder, variant, service, app):
    port, inner = free_port(), free_port()
    words = {"app:8000": f"127.0.0.1:{app}", "ratekeeper:8080": f"127.0.0.1:{service}", "127.0.0.1:8079":
             f"127.0.0.1:{inner}"}  # fmt: skip
    (folder / "dynamic.yml").write_text(filled(DEPLOY / "traefik" / f"{variant}.yml", **words))
    words = {":80\"": f"127.0.0.1:{port}\"", "127.0.0.1:8079": f"127.0.0.1:{inner}", "/etc/traefik/ratekeeper.yml":
             folder / "dynamic.yml"}  # fmt: skip
    static = filled(DEPLOY / "traefik" / "traefik.yml", **words)
    (folder / "traefik.yml").write_text(static + "global: {checkNewVersion: false, sendAnonymousUsage: false}\n")
    running = started([binary("traefik", TOOLS / "traefik"), f"--configFile={folder}/traefik.yml"], port, folder)
    return routed(running, port), port


def haproxy(folder, variant, service, app):
    port = free_port()
    words = {"UPSTREAM": f"127.0.0.1:{app}", "RATEKEEPER": f"127.0.0.1:{service}", "LISTEN": f"127.0.0.1:{port}",
             "LUA": folder / "ratekeeper.lua", "abns@ratekeeper": f"abns@ratekeeper-{port}"}  # fmt: skip
    if variant == "fail-closed":
        words["lua.ratekeeper open"] = "lua.ratekeeper closed"
    (folder / "haproxy.cfg").write_text(filled(DEPLOY / "haproxy" / "haproxy.cfg", **words))
    lua = filled(DEPLOY / "haproxy" / "ratekeeper.lua", **{"abns@ratekeeper": f"abns@ratekeeper-{port}"})
    (folder / "ratekeeper.lua").write_text(lua)
    return started([binary("haproxy", "/usr/sbin/haproxy"), "-f", f"{folder}/haproxy.cfg"], port, folder), port


def envoy(folder, name, variant, place, service, app):
    port, admin = free_port(), free_port()
    words = {
        "port_value: 10000": f"port_value: {port}",
        "port_value: 8000": f"port_value: {app}",
        f"port_value: {place}": f"port_value: {service}",
    }
    if variant == "fail-closed":
        mode, opposite = {
            "ext_authz": ("failure_mode_allow: true", "failure_mode_allow: false"),
            "ratelimit": ("failure_mode_deny: false", "failure_mode_deny: true"),
        }[name]
        words[mode + "\n"] = opposite + "\n"
    text = filled(DEPLOY / "envoy" / f"{name}.yaml", **words)
    text += f"admin: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {admin}}}}}}}\n"
    (folder / "envoy.yaml").write_text(text)
    command = [binary("envoy", TOOLS / "envoy"), "-c", f"{folder}/envoy.yaml", "--concurrency", "1", "-l", "error"]
    return started([*command, "--disable-hot-restart"], port, folder), port


@contextmanager
def proxy(folder, file, http, grpc, app):
    """The proxy with a deployed file, asking the service at these ports; gives the port of the proxy."""
    name, _, variant = file.partition("/")
    folder = folder / name / variant
    folder.mkdir(parents=True)
    if name == "ext_authz":
        running, port = envoy(folder, name, variant, 8080, http, app)
    elif name == "ratelimit":
        running, port = envoy(folder, name, variant, 8081, grpc, app)
    else:
        run = {"nginx": nginx, "caddy": caddy, "traefik": traefik, "haproxy": haproxy}[name]
        running, port = run(folder, variant, http, app)
    with running:
        yield port


@contextmanager
def service_process(folder, rules, *options):
    """``ratekeeper serve`` in a process of its own; gives the process and its ports."""
    (folder / "rules.toml").write_text(rules)
    http, grpc = free_port(), free_port()
    words = [sys.executable, "-m", "ratekeeper", "serve", folder / "rules.toml", "--http", f"127.0.0.1:{http}",
             "--grpc", f"127.0.0.1:{grpc}", "--quiet", *options]  # fmt: skip
    log = (folder / "service.log").open("wb")
    process = subprocess.Popen(words, stdout=log, stderr=log)
    try:
        until = time.monotonic() + 30
        while True:
            try:
                call(http, "GET", "/healthz")
                break
            except OSError:
                assert process.poll() is None, (folder / "service.log").read_text()
                assert time.monotonic() < until
                time.sleep(0.05)
        yield process, http, grpc
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGCONT)
            process.terminate()
        process.wait(30)
        log.close()
