"""What applications are given by mistake: told when they are made, in our words; and limits as values."""

import importlib
import sys
from pathlib import Path
from runpy import run_path

import pytest
from flask import Flask

import ratekeeper.adapters
from ratekeeper import InvalidInput, Limit
from ratekeeper.adapters import framework
from ratekeeper.adapters.aiohttp import rate_limit
from ratekeeper.adapters.asgi import RateLimitMiddleware
from ratekeeper.adapters.fastapi import RateLimit
from ratekeeper.adapters.flask import RateLimiter
from ratekeeper.adapters.route_limit import RouteLimit
from ratekeeper.adapters.wsgi import RateLimitMiddleware as WsgiMiddleware

NO_LIMIT = "limits: expected a limit or a list of them, got 5."


@pytest.mark.parametrize("policy", [5, None, ["10/minute"]])
@pytest.mark.parametrize("make", [
    lambda policy: RateLimitMiddleware(print, policy=policy),
    lambda policy: WsgiMiddleware(print, policy=policy),
    lambda policy: RateLimiter(Flask("app"), policy=policy) if policy else RateLimitMiddleware(print, policy=policy),
])  # fmt: skip
def test_what_is_no_policy_is_refused(make, policy):
    with pytest.raises(InvalidInput, match="policy: expected a Policy, the path of a rules file or a dictionary, got "):
        make(policy)


@pytest.mark.parametrize("make", [RateLimit, RouteLimit])
@pytest.mark.parametrize(
    ("limit", "words", "message"),
    [
        (5, {}, NO_LIMIT),
        (None, {}, "limits: expected a limit or a list of them, got None."),
        ([5], {}, "limit: expected text such as '100/minute' or a Limit, got 5 (int)."),
        ("5/minute", {"by": 5}, "rules[0].by[1] (rule '5/minute'): expected text, got 5."),
    ],
)
def test_what_is_no_limit_of_a_route_is_refused(make, limit, words, message):
    with pytest.raises(InvalidInput) as caught:
        make(limit, **words)
    assert str(caught.value).endswith(message)


@pytest.mark.parametrize("make", [RateLimit, RouteLimit, RateLimiter(Flask("app")).limit, rate_limit])
@pytest.mark.parametrize("word", ["key", "key_func", "identifier"])
def test_the_words_of_other_libraries_lead_to_by(make, word):
    with pytest.raises(InvalidInput) as caught:
        make("5/minute", **{word: print})
    assert str(caught.value) == (
        f"limit: expected 'by' to say which clients are counted apart, got {word!r}. Write by=, with a source such as "
        "'header:X-Api-Key' or a function."
    )


def test_a_limit_inherits_from_a_policy_and_nothing_else():
    with pytest.raises(InvalidInput) as caught:
        RateLimit("5/minute", policy="rules.toml")
    assert str(caught.value) == (
        "policy: expected the Policy that the limit inherits from, got 'rules.toml'. Use Policy.load first."
    )


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


def test_a_limit_of_a_route_may_be_a_value():
    (rule,) = RouteLimit(Limit(5, "minute", algorithm="sliding_log")).settings.rules
    assert rule.limits == {"": Limit("5/minute sliding_log")}
    (rule,) = RouteLimit([Limit(5, "minute"), "50/day"]).settings.rules
    assert str(rule.limits[""]) == "5/minute, 50/day"
