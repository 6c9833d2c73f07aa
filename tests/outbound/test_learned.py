"""What a provider says lowers our limits, never raises them, and lowers them once for a whole fleet."""

import asyncio
import logging
import math

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratekeeper import Limit, StoreUnavailable
from ratekeeper.check import Check
from ratekeeper.outbound import AsyncBudget, Budget, Retry
from ratekeeper.outbound.cooldown import Cooldowns, cooldowns_of
from ratekeeper.outbound.httpx import AsyncPacedTransport, PacedTransport
from ratekeeper.outbound.learned import (
    FADES,
    LEAST,
    WHOLE,
    Part,
    Shares,
    adjustments,
    lowered_count,
    parts_of,
    slower_bucket,
    with_count,
)  # fmt: skip
from ratekeeper.outbound.response_limits import Quota, ServerLimits, read
from ratekeeper.stores import MemoryStore
from ratekeeper.testing import FakeClock
from tests import tier

URL = "https://api.example.com/v1/chat/completions"
OPENAI = "x-ratelimit-limit-{0}: {1}, x-ratelimit-remaining-{0}: {2}, x-ratelimit-reset-{0}: {3}"
TEXTS = st.text(max_size=12) | st.integers(-9, 10**30).map(str) | st.sampled_from(["0", "-1", "1e99", "nan", "60;w=60"])


def fields(text):
    return dict(line.split(": ", 1) for line in text.split(", "))


def plan_of(**limits):
    """The checks of a budget, its parts by unit, and shares in this process."""
    budget = Budget(clock=FakeClock(), **limits)
    plan = budget._level.plan(dict.fromkeys(limits, 1), None)
    return parts_of(plan, list(limits))


@pytest.mark.parametrize(
    ("header", "limits", "grants"),
    [
        (OPENAI.format("requests", 60, 59, "1s"), {"requests": "500/minute"}, {"requests": 60}),
        (OPENAI.format("requests", 600, 59, "1s"), {"requests": "500/minute"}, {"requests": 600}),
        (OPENAI.format("requests", 10000, 59, "1s"), {"requests": ["500/minute", "14400/day"]}, {"requests": 10000}),
        (OPENAI.format("tokens", 900, 1, "1s"), {"requests": "5/minute", "tokens": "1000/minute"}, {"tokens": 900}),
        (OPENAI.format("requests", 60, 1, "2m"), {"requests": "500/minute"}, {}),  # not a minute: its reset is later
        (OPENAI.format("requests", 0, 0, "1s"), {"requests": "500/minute"}, {}),
        (OPENAI.format("requests", 1, 0, "1s"), {"requests": "500/minute"}, {"requests": 5}),  # a hundredth
        (OPENAI.format("requests", "-5", 0, "1s"), {"requests": "500/minute"}, {}),
        (OPENAI.format("requests", "1e99", 0, "1s"), {"requests": "500/minute"}, {}),
        (OPENAI.format("images", 5, 0, "1s"), {"tokens": "500/minute"}, {}),
        ("X-RateLimit-Limit: 10, X-RateLimit-Remaining: 9", {"requests": "500/minute"}, {}),  # in which time?
        ('RateLimit-Policy: "p";q=60;w=60, RateLimit: "p";r=9;t=9', {"requests": "500/minute"}, {"requests": 60}),
        ('RateLimit-Policy: "p";q=2;w=1, RateLimit: "p";r=9;t=1', {"requests": "500/minute"}, {"requests": 122}),
        ('RateLimit-Policy: "p";q=9;w=86400, RateLimit: "p";r=9;t=1', {"requests": "500/minute"}, {}),
        ('RateLimit-Policy: "p";q=9;w=60;qu="tokens", RateLimit: "p";r=9;t=1', {"tokens": "50/minute"}, {"tokens": 9}),
        (
            "anthropic-ratelimit-input-tokens-limit: 100, anthropic-ratelimit-input-tokens-remaining: 9",
            {"input_tokens": "500/minute", "output_tokens": "500/minute"},
            {"input_tokens": 100},
        ),
    ],
)
def test_which_limit_a_header_is_about(header, limits, grants):
    found = adjustments(plan_of(**limits), read(fields(header).items(), 0.0).quotas)
    assert {each.part.unit: each.grants for each in found} == grants


