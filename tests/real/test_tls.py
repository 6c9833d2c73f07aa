"""TLS as other programs meet it: curl, redis-cli, a browser; two workers that renew their certificates on SIGHUP."""

import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time

import pytest

from tests.real.proxies import binary
from tests.servers import free_port
from tests.service.certificates import Authority

pytestmark = pytest.mark.real


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


class Served:
    """``ratekeeper serve`` with two workers, and what it has printed."""

    def __init__(self, folder, authority, *more):
        self.folder, self.authority = folder, authority
        self.http, self.resp = free_port(), free_port()
        certificate, key = authority.issue("first")
        self.log = folder / "service.log"
        words = ["serve", "--http", f"127.0.0.1:{self.http}", "--resp", f"127.0.0.1:{self.resp}", "--workers", "2",
                 "--tls-cert", certificate, "--tls-key", key, *more]  # fmt: skip
        with self.log.open("wb") as log:
            self.process = subprocess.Popen([sys.executable, "-m", "ratekeeper", *words], stdout=log, stderr=log)

    def __enter__(self):
        self.wait_for("ratekeeper is ready")
        return self

    def __exit__(self, *error):
        self.process.terminate()
        assert self.process.wait(30) == 0

    def wait_for(self, text, times=1):
        until = time.monotonic() + 60
        while self.log.read_text().count(text) < times:
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < until, self.log.read_text()
            time.sleep(0.05)

    def subjects(self):
        """The names in the certificates that twenty connections see: both workers take part."""
        context = ssl.create_default_context(cafile=self.authority.path)
        names = set()
        for _ in range(20):
            with (
                socket.create_connection(("127.0.0.1", self.http), 30) as plain,
                context.wrap_socket(plain, server_hostname="localhost") as client,
            ):
                names.add(dict(part[0] for part in client.getpeercert()["subject"])["commonName"])
        return names


def output(*words):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=60, check=False)


def test_two_workers_renew_their_certificates_on_sighup(tmp_path, authority):
    with Served(tmp_path, authority) as service:
        assert service.subjects() == {"first"}
        authority.issue("second", file="first")
        os.kill(service.process.pid, signal.SIGHUP)
        service.wait_for("certificates reloaded", 2)
        assert service.subjects() == {"second"}
        (tmp_path / "first.crt").write_text("nonsense")
        os.kill(service.process.pid, signal.SIGHUP)
        service.wait_for("certificates not reloaded, the present ones stay", 2)
        assert service.subjects() == {"second"}


def test_curl_and_redis_cli_verify_the_service_and_show_their_certificate(tmp_path, authority):
    curl, redis_cli = binary("curl"), binary("redis-cli")
    certificate, key = authority.issue("client")
    with Served(tmp_path, authority, "--tls-client-ca", authority.path) as service:
        url = f"https://localhost:{service.http}/healthz"
        known = ["--cacert", authority.path, "--cert", certificate, "--key", key]
        assert output(curl, "-s", url, *known).stdout == "ok\n"
        assert output(curl, "-s", url, "--cacert", authority.path).returncode != 0  # no certificate
        assert output(curl, "-s", url).returncode == 60  # an authority that curl does not know
        assert output(curl, "-s", f"http://localhost:{service.http}/healthz").returncode != 0
        ask = [redis_cli, "-h", "127.0.0.1", "-p", service.resp]
        assert output(*ask, "--tls", *known, "PING").stdout.strip() == "PONG"
        throttled = output(*ask, "--tls", *known, "CL.THROTTLE", "k", "1", "1", "60").stdout.split()
        assert throttled[:3] == ["0", "2", "1"]
        assert "PONG" not in output(*ask, "--tls", "--cacert", authority.path, "PING").stdout


def test_the_link_that_is_printed_opens_a_dashboard_with_the_admin_token(tmp_path, authority):
    playwright = pytest.importorskip("playwright.sync_api")
    with Served(tmp_path, authority) as service, playwright.sync_playwright() as started:
        link = re.search(r"dashboard +(\S+)", service.log.read_text())[1]
        assert re.fullmatch(rf"https://127\.0\.0\.1:{service.http}/#admin=[\w-]{{32}}", link)
        browser = started.chromium.launch(executable_path=binary("chromium"), args=["--no-sandbox"])
        page = browser.new_context(ignore_https_errors=True).new_page()
        page.goto(link)
        page.on("dialog", lambda dialog: dialog.accept())
        playwright.expect(page.locator("#kill")).to_be_enabled()
        assert page.url == f"https://127.0.0.1:{service.http}/"  # the token is not left in the address bar
        page.locator("#kill").click()
        playwright.expect(page.locator("#said")).to_have_text("Done: limiting is stopped.")
        playwright.expect(page.locator("#kill")).to_have_text("Limit again")
        browser.close()
