"""The gRPC listener keeps HTTP/2 as h2spec reads it."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from ratekeeper.service import http2_listener
from tests.service.running import ANY, running

pytestmark = pytest.mark.real
VERSION = "v2.2.1+incompatible"
# h2spec sends no gRPC calls, and what it sends is answered at once: so no number of them is ever open at a time.
# nghttp2 ignores a stream whose number is too small, as it may have been reset.
EXCEPTIONS = {
    "Sends HEADERS frames that causes their advertised concurrent stream limit to be exceeded",
    "Sends stream identifier that is numerically smaller than previous",
}
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def h2spec():
    if not http2_listener.has_session():
        pytest.skip("the HTTP/2 session was not built: nghttp2 was missing")
    folder = ROOT / "build" / "go-tools"
    program = folder / "h2spec"
    if not program.exists():
        if shutil.which("go") is None:
            pytest.skip("no Go here to build h2spec")
        environment = os.environ | {"GOBIN": str(folder), "GOFLAGS": "-modcacherw"}
        command = ["go", "install", f"github.com/summerwind/h2spec/cmd/h2spec@{VERSION}"]
        if subprocess.run(command, env=environment, capture_output=True, timeout=500).returncode:
            pytest.skip("h2spec cannot be had here")
    return program


def test_the_listener_keeps_http2(h2spec, tmp_path):
    limits = tmp_path / "limits.yaml"
    limits.write_text("domain: edge\ndescriptors:\n  - {key: user, rate_limit: {unit: hour, requests_per_unit: 5}}\n")
    with running(envoy_config=limits, grpc=ANY, http=None) as service:
        port = service.addresses["grpc"][1]
        done = subprocess.run(
            [h2spec, "-h", "127.0.0.1", "-p", str(port), "-o", "5", "http2", "hpack", "generic"],
            capture_output=True, text=True, timeout=500,
        )  # fmt: skip
    counts = re.search(r"(\d+) tests, (\d+) passed, (\d+) skipped, (\d+) failed", done.stdout)
    assert counts is not None, done.stdout[-3000:] + done.stderr[-1000:]
    assert set(re.findall(r"× \d+: (.*)", done.stdout)) <= EXCEPTIONS, done.stdout[-6000:]
    assert int(counts[2]) > 100
