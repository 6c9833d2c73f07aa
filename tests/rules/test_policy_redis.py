"""A policy on a store elsewhere: one count for threads and loops, and what happens while the store is away."""

import asyncio

import pytest

from ratekeeper import Policy, Request
from ratekeeper.rules.decide import CompiledRules
from ratekeeper.testing import FakeClock

HERE = "203.0.113.9"
NOWHERE = "redis://:secret@127.0.0.1:1/0?deadline=10"


def policy(url, *rules, clock=None, **settings):
    found = [{"name": f"r{number}", **rule} for number, rule in enumerate(rules)]
    return Policy.parse({"store": url, **settings, "rules": found}, clock=clock)


def test_new_rules_are_compiled_for_event_loops_before_they_are_in_force(redis_server, monkeypatch):
    """The first request after a reload waited for that: 35 ms with 3,000 rules."""
    redis_server.client().flushall()
    url = redis_server.url + "?deadline=10"
    own = policy(url, {"limit": "1/hour"})

    async def main():
        found = [(await own.acheck(Request(peer=HERE))).allowed for _ in range(2)]
        rules = policy(url, {"limit": "1/hour"}, {"match": "/b", "limit": "5/hour"})
        own.put_in_force(own.compile(rules.compiled.settings))
        monkeypatch.setattr(CompiledRules, "compile_for", None)  # from now on nothing is compiled
        found += [(await own.acheck(Request(peer=HERE, path=path))).allowed for path in ("/a", "/b")]
        await own.async_store.close()
        return found

    assert asyncio.run(main()) == [True, False, False, False]
    own.close()


def test_rules_on_another_store_are_not_compiled_for_the_present_one(redis_server):
    redis_server.client().flushall()
    own = policy(redis_server.url + "?deadline=10", {"limit": "1/hour"})

    async def main():
        before = own.async_store
        assert (await own.acheck(Request(peer=HERE))).allowed
        await before.close()
        own.replace(policy(redis_server.url + "?deadline=10&prefix=other", {"limit": "1/hour"}).compiled.settings)
        found = (await own.acheck(Request(peer=HERE))).allowed
        assert own.async_store is not before
        await own.async_store.close()
        return found

    assert asyncio.run(main())
    own.close()


def test_sync_and_async_count_as_one_and_all_or_nothing(redis_server):
    redis_server.client().flushall()
    own, other = (  # two hosts
        policy(redis_server.url + "?deadline=10", {"limit": "6/hour"}, {"match": "/a", "limit": "2/hour"})
        for _ in range(2)
    )

    async def main():
        found = [(await each.acheck(Request(peer=HERE, path="/a"))).allowed for each in (own, other, own, other)]
        for each in (own, other):
            await each.async_store.close()
        return found

    assert own.check(Request(peer=HERE, path="/a")).allowed
    assert asyncio.run(main()) == [True, False, False, False]
    assert sum(each.check(Request(peer=HERE)).allowed for each in (own, other) * 5) == 4
    keys = redis_server.client().keys("*")
    assert all(HERE.encode() not in key for key in keys)
    assert all(redis_server.client().ttl(key) > 0 for key in keys)
    own.close()
    other.close()


def test_penalty_grace_and_shadow_on_a_fleet(redis_server):
    redis_server.client().flushall()
    own = policy(
        redis_server.url + "?deadline=10",
        {"limit": "2/hour fixed_window", "grace": 1, "penalty": {"after": 2, "within": "1 hour", "block": "1 day"}},
        {"limit": "1/hour", "mode": "shadow"},
    )
    verdicts = [own.check(Request(peer=HERE)) for _ in range(6)]
    assert [verdict.reason for verdict in verdicts] == ["", "", "", "limit", "limit", "blocked"]
    assert verdicts[2].notes.graced == ("r0",)
    assert [verdict.notes.shadow for verdict in verdicts[:3]] == [(), ("r1",), ("r1",)]
    assert 86_300 < verdicts[5].retry_after <= 86_400
    own.close()


