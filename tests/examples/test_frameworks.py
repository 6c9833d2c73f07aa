"""Each framework's example is started as its page says, on a free port of loopback, and called with a real client."""

import os
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.servers import free_port

ROOT = Path(__file__).parents[2]
HTTP = ["aiohttp", "django", "drf", "fastapi", "flask", "litestar", "quart", "starlette"]
WITH_ROUTE_LIMITS = {"aiohttp", "django", "drf", "fastapi", "flask"}
WITH_EXEMPTIONS = {"aiohttp", "django", "flask"}


@contextmanager
def started(name):
    """The port of the running example: it has said where it listens."""
    port = free_port()
    settings = {**os.environ, "PORT": str(port), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", f"examples.{name}_app"]
    example = subprocess.Popen(
        command, cwd=ROOT, env=settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    said = []
    try:
        for line in example.stdout:
            said.append(line)
            if re.search(rf"127\.0\.0\.1:{port}\b", line):
                break
        else:
            pytest.fail("".join(said))
        yield port
    finally:
        example.kill()
        example.stdout.close()
        example.wait()


@pytest.mark.full
@pytest.mark.parametrize("name", HTTP)
def test_an_http_example(name):
    with started(name) as port, httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        home = client.get("/")
        assert (home.status_code, home.json()) == (200, {"hello": "world"})
        assert home.headers["ratelimit-policy"] == '"per-ip";q=60;w=60'
        searches = [client.get("/search") for _ in range(6)]
        assert [answer.status_code for answer in searches] == [200] * 5 + [429]
        assert 1 <= int(searches[5].headers["retry-after"]) <= 12
        assert searches[5].json()["error"] == "rate_limited"
        if name in WITH_ROUTE_LIMITS:
            reports = [client.get("/report") for _ in range(3)]
            assert [answer.status_code for answer in reports] == [200, 200, 429]
            assert 1 <= int(reports[2].headers["retry-after"]) <= 30
        if name in WITH_EXEMPTIONS:
            health = client.get("/health")
            assert (health.status_code, "x-ratelimit-limit" in health.headers) == (200, False)


@pytest.mark.full
def test_the_grpc_example():
    with started("grpc") as port:
        settings = {**os.environ, "PORT": str(port)}
        command = [sys.executable, "-m", "examples.grpc_app", "call"]
        told = subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, text=True, timeout=100, check=True)
    *created, refused = told.stdout.splitlines()
    assert created == [f"created: order {number}" for number in range(5)]
    found = re.fullmatch(r"RESOURCE_EXHAUSTED: Too many requests\. Try again in \d+ seconds\. \((\d+) ms\)", refused)
    assert found
    assert 1 <= int(found[1]) <= 12_000


def test_every_framework_has_an_example_and_a_page():
    for name in [*HTTP, "grpc"]:
        assert (ROOT / "examples" / f"{name}_app.py").is_file()
        page = (ROOT / "docs" / "howto" / f"{name}.md").read_text("utf-8")
        assert f"examples/{name}_app.py" in page, name
