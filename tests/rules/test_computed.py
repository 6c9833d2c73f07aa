"""Limits that a function computes for each request."""

import asyncio
import sys
from pathlib import Path

import pytest

from ratekeeper import InvalidInput, InvalidLimit, Limit, Policy, Request
from ratekeeper.rules import counter
from ratekeeper.testing import FakeClock
from tests.rules.deciding import HERE, THERE, ask, count, make

RETURNS = "expected the function to return a limit such as '100/minute', a list of limits or 'unlimited', got"


@pytest.mark.parametrize(
    ("result", "admitted"),
    [
        ("3/minute", 3),
        (Limit("4/minute"), 4),
        (["5/minute", "2/hour"], 2),
        (("5/minute", Limit("1/day")), 1),
        ("unlimited", 10),
        ("0/minute", 0),
        ("60/minute burst 3 leaky_bucket", 3),
    ],
)
def test_the_function_returns_a_limit_in_any_form(result, admitted):
    policy, _ = make({"limit": lambda request: result})
    assert count(policy, 10) == admitted


def test_each_client_has_the_limit_that_the_function_returns_for_it():
    policy, _ = make({"limit": lambda request: "5/minute" if request.peer == HERE else "2/minute"})
    assert (count(policy, 9), count(policy, 9, peer=THERE)) == (5, 2)


@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window", "sliding_log"])
def test_a_changed_result_applies_to_the_next_request_and_keeps_what_was_used(algorithm):
    result = ["3/minute"]
    policy, _ = make({"limit": lambda request: result[0], "algorithm": algorithm})
    assert count(policy, 5) == 3
    result[0] = "5/minute"
    assert count(policy, 5) == 2
    result[0] = "2/minute"
    assert count(policy, 5) == 0


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, f"function:tests:f: {RETURNS} NoneType. To limit nobody, return 'unlimited'."),
        (5, f"function:tests:f: {RETURNS} int."),
        ({"free": "5/minute"}, f"function:tests:f: {RETURNS} dict."),
        (
            "5/minuet",
            "function:tests:f: limit '5/minuet': expected a unit of time (millisecond, second, minute, hour, day, "
            "week), got 'minuet'. Did you mean 'minute'?",
        ),
        ([], "function:tests:f: limits: expected at least one limit, got an empty list. Write 'unlimited' to limit "
             "nothing."),
    ],
)  # fmt: skip
def test_any_other_result_is_an_error_and_never_no_limit(result, message):
    def f(request):
        return result

    f.__module__, f.__qualname__ = "tests", "f"
    policy, _ = make({"limit": f})
    with pytest.raises(InvalidLimit) as raised:
        ask(policy)
    first, second = str(raised.value).split("week)")[0], message.split("week)")[0]
    assert first == second


def test_an_async_function_is_awaited_on_an_event_loop_only():
    async def limit(request):
        await asyncio.sleep(0)
        return "2/minute"

    policy, _ = make({"limit": limit})

    async def main():
        request = Request(peer=HERE)
        answers = [(await policy.acheck(request)).allowed for _ in range(3)]
        explained = policy.explain(request).steps[0].text
        return answers, explained

    answers, explained = asyncio.run(main())
    assert answers == [True, True, False]
    assert explained.endswith("computes the limit; it is async, so nothing asks it here")
    assert "would refuse" in policy.explain(Request(peer=HERE)).steps[0].text
    with pytest.raises(InvalidInput) as raised:
        ask(policy)
    message = "limit: expected a plain function, as nothing can be awaited here, got an async one."
    assert str(raised.value) == message


def test_a_plain_function_that_returns_an_awaitable_is_told_so():
    async def later():
        return "5/minute"

    policy, _ = make({"limit": lambda request: later()})
    with pytest.raises(InvalidLimit, match=r"got coroutine\. Only an async function is awaited, on an event loop\.$"):
        ask(policy)


def test_a_lease_ends_with_the_response():
    policy, _ = make({"limit": lambda request: "1 concurrent"})
    first = ask(policy)
    assert not ask(policy).allowed
    policy.release(first)
    assert ask(policy).allowed


def test_a_lease_needs_a_rule_that_can_hold_it():
    policy, _ = make({"limit": lambda request: "1 concurrent", "mode": "shadow"})
    with pytest.raises(InvalidLimit, match="which only an enforced rule that counts requests can hold"):
        ask(policy)


def test_what_the_function_returned_is_parsed_once_and_the_cache_is_bounded(monkeypatch):
    monkeypatch.setattr(counter, "MOST_COMPUTED", 8)
    policy, _ = make({"limit": lambda request: f"{request.facts['n']}/minute", "by": "app:user"})
    (rule,) = policy.compiled.counters
    first = ask(policy, facts={"n": 1, "user": "a"}).answers[0][0]
    for n in range(2, 50):
        assert ask(policy, facts={"n": 1, "user": f"u{n}"}).answers[0][0] is first  # in use, so it is kept
        ask(policy, facts={"n": n, "user": "b"})
        assert len(rule.computed) <= 8
    assert policy.store.size() < 60  # the states of limits that were forgotten are gone


def test_a_rules_file_names_the_module_of_the_function(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    Path(tmp_path, "shop_limits.py").write_text(
        "calls = 0\ndef of_user(request):\n    return '2/minute' if request.peer.startswith('203') else '1/minute'\n"
    )
    rules = Path(tmp_path, "rules.toml")
    rules.write_text('[[rules]]\nname = "a"\nlimit = "function:shop_limits:of_user"\n')
    policy = Policy.load(rules, clock=FakeClock())
    assert (count(policy, 5), count(policy, 5, peer=THERE)) == (2, 1)
    explained = policy.explain(Request(peer=THERE)).steps[0].text
    assert explained.startswith("1/minute from function:shop_limits:of_user, by ip, cost 1: would refuse")
    policy.reload()
    assert count(policy, 5) == 0
    del sys.modules["shop_limits"]
    Path(tmp_path, "shop_limits.py").write_text("import no_such_module\n")
    with pytest.raises(InvalidInput) as raised:
        policy.reload()
    assert str(raised.value) == (
        "rules.toml: rules[0].limit (rule 'a'), line 3: expected a function that can be imported, got "
        "'function:shop_limits:of_user'. shop_limits cannot be imported: No module named 'no_such_module'."
    )
    assert count(policy, 5) == 0  # the old rules stay


def test_sources_and_costs_may_be_imported_too():
    policy, _ = make({"limit": "5/minute", "by": "function:operator:attrgetter", "mode": "off"})
    assert policy.rules[0].by == ("function:operator:attrgetter",)


def test_a_computed_limit_has_the_window_and_the_time_zone_of_its_rule():
    rule = {"limit": lambda request: "2/day", "window": "calendar", "timezone": "Europe/Berlin"}
    policy, _ = make(rule)
    assert str(ask(policy).answers[0][0].limit) == "2/day calendar Europe/Berlin"
