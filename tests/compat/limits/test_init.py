"""``install()``: flask-limiter and slowapi, as they are, on our engine."""

import subprocess
import sys

import pytest


def run(script):
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


FLASK = """
from ratekeeper.compat import limits
limits.install()
from flask import Flask
from flask_limiter import Limiter
from flask_limiter.util import get_remote_address
app = Flask(__name__)
limiter = Limiter(get_remote_address, app=app, default_limits=["3/minute"], strategy="moving-window",
                  headers_enabled=True, storage_uri={uri!r}, **{options!r})
@app.route("/")
def root():
    return "hello"
with app.test_client() as client:
    answers = [client.get("/") for _ in range(4)]
print(*[answer.status_code for answer in answers], answers[1].headers["X-RateLimit-Remaining"])
print(type(limiter.storage).__module__)
"""


def test_flask_limiter_runs_on_our_engine():
    assert run(FLASK.format(uri="memory://", options={})) == [
        *["200"] * 3, "429", "1", "ratekeeper.compat.limits.storage",
    ]  # fmt: skip


def test_the_in_memory_fallback_of_flask_limiter_takes_over(redis_server):
    options = {"in_memory_fallback": ["2/minute"]}
    answers = run(FLASK.format(uri="redis://127.0.0.1:1", options=options))
    assert answers[:4] == ["200", "200", "429", "429"]


def test_slowapi_runs_on_our_engine():
    script = """
from ratekeeper.compat import limits
limits.install()
from slowapi import Limiter, _rate_limit_exceeded_handler
from slowapi.errors import RateLimitExceeded
from slowapi.util import get_remote_address
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient
limiter = Limiter(key_func=get_remote_address)
@limiter.limit("2/minute")
async def root(request: Request):
    return PlainTextResponse("hello")
app = Starlette(routes=[Route("/", root)])
app.state.limiter = limiter
app.add_exception_handler(RateLimitExceeded, _rate_limit_exceeded_handler)
with TestClient(app) as client:
    print(*[client.get("/").status_code for _ in range(3)], type(limiter._storage).__module__)
"""
    assert run(script) == ["200", "200", "429", "ratekeeper.compat.limits.storage"]


@pytest.mark.parametrize("module", ["limits", "slowapi"])
def test_install_comes_first(module):
    script = f"""
import {module}
from ratekeeper.compat import limits as ours
try:
    ours.install()
except ValueError as error:
    print(error)
"""
    message = (
        f"install: expected to be called before {module} is imported, got it imported already. "
        "Move the call to the top of the program."
    )
    assert " ".join(run(script)) == message


def test_install_twice_is_once():
    script = """
from ratekeeper.compat import limits as ours
ours.install()
ours.install()
import limits
print(limits is ours)
"""
    assert run(script) == ["True"]
