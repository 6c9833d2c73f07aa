"""``count_when``: which responses count; the request counts until its response is known."""

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from ratekeeper import InvalidInput
from ratekeeper.rules.condition import Condition, ResponseHead
from tests.rules.deciding import ask, make

STATUSES = (200, 302, 400, 401, 403, 404, 500, 503)
CONDITIONS = {
    "status >= 400": lambda status: status >= 400,
    "status == 401 or status == 403": lambda status: status in (401, 403),
    "status >= 400 and status < 500 or status == 302": lambda status: 400 <= status < 500 or status == 302,
    "status!=200": lambda status: status != 200,
    "status <= 302 and status > 200": lambda status: status == 302,
}


@pytest.mark.parametrize("text", CONDITIONS)
def test_a_condition_is_read_as_it_is_written(text):
    assert [Condition(text)(status, None) for status in STATUSES] == [CONDITIONS[text](each) for each in STATUSES]


@pytest.mark.parametrize(
    "text", ["status", "status = 400", "400 <= status", "status >= 4xx", "status in 401", "code > 400"]
)
def test_other_texts_are_refused(text):
    with pytest.raises(ValueError, match=re.escape(text.partition(" or ")[0])):
        Condition(text)


def test_only_responses_that_count_are_counted():
    policy, clock = make({"limit": "2/minute", "count_when": "status >= 400"})
    answers = []
    for status in (200, 401, 200, 200, 500, 200):
        verdict = ask(policy)
        answers.append((verdict.allowed, verdict.remaining))
        policy.settle(verdict, status)
    assert answers == [(True, 1), (True, 1), (True, 0), (True, 0), (True, 0), (False, 0)]
    clock.advance(30)
    assert ask(policy).allowed


def test_the_headers_show_what_is_left_after_the_response():
    policy, _ = make({"limit": "5/minute", "count_when": "status >= 400"})
    verdict = ask(policy)
    assert dict(verdict.headers)[b"x-ratelimit-remaining"] == b"4"
    policy.settle(verdict, 200)
    assert dict(verdict.headers)[b"x-ratelimit-remaining"] == b"5"
    policy.settle(verdict, 200)  # a second time does nothing
    policy.settle(verdict, 500)
    assert ask(policy).remaining == 4


def test_a_function_sees_the_response():
    policy, _ = make({"limit": "2/minute", "count_when": lambda response: response.headers["x-login"] == "failed"})
    for login in ("ok", "failed", "ok", "failed"):
        policy.settle(ask(policy), 200, ResponseHead(200, {"x-login": login}))
    assert not ask(policy).allowed


@pytest.mark.parametrize("value", [None, 1, "yes"])
def test_a_function_must_say_yes_or_no(value):
    policy, _ = make({"limit": "2/minute", "count_when": lambda response: value})
    with pytest.raises(InvalidInput) as raised:
        policy.settle(ask(policy), 200)
    expected = f"count_when: expected a plain function that returns True or False, got {type(value).__name__}."
    assert str(raised.value) == expected


def test_other_rules_count_each_request_and_rules_in_shadow_count_as_if_enforced():
    policy, _ = make(
        {"limit": "9/minute"},
        {"limit": "2/minute", "count_when": "status >= 400"},
        {"limit": "2/minute", "count_when": "status >= 400", "mode": "shadow"},
    )
    for status in (200, 200, 500, 200):
        policy.settle(ask(policy), status)
    texts = [step.text for step in policy.explain(ask(policy).request).steps]
    assert "4 of 9 left" in texts[0]
    assert "would refuse" in texts[1]
    assert "would refuse" in texts[2]


def test_never_more_failures_than_the_limit_under_threads():
    policy, _ = make({"limit": "20/minute sliding_log", "count_when": "status >= 400"})
    rng = Random(5)
    outcomes = [rng.choice((200, 401)) for _ in range(400)]

    def attempt(status):
        verdict = ask(policy)
        if verdict.allowed:
            policy.settle(verdict, status)
        return status if verdict.allowed else 429

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(attempt, outcomes))
    failures = answers.count(401)
    assert failures <= 20
    # What was given back is there again, and nothing else: exactly the failures are counted.
    assert ask(policy).remaining == max(0, 20 - failures - 1)


def test_never_more_failures_than_the_limit_under_tasks():
    async def main():
        policy, _ = make({"limit": "10/minute sliding_log", "count_when": "status >= 400"})
        answers = []

        async def attempt(number):
            verdict = await policy.acheck(request)
            await asyncio.sleep(0)  # others come in between
            if verdict.allowed:
                status = 401 if number % 3 else 200
                await policy.asettle(verdict, status)
                answers.append(status)

        request = ask(policy).request
        await asyncio.gather(*[attempt(number) for number in range(100)])
        assert answers.count(401) == 6  # of the first nine: the probe above holds the tenth place
        left = [await policy.acheck(request) for _ in range(9)]
        assert [verdict.allowed for verdict in left] == [True] * 3 + [False] * 6

    asyncio.run(main())