def test_of_a_model_and_its_account_the_nearest_limit_is_meant():
    account = Budget(name="account", tokens="200000/minute", clock=FakeClock())
    large = account.child("model", key="large", tokens="50000/minute")
    for said, space in (
        (50_000, "account/model tokens"),
        (40_000, "account/model tokens"),
        (190_000, "account tokens"),
    ):
        reservation = large.reserve(tokens=1)
        (found,) = adjustments(
            reservation._parts, read(fields(OPENAI.format("tokens", said, 1, "1s")).items(), 0).quotas
        )
        assert found.part.check.space == space
    large.reserve(tokens=1).learn(fields(OPENAI.format("tokens", 40_000, 40_000, "1s")))
    assert account.left()["tokens"] > 199_000
    assert 39_000 <= large.left()["tokens"] < 40_000


@settings(max_examples=tier.steps(500, 60), deadline=None)
@given(
    count=st.integers(1, 10**6),
    names=st.lists(st.sampled_from(["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"]), max_size=3),
    unit=st.sampled_from(["requests", "tokens", ""]),
    values=st.lists(TEXTS, min_size=3, max_size=3),
    policy=TEXTS,
    status=st.sampled_from([200, 429, 503]),
    waits=st.lists(st.integers(0, 10**9), max_size=4),
)
def test_nothing_that_a_server_says_raises_a_limit(count, names, unit, values, policy, status, waits):
    clock = FakeClock()
    budget = Budget(requests=f"{count}/minute", clock=clock)
    headers = [(f"{name}-{unit}".rstrip("-"), value) for name, value in zip(names, values, strict=False)]
    headers += [("RateLimit-Policy", policy), ("RateLimit", policy), ("Retry-After", values[0])]
    reservation = budget.reserve()
    for wait in [0, *waits]:
        reservation.learn(headers, status)
        for part in reservation._parts:
            assert LEAST <= budget._level.shares.of(part) <= WHOLE
            assert max(1, count // 100) * 63 // 64 <= budget._level.shares.count(part) <= count
        assert budget.left()["requests"] <= count
        clock.advance(wait / 1e6)
    clock.advance(FADES / 1e6 + 3_600)  # nobody repeats it: forgotten
    assert budget.left() == {"requests": count}


@given(count=st.integers(1, 10**12), share=st.integers(1, WHOLE))
def test_a_lowered_count_is_at_most_its_share_and_close_to_it(count, share):
    lowered = lowered_count(count, share)
    assert 1 <= lowered <= max(1, count * share // WHOLE)
    assert lowered * 64 >= (count * share // WHOLE) * 63


@pytest.mark.parametrize(
    "text",
    ["100/minute fixed_window", "100/minute sliding_log", "100/minute sliding_window slices 9", "100/day calendar UTC",
     "100/minute first-use", "100/month", "100/minute sliding_window slices 9 debt 7"],
)  # fmt: skip
def test_a_window_with_a_lower_count_reads_the_same_states(text):
    limit = Limit.parse(text)
    assert with_count(limit, 40).layout == limit.layout
    assert (with_count(limit, 40).count, with_count(limit, 200)) == (40, limit)


@pytest.mark.parametrize("algorithm", ["gcra", "leaky_bucket", "token_bucket"])
def test_a_slower_bucket_has_one_layout_for_every_share(algorithm):
    limit = Limit.parse(f"300/minute burst 5 {algorithm}")
    check = Check("s", "k", limit, 1)
    slower = [slower_bucket(check, 0, limit, share)[0] for share in (LEAST, WHOLE // 3, WHOLE - 1)]
    assert len({each.limit.layout for each in slower}) == 1
    assert [each.limit.burst // each.cost for each in slower] == [5, 5, 5]


def test_a_bucket_too_large_to_count_finely_stays_as_it_is():
    limit = Limit.parse("1000000/second burst 1000000000000")
    assert slower_bucket(Check("s", "k", limit, 1), 0, limit, LEAST) == []


class Process:
    """One process of a fleet: the same states, behind a store of its own."""

    blocking = False

    def __init__(self, states):
        self.states_of = states
        self.clock = states.clock

    def __getattr__(self, name):
        return getattr(self.states_of, name)


def budgets_of_a_fleet(count, clock, **limits):
    states = MemoryStore(clock=clock)
    return [Budget(store=Process(states), **limits) for _ in range(count)]


def test_twenty_refusals_of_one_burst_slow_everybody_down_once(caplog):
    clock = FakeClock(start=1000.0)
    fleet = budgets_of_a_fleet(20, clock, requests="400/minute")
    burst = [budget.reserve() for budget in fleet]
    for reservation in burst:
        reservation.learn({}, 429)
    assert {budget.left()["requests"] for budget in fleet} == {300 // 4 * 4 - 20 - (300 % 4)}
    assert len([record for record in caplog.records if "refused a call in spite" in record.message]) == 1
    again = fleet[3].reserve()  # sent under three quarters, and refused: slower again
    again.learn({}, 429)
    assert fleet[7].left()["requests"] == lowered_count(400, WHOLE * 9 // 16) - 21
    clock.advance(FADES / 1e6)
    assert fleet[7].left() == {"requests": 400}


def test_a_limit_that_one_process_learns_holds_for_all_and_grows_back(caplog):
    clock = FakeClock(start=1000.0)
    one, two = budgets_of_a_fleet(2, clock, requests="500/minute")
    one.reserve().learn(fields(OPENAI.format("requests", 60, 59, "1s")))
    assert two.left()["requests"] <= 59
    assert sum(bool(two.reserve()) for _ in range(100)) in (57, 58, 59)
    assert caplog.messages == [
        "budget: the provider grants 60 requests where 500 were configured. Every process keeps to the lower limit; "
        "it grows back in 528 s if no answer repeats it."
    ]
    clock.advance(264)
    assert 250 <= two.left()["requests"] <= 290
    clock.advance(300)
    assert two.left()["requests"] == 500


def test_a_limit_that_is_repeated_stays_and_is_written_once_a_second():
    clock = FakeClock(start=1000.0)
    budget = Budget(requests="500/minute", clock=clock)
    for _ in range(600):
        reservation = budget.reserve()
        if reservation:
            reservation.learn(fields(OPENAI.format("requests", 60, 60, "0s")))
        clock.advance(0.5)
        assert budget.left()["requests"] <= 60


def test_what_others_used_is_not_spent_again():
    clock = FakeClock(start=1000.0)
    fleet = budgets_of_a_fleet(20, clock, requests="500/minute")
    for reservation in [budget.reserve() for budget in fleet]:
        reservation.learn(fields(OPENAI.format("requests", 500, 100, "50s")))  # others have used 380
    assert {budget.left()["requests"] for budget in fleet} == {100}


def test_an_answer_that_is_older_than_the_reset_says_nothing_about_the_present():
    clock = FakeClock(start=1000.0)
    budget = Budget(requests="500/minute", clock=clock)
    slow, half = budget.reserve(), budget.reserve()
    clock.advance(10)
    slow.learn(fields(OPENAI.format("requests", 500, 0, "10s")))
    assert budget.left()["requests"] == 498
    half.learn(fields(OPENAI.format("requests", 500, 0, "20s")))  # half of the way: half may be back
    assert budget.left()["requests"] == 250


def test_a_call_larger_than_the_lowered_limit_still_passes_and_is_charged_in_full():
    clock = FakeClock(start=1000.0)
    budget = Budget(tokens="10000/minute", clock=clock)
    budget.reserve(tokens=1).learn({}, 429)
    clock.advance(63)
    with budget.reserve(tokens=9900, timeout=120) as spending:
        spending.settle(tokens=9900)
    assert budget.left()["tokens"] == 0
    clock.advance(200)
    assert budget.left()["tokens"] == 10_000


def test_after_a_refusal_all_wait_as_long_as_it_asks():
    clock = FakeClock(start=1000.0)
    one, two = budgets_of_a_fleet(2, clock, requests="500/minute")
    one.reserve().learn({"Retry-After": "7"}, 429)
    refused = two.reserve()
    assert (bool(refused), refused.retry_after) == (False, 7.0)
    assert not two.reserve(timeout=6)
    assert two.reserve(timeout=8)
    assert clock.now == 1007.0


def test_a_waiter_that_was_admitted_under_the_old_limit_waits_again():
    clock = FakeClock(start=1000.0)
    budget = Budget(requests="100/minute", clock=clock)
    first = budget.reserve()
    flow = budget.reserve()._reserve()
    asked = next(flow)  # about to be asked: then the provider refuses the first call
    first.learn({}, 429)
    decisions = budget._level.runner.store.check(*asked.arguments)
    assert flow.send(decisions).operation == "refund"


def test_a_store_that_does_not_answer_loses_what_was_learned_and_nothing_else():
    class Away(Process):
        def take(self, plan):
            raise StoreUnavailable("memory://", "away")

    budget = Budget(requests="500/minute", store=Away(MemoryStore(clock=FakeClock())))
    reservation = budget.reserve()
    reservation.learn({"Retry-After": "7"}, 429)
    assert reservation


def test_an_async_budget_learns_too():
    async def main():
        budget = AsyncBudget(requests="500/minute", clock=FakeClock())
        async with budget.reserve() as spending:
            await spending.learn(fields(OPENAI.format("requests", 60, 59, "1s")))
        return (await budget.left())["requests"]

    assert 57 <= asyncio.run(main()) <= 59


@pytest.mark.parametrize("limit", ["10/second", "10/second gcra", {"api.example.com": "10/second"}])
def test_a_transport_sends_at_the_rate_that_the_server_states(limit):
    clock = FakeClock(start=1000.0)
    times = []

    def server(request):
        times.append(clock.now)
        return httpx.Response(200, headers={"ratelimit-policy": '"p";q=5;w=1', "ratelimit": '"p";r=5;t=1'})

    transport = PacedTransport(httpx.MockTransport(server), limit=limit, clock=clock)
    with httpx.Client(transport=transport) as client:
        for _ in range(60):
            client.get(URL)
    assert 39 * 0.2 <= times[-1] - times[20] <= 39 * 0.205


@pytest.mark.parametrize("budget", ["one", "chosen"])
def test_a_transport_teaches_its_budget(budget, caplog):
    clock = FakeClock(start=1000.0)
    limits = Budget(requests="500/minute", tokens="100000/minute", clock=clock)

    def server(request):
        return httpx.Response(429 if request.headers.get("refuse") else 200, headers=fields(
            OPENAI.format("requests", 60, 59, "1s")))  # fmt: skip

    chosen = limits if budget == "one" else lambda call: limits
    transport = PacedTransport(httpx.MockTransport(server), budget=chosen, clock=clock, max_retries=0)
    with httpx.Client(transport=transport) as client:
        client.post(URL, json={})
    assert limits.left()["requests"] in (57, 58, 59)
    assert len([record for record in caplog.records if record.name == "ratekeeper"]) == 1


def test_an_async_transport_teaches_its_budget():
    async def main():
        budget = AsyncBudget(requests="500/minute", clock=FakeClock())
        answer = httpx.Response(429)
        inner = httpx.MockTransport(lambda request: answer)
        transport = AsyncPacedTransport(inner, budget=budget, clock=FakeClock(), retry=Retry(0))
        async with httpx.AsyncClient(transport=transport) as client:
            await client.get(URL)
        return (await budget.left())["requests"]

    assert asyncio.run(main()) == lowered_count(500, WHOLE * 3 // 4) - 1


def test_a_share_knows_no_limit_that_is_not_counted():
    check = Check("s", "k", Limit.parse("unlimited"), 1)
    assert parts_of((check,), ["requests"]) == []
    shares = Shares(Cooldowns("n", FakeClock(), 0), "n")
    part = Part(Check("s", "k", Limit.parse("5/minute"), 1), 0, "requests")
    assert (shares.of(part), shares.pause(), shares.is_due([])) == (WHOLE, 0, False)
    assert adjustments([part], [Quota("requests", 3, 1.0)]) == []
    assert math.isclose(shares.count(part), 5)


def test_limits_of_many_counts_do_not_fill_the_memory(monkeypatch):
    monkeypatch.setattr("ratekeeper.outbound.learned.MOST_LIMITS", 3)
    store = MemoryStore(clock=FakeClock())
    shares = Shares(cooldowns_of(store, "n"), "n")
    limit = Limit.parse("1000/minute sliding_window")
    for share in range(LEAST, WHOLE, LEAST):
        shares.lower(limit, [share])
    assert len(shares.lowered) <= 3


def test_logs_have_the_level_that_fits(caplog):
    caplog.set_level(logging.INFO, "ratekeeper")
    budget = Budget(requests="500/minute", clock=FakeClock())
    budget.reserve().learn(fields(OPENAI.format("requests", 500, 100, "50s")))
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("INFO", "budget: the provider says that 100 requests are left: no more is spent.")
    ]
    assert ServerLimits().quotas == ()


@pytest.mark.parametrize("kind", ["redis", "shm"])
def test_two_processes_share_what_one_learned(kind, request, tmp_path):
    url = f"shm://{tmp_path}/limits?max_keys=100" if kind == "shm" else request.getfixturevalue("redis_server").url
    one, two = [Budget(requests="400/minute", tokens="9000/minute gcra", store=url, name=str(tmp_path)) for _ in "12"]
    try:
        one.reserve(tokens=1).learn({}, 429)
        assert two.reserve(tokens=1)._sent_under.keys() == {part.record for part in two.reserve(tokens=1)._parts}
        assert 290 <= two.left()["requests"] <= 300
    finally:
        one.close()
        two.close()
