"""What every adapter does first: import its framework and take a policy; mistakes are reported at once."""

import importlib
import sys
from pathlib import Path
from runpy import run_path

import pytest
from flask import Flask

import ratekeeper.adapters
from ratekeeper import InvalidInput, InvalidRules
from ratekeeper.adapters import framework
from ratekeeper.adapters.asgi import RateLimitMiddleware
from ratekeeper.adapters.flask import RateLimiter
from ratekeeper.adapters.wsgi import RateLimitMiddleware as WsgiMiddleware


@pytest.mark.parametrize("policy", [5, None, ["10/minute"]])
@pytest.mark.parametrize("make", [
    lambda policy: RateLimitMiddleware(print, policy=policy),
    lambda policy: WsgiMiddleware(print, policy=policy),
    lambda policy: RateLimiter(Flask("app"), policy=policy) if policy else RateLimitMiddleware(print, policy=policy),
])  # fmt: skip
def test_what_is_no_policy_is_refused(make, policy):
    with pytest.raises(InvalidInput, match="policy: expected a Policy, the path of a rules file or a dictionary, got "):
        make(policy)


@pytest.mark.parametrize("make", [
    lambda policy: RateLimitMiddleware(print, policy=policy),
    lambda policy: RateLimiter(Flask("app"), policy=policy),
])  # fmt: skip
def test_a_limit_is_no_policy(make):
    with pytest.raises(InvalidInput) as caught:
        make("5/minute")
    assert str(caught.value) == (
        "policy: expected the path of a rules file, got the limit '5/minute'. "
        "Write policy={'rules': [{'name': 'all', 'limit': '5/minute'}]}."
    )
    with pytest.raises(InvalidRules, match=r"^cannot read 5\.toml: no such file or directory\.$"):
        make("5.toml")


@pytest.mark.parametrize(
    ("adapter", "package", "extra"),
    [
        ("aiohttp.py", "aiohttp", "aiohttp"),
        ("django/__init__.py", "django.conf", "django"),
        ("django/__init__.py", "asgiref.sync", "django"),
        ("drf.py", "rest_framework.exceptions", "drf"),
        ("fastapi.py", "fastapi", "fastapi"),
        ("flask.py", "flask", "flask"),
        ("grpc.py", "grpc", "grpc"),
    ],
)
def test_an_adapter_without_its_framework_names_the_extra(adapter, package, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModuleNotFoundError) as caught:
        run_path(str(Path(ratekeeper.adapters.__path__[0], adapter)))
    assert str(caught.value).partition(": ")[2] == (
        f"expected {package.partition('.')[0]} to be installed. Run: pip install 'ratekeeper[{extra}]'"
    )


def test_a_framework_that_lacks_something_itself_says_so():
    with pytest.raises(ModuleNotFoundError, match="No module named 'no_such_module'"), framework("adapter"):
        importlib.import_module("no_such_module")
