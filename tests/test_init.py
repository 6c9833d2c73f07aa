"""The public API: every public module, class and name is listed here, so that a new one is a decision."""

import importlib
import re
from pathlib import Path

import pytest

import ratekeeper
from ratekeeper import (
    AsyncLimiter,
    Decision,
    Limit,
    Limiter,
    LimitExceeded,
    MemoryStore,
    Policy,
    Request,
    StoreUnavailable,
    Verdict,
)
from ratekeeper.testing import FakeClock

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "reference" / "api.md").read_text("utf-8")

MODULES = {
    "ratekeeper.adapters.aiohttp": "exempt rate_limit setup verdict_of",
    "ratekeeper.adapters.asgi": "RateLimitMiddleware",
    "ratekeeper.adapters.django": "RateLimitMiddleware exempt rate_limit",
    "ratekeeper.adapters.drf": "AnonRateThrottle RateLimitThrottle ScopedRateThrottle SimpleRateThrottle "
    "UserRateThrottle exception_handler",
    "ratekeeper.adapters.fastapi": "RateLimit answer_limit_exceeded document",
    "ratekeeper.adapters.flask": "RateLimiter",
    "ratekeeper.adapters.grpc": "AsyncRateLimitInterceptor RateLimitInterceptor",
    "ratekeeper.adapters.wsgi": "RateLimitMiddleware",
    "ratekeeper.compat.limits": "install",
    "ratekeeper.lab": "ClientRetry Comparison Lane Replay SHAPES Simulation Suggestion Traffic "
    "load_trace recorded replay simulate traffic",
    "ratekeeper.lab.plots": "save_lanes",
    "ratekeeper.outbound": "Adaptive AsyncBudget Budget Meter ModelCall Pace Progress Retry TokenEstimator TooLate "
    "Usage UsageReader call_options pace throttle_bytes",
    "ratekeeper.outbound.aiohttp": "PacedMiddleware PacingTimeout",
    "ratekeeper.outbound.boto3": "AwsCall PacedCalls TooLate",
    "ratekeeper.outbound.grpc": "PacedInterceptor PacingTimeout paced_interceptors",
    "ratekeeper.outbound.httpx": "AsyncPacedTransport PacedTransport PacingTimeout",
    "ratekeeper.outbound.httpx2": "AsyncPacedTransport PacedTransport PacingTimeout",
    "ratekeeper.outbound.requests": "PacedAdapter PacingTimeout",
    "ratekeeper.sinks.event": "Event LimitResult",
    "ratekeeper.sinks.log": "LoggingSink",
    "ratekeeper.sinks.opentelemetry": "OpenTelemetrySink",
    "ratekeeper.sinks.prometheus": "PrometheusSink",
    "ratekeeper.stores": (
        "AsyncCompareAndSetStore AsyncPostgresStore AsyncRedisStore CompareAndSetStore MemcachedStore MemoryStore "
        "PostgresStore RedisStore SQLiteStore SharedStore ThreadedStore"
    ),
    "ratekeeper.stores.shared": "Segment SharedStore bytes_needed remove segments",
    "ratekeeper.testing": "FakeClock StoreContract TimedStoreContract frozen",
}

LIMITER = "acquire check clock close is_closed limit limits name peek refund reserve reset store"
RESERVATION = "decision renew settle settled"
REFUSAL = Decision(False, 5, 0, 1.5)

# Every public name of an object of each class.
CLASSES = [
    (Limiter("5/minute"), LIMITER),
    (AsyncLimiter("5/minute"), LIMITER),
    (Limiter("5/minute").reserve("k"), RESERVATION),
    (REFUSAL, "allowed at binding delay limit parts reason remaining reset_after reset_at retry_after"),
    (
        Verdict(False, (REFUSAL,)),
        "allowed binding decisions delay names reason remaining reset_after reset_at retry_after rule",
    ),
    (
        Limit("5/minute"),
        "algorithm burst capacity count debt is_leased is_unlimited parse period slices timezone "
        # for stores, not promised:
        "calendar ceiling drain full is_aligned is_queue layout micros owes parts period_name recovery rule slack unit",
    ),
    (LimitExceeded(REFUSAL), "add_note args decision limits name retry_after with_traceback"),
    (StoreUnavailable("here", "why"), "add_note args charged store why with_traceback"),
    (FakeClock(), "advance asleep auto micros move_to nanos now sleep wait"),
]

# Names that these classes promise, among others that are internal.
PROMISED = [
    (MemoryStore, "clear close size"),
    (
        Policy,
        "acheck acheck_message aclose agive_back arelease arenew asettle check check_message close explain give_back "
        "listen load parse release reload replace rules settle warnings watch",
    ),
    (Request, "host length value values"),
]


def public(value):
    return {name for name in dir(value) if not name.startswith("_")}


def test_the_package_has_at_most_twenty_names_all_of_them_real():
    assert len(ratekeeper.__all__) <= 20
    assert sorted(ratekeeper.__all__) == list(ratekeeper.__all__)
    for name in ratekeeper.__all__:
        assert getattr(ratekeeper, name).__doc__, name
    assert set(ratekeeper.__all__) <= set(dir(ratekeeper))  # those that are loaded later too


@pytest.mark.parametrize(("value", "names"), CLASSES, ids=lambda value: type(value).__name__)
def test_a_class_shows_these_names_and_no_others(value, names):
    assert public(value) == set(names.split())


@pytest.mark.parametrize(("cls", "names"), PROMISED, ids=lambda value: getattr(value, "__name__", ""))
def test_a_class_has_what_it_promises(cls, names):
    assert public(cls) >= set(names.split())


def test_a_limiter_has_at_most_fourteen_public_names_and_both_the_same():
    assert len(public(Limiter("5/minute"))) <= 14
    assert public(Limiter) == public(AsyncLimiter)


@pytest.mark.parametrize("name", sorted(MODULES.keys() - {"ratekeeper.adapters.drf"}))  # it needs a configured Django
def test_a_public_module_offers_what_it_promises(name):
    module = importlib.import_module(name)
    assert set(module.__all__) == set(MODULES[name].split())
    for each in module.__all__:
        assert getattr(module, each).__doc__, each


def test_the_reference_lists_the_public_modules():
    rows = re.findall(r"^\| \[?`(ratekeeper\.[\w.]+)`.*?\| (.*?) \|$", PAGE, re.M)
    assert {name: set(re.findall(r"`(\w+)`", names)) for name, names in rows} == {
        name: set(names.split()) for name, names in MODULES.items()
    }


def test_pages_import_public_names_only():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    text = "\n".join([page.read_text("utf-8") for page in pages])
    imports = re.findall(r"from (ratekeeper[\w.]*) import ([\w, ]+)", text)
    assert len(imports) > 50
    for module, names in imports:
        known = {*ratekeeper.__all__, "lab"} if module == "ratekeeper" else MODULES.get(module, "").split()
        for name in names.split(","):
            assert name.strip() in known or f"{module}.{name.strip()}" in MODULES, (module, name)