@pytest.mark.parametrize("ask", ["check", "acheck"])
def test_a_store_that_is_away(ask):
    clock = FakeClock(1_000_000.0)

    def asked(own, times):
        async def main():
            found = [await own.acheck(Request(peer=HERE)) for _ in range(times)]
            await own.aclose()
            return found

        return asyncio.run(main()) if ask == "acheck" else [own.check(Request(peer=HERE)) for _ in range(times)]

    local = asked(policy(NOWHERE, {"limit": "4/minute"}, clock=clock), 4)
    assert [verdict.status for verdict in local] == [200, 200, 429, 429]  # half of the limit, in this process
    allow = asked(policy(NOWHERE, {"limit": "1/minute"}, on_store_error="allow", clock=clock), 3)
    assert [verdict.status for verdict in allow] == [200] * 3
    deny = asked(
        policy(NOWHERE, {"limit": "4/minute", "on_store_error": "deny"}, {"limit": "9/minute"}, clock=clock), 2
    )
    assert [verdict.status for verdict in deny] == [503] * 2
    refused = deny[0]
    assert (refused.reason, refused.rule, refused.retry_after) == ("store", "r0", 1.0)
    assert dict(refused.headers)[b"retry-after"] == b"1"
    assert b"unavailable" in refused.body
    assert b"secret" not in refused.body + repr(refused).encode()


def test_a_rule_of_the_instance_needs_no_store():
    own = policy(NOWHERE, {"limit": "3/minute", "scope": "instance", "on_store_error": "deny"}, clock=FakeClock(1.0))
    assert [own.check(Request(peer=HERE)).status for _ in range(4)] == [200, 200, 200, 429]


def test_a_closed_rule_with_a_penalty_is_unavailable_and_not_blocked():
    rule = {
        "limit": "3/minute",
        "on_store_error": "deny",
        "penalty": {"after": 1, "within": "1 hour", "block": "1 hour"},
    }
    own = policy(NOWHERE, rule, clock=FakeClock(1_000.0))
    assert [own.check(Request(peer=HERE)).status for _ in range(4)] == [503] * 4


def test_events_name_the_fallback():
    events = []
    own = policy(NOWHERE, {"limit": "4/minute"}, clock=FakeClock(1_000.0))
    own.listen(events.append)
    own.check(Request(peer=HERE))
    assert [limit.fallback for limit in events[0].limits] == ["local"]


def test_a_computed_limit_keeps_what_was_used(redis_server):
    redis_server.client().flushall()
    result = ["2/hour sliding_log"]

    async def limit(request):
        return result[0]

    own = policy(redis_server.url + "?deadline=10", {"limit": lambda request: result[0]})
    awaited = policy(redis_server.url + "?deadline=10", {"limit": limit})  # another host, whose function is async

    async def ask(times):
        return [(await awaited.acheck(Request(peer=HERE))).allowed for _ in range(times)]

    async def main():
        first = [own.check(Request(peer=HERE)).allowed, *await ask(2)]
        result[0] = "4/hour sliding_log"
        second = [own.check(Request(peer=HERE)).allowed, *await ask(2)]
        await awaited.async_store.close()
        return first, second

    assert asyncio.run(main()) == ([True, True, False], [True, True, False])
    own.close()
    awaited.close()


def test_responses_that_do_not_count_are_given_back_on_a_fleet(redis_server):
    redis_server.client().flushall()
    rule = {"limit": "10/hour", "count_when": "status >= 400"}
    own, other = (policy(redis_server.url + "?deadline=10", rule) for _ in range(2))

    async def attempt(number):
        verdict = await other.acheck(Request(peer=HERE))
        if verdict.allowed:
            await other.asettle(verdict, 401 if number % 2 else 200)
        return verdict.allowed

    async def main():
        allowed = await asyncio.gather(*[attempt(number) for number in range(10)])
        await other.async_store.close()
        return allowed

    verdict = own.check(Request(peer=HERE))
    own.settle(verdict, 200)
    assert verdict.remaining == 10
    assert asyncio.run(main()) == [True] * 10
    assert [own.check(Request(peer=HERE)).remaining for _ in range(5)] == [4, 3, 2, 1, 0]  # five of ten counted
    assert not own.check(Request(peer=HERE)).allowed
    own.close()
    other.close()
