"""Wrong arguments of outbound clients raise when the client is made, and the message says what to write."""

import httpx
import pytest

from ratekeeper import InvalidCost, InvalidInput, Limit
from ratekeeper.outbound import Adaptive, AsyncBudget, Budget, Retry, pace, throttle_bytes
from ratekeeper.outbound.aiohttp import PacedMiddleware
from ratekeeper.outbound.grpc import PacedInterceptor, paced_interceptors
from ratekeeper.outbound.httpx import AsyncPacedTransport, PacedTransport
from ratekeeper.outbound.requests import PacedAdapter

NO_STORE = "store: expected a URL such as 'redis://localhost:6379/0' or a store, got 5."
NO_RATE = "expected a rate, got '2 concurrent', which is held and given back. Use Limiter.limit or Limiter.reserve."
NO_OPTION = "expected an option (name, key, store, clock, parent, margin) or a unit with a limit such as '10000/minute'"
STORE = "Did you mean 'store'?"
NO_TIMEOUT = "timeout: expected seconds of at least 0, got -1."
NO_PERIOD = (
    "limit '5': expected '/' or 'per' after the count, got nothing. "
    "Write for example '100/minute' or '5 per 10 seconds'."
)
NO_LIMIT = (
    "limits: expected a limit such as '100/minute' or a list of limits, got 5. Write a period too, such as '5/minute'."
)


@pytest.mark.parametrize("kind", [PacedTransport, AsyncPacedTransport, PacedAdapter])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit": 5}, NO_LIMIT),
        ({"limit": b"5/second"}, "limit: expected text such as '100/minute' or a Limit, got b'5/second' (bytes)."),
        ({"store": 5}, NO_STORE),
        ({"retry": 5}, "retry: expected a Retry such as Retry(max_retries=5), got 5."),
    ],
)
def test_wrong_arguments_of_a_paced_client(kind, options, message):
    with pytest.raises(InvalidInput) as caught:
        kind(**options)
    assert str(caught.value) == message


@pytest.mark.parametrize("kind", [PacedTransport, AsyncPacedTransport, PacedAdapter, PacedMiddleware, PacedInterceptor])
@pytest.mark.parametrize("limit", ["2 concurrent", {"h": "2 concurrent"}, Limit("2 concurrent")])
def test_places_that_nothing_would_give_back_are_refused(kind, limit):
    with pytest.raises(InvalidInput) as caught:
        kind(limit=limit)
    assert str(caught.value) == (
        "limit: expected a rate, got '2 concurrent', which is held and given back. "
        "Pass concurrent= to a transport of httpx, or hold Limiter.reserve around the call."
    )


@pytest.mark.parametrize("chosen", ["2 concurrent", Limit("2 concurrent"), ["2 concurrent"]])
def test_a_function_that_chooses_places_is_refused(chosen):
    with httpx.Client(transport=PacedTransport(limit=lambda request: chosen)) as client, pytest.raises(InvalidInput):
        client.get("http://127.0.0.1:9/")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pace(5), NO_LIMIT),
        (lambda: pace("5/second", store=5), NO_STORE),
        (lambda: pace("2 concurrent"), f"pace: {NO_RATE}"),
        (lambda: Budget(calls="2 concurrent"), f"calls: {NO_RATE}"),
        (lambda: throttle_bytes([b"a"], Limit("2 concurrent")), f"rate: {NO_RATE}"),
        (lambda: Budget(tokens="5/second", store=5), NO_STORE),
        (lambda: Adaptive(store=5), NO_STORE),
        (lambda: Adaptive().hold(timeout=-1), "timeout: expected seconds of at least 0, got -1."),
        (lambda: Budget(tokens="5/second", parent=5), "parent: expected a Budget, got 5."),
        (
            lambda: Budget(tokens="5/second", stores="redis://:password@h"),
            f"Budget: {NO_OPTION}, got 'stores'. {STORE}",
        ),
        (lambda: Budget(tokens="5"), NO_PERIOD),
        (lambda: AsyncBudget(tokens=5), f"AsyncBudget: {NO_OPTION}, got 'tokens'."),
        (lambda: Budget(tokens="5/second").reserve(tokens=1, timeout=-1), NO_TIMEOUT),
        (lambda: throttle_bytes([b"a"], 5), "rate 5: expected bytes and a time, such as '1 MB/s', got 5."),
    ],
)
def test_wrong_arguments_of_everything_else(make, message):
    with pytest.raises(InvalidInput) as caught:
        make()
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: Budget("5/second"), "Budget: expected"),
        (lambda: AsyncBudget("5/second"), "AsyncBudget: expected"),
        (lambda: Budget(tokens="5/second").reserve(tokens=1).settle(1), "BudgetReservation.settle()"),
        (lambda: Budget(tokens="5/second").reserve(tokens=1).add(1), "BudgetReservation.add()"),
        (lambda: PacedTransport(limits="5/second"), "PacedTransport: expected"),
        (lambda: PacedInterceptor(limits="5/second"), "PacedInterceptor: expected"),
        (lambda: paced_interceptors(limits="5/second"), "paced_interceptors()"),
        (lambda: Adaptive(5), "Adaptive.__init__()"),
        (lambda: pace("5/second", limits=5), "Pace: expected"),
    ],
)
def test_a_wrong_argument_names_the_public_class(call, name):
    with pytest.raises(TypeError) as caught:
        call()
    assert str(caught.value).startswith(name)


@pytest.mark.parametrize(
    ("thing", "names"),
    [
        (Budget(tokens="5/second"), {"child", "close", "left", "reserve"}),
        (AsyncBudget(tokens="5/second"), {"child", "close", "left", "reserve"}),
        (Budget(tokens="5/second").reserve(tokens=1), {"add", "learn", "retry_after", "settle", "used"}),
        (AsyncBudget(tokens="5/second").reserve(tokens=1), {"add", "learn", "retry_after", "settle", "used"}),
        (pace("5/second"), {"aeach", "each", "turn", "wait"}),
        (Adaptive(), {"hold", "in_flight", "limit"}),
        (Adaptive().hold(), {"failed"}),
        (Retry(), {"cap", "first", "max_retries", "pause", "window"}),
        (PacedTransport(), {"close", "handle_request"}),
        (AsyncPacedTransport(), {"aclose", "handle_async_request"}),
        (PacedAdapter(), {"close", "options", "send"}),
        (PacedMiddleware(), {"close"}),
    ],
)
def test_only_documented_names_are_public(thing, names):
    assert {name for name in dir(thing) if not name.startswith("_")} == names


@pytest.mark.parametrize("name", ["httpx", "httpx2", "requests", "aiohttp", "grpc"])
def test_a_library_that_is_missing_is_named_with_its_extra(name, monkeypatch):
    import importlib
    import sys

    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"ratekeeper.outbound.{name}", raising=False)
    with pytest.raises(ImportError) as caught:
        importlib.import_module(f"ratekeeper.outbound.{name}")
    assert caught.value.__notes__ == [f"Run: pip install 'ratekeeper[{name}]'"]


def test_a_reservation_waits_by_its_timeout():
    with pytest.raises(InvalidCost) as caught:
        Budget(tokens="10/minute").reserve(tokens=1, max_wait=3)
    assert str(caught.value) == (
        "max_wait: expected a unit of this budget (tokens), got 'max_wait'. Write timeout: how long to wait."
    )
