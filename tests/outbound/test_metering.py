"""Budgets in a transport: what each outcome of a call is charged, and who waits for whom."""

import asyncio
import json

import httpx2
import pytest

from ratekeeper.errors import InvalidInput, StoreUnavailable
from ratekeeper.flow.run import FlowRunner
from ratekeeper.outbound import AsyncBudget, Budget, Meter, Retry, TokenEstimator, Usage, call_options
from ratekeeper.outbound.httpx2 import AsyncPacedTransport, PacedTransport, PacingTimeout
from ratekeeper.testing import FakeClock
from tests.outbound.llm_provider import ANSWERS, sse

URL = "https://models.example.com/v1/messages"
BODY = {"model": "m", "messages": [{"role": "user", "content": "a" * 40}], "max_tokens": 100}  # estimate: 14 and 100
LIMITS = {"requests": "100/hour", "tokens": "1000/hour"}
USED = {"usage": {"input_tokens": 10, "output_tokens": 20}}


class Chunks(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    """A body that comes in pieces; an exception among them breaks the connection."""

    def __init__(self, *chunks):
        self.chunks = chunks
        self.closed = 0

    def __iter__(self):
        for chunk in self.chunks:
            if isinstance(chunk, Exception):
                raise chunk
            yield chunk

    async def __aiter__(self):
        for chunk in self:
            yield chunk

    def close(self):
        self.closed += 1

    async def aclose(self):
        self.closed += 1


def client_of(answer, budget=None, **options):
    options.setdefault("retry", Retry(max_retries=0))
    return httpx2.Client(transport=PacedTransport(httpx2.MockTransport(answer), budget=budget, **options))


def spent(budget):
    limits = {"requests": 100, "tokens": 1000}
    budget._level.shares.cooldowns.ends.clear()  # a refusal slows down; here only charges count
    return {unit: limits[unit] - left for unit, left in budget.left().items()}


SSE = {"content-type": "text/event-stream"}
EVENTS = ANSWERS["/messages"]({"model": "m"}, 10, ["word"] * 20, True)
HEAD, TAIL = sse(EVENTS[:13]), sse(EVENTS[13:])  # ten of twenty words, then the others and the usage


@pytest.mark.parametrize(
    ("answer", "tokens"),
    [
        (lambda _: httpx2.Response(200, json=USED), 30),
        (lambda _: httpx2.Response(200, stream=Chunks(json.dumps(USED).encode())), 30),
        (lambda _: httpx2.Response(200, json={}), 114),
        (lambda _: httpx2.Response(200, text="not JSON"), 114),
        (lambda _: httpx2.Response(400, json={}), 0),
        (lambda _: httpx2.Response(429, json={}), 0),
        (lambda _: httpx2.Response(500, json={}), 114),
        (lambda _: httpx2.Response(529, json=USED), 114),
    ],
)
def test_what_an_answer_is_charged(answer, tokens):
    budget = Budget(**LIMITS, clock=FakeClock())
    with client_of(answer, budget) as client:
        client.post(URL, json=BODY)
    assert spent(budget) == {"requests": 1, "tokens": tokens}


@pytest.mark.parametrize(
    ("error", "charged"),
    [(httpx2.ConnectError, {"requests": 0, "tokens": 0}), (httpx2.ReadTimeout, {"requests": 1, "tokens": 114})],
)
def test_what_a_lost_request_is_charged(error, charged):
    def answer(request):
        raise error("lost")

    budget = Budget(**LIMITS, clock=FakeClock())
    with client_of(answer, budget) as client, pytest.raises(error):
        client.post(URL, json=BODY)
    assert spent(budget) == charged


def test_a_stream_that_is_closed_early_is_settled_by_what_is_known():
    body = Chunks(HEAD, TAIL)
    budget = Budget(**LIMITS, clock=FakeClock())
    with client_of(lambda _: httpx2.Response(200, headers=SSE, stream=body), budget) as client:
        with client.stream("POST", URL, json=BODY) as response:
            assert next(response.iter_raw()) == HEAD
        assert spent(budget) == {"requests": 1, "tokens": 10 + 13}  # the input, and fifty characters
        with client.stream("POST", URL, json=BODY) as response:
            assert list(response.iter_raw()) == [HEAD, TAIL]
    assert spent(budget) == {"requests": 2, "tokens": 23 + 30}
    assert body.closed == 2


def test_a_stream_that_breaks_is_settled_by_what_is_known():
    body = Chunks(HEAD, httpx2.ReadError("broken"))
    budget = Budget(**LIMITS, clock=FakeClock())
    with (
        client_of(lambda _: httpx2.Response(200, headers=SSE, stream=body), budget) as client,
        pytest.raises(httpx2.ReadError),
    ):
        client.post(URL, json=BODY)
    assert spent(budget) == {"requests": 1, "tokens": 23}


def test_a_task_that_is_cancelled_settles_and_gives_its_slot_back():
    async def main():
        budget = AsyncBudget(**LIMITS, clock=FakeClock())
        reached = asyncio.Event()

        class Endless(Chunks):
            async def __aiter__(self):
                yield HEAD
                reached.set()
                await asyncio.Event().wait()

        def answer(request):
            return httpx2.Response(200, headers=SSE, stream=Endless())

        transport = AsyncPacedTransport(httpx2.MockTransport(answer), budget=budget, concurrent=1, max_wait=0)
        async with httpx2.AsyncClient(transport=transport) as client:
            for _ in range(2):  # the second one finds the slot free
                reached.clear()
                task = asyncio.create_task(client.post(URL, json=BODY))
                await reached.wait()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
        return await budget.left()

    assert asyncio.run(main()) == {"requests": 98, "tokens": 1000 - 2 * 23}


def test_slots_are_held_until_the_answer_has_passed():
    clock = FakeClock()
    bodies = [Chunks(b"{}") for _ in range(4)]
    coming = iter(bodies)
    options = {"concurrent": 2, "max_wait": 0, "clock": clock}
    with client_of(lambda _: httpx2.Response(200, stream=next(coming)), **options) as client:
        first = client.send(client.build_request("POST", URL, json=BODY), stream=True)
        second = client.send(client.build_request("POST", URL, json=BODY), stream=True)
        with pytest.raises(PacingTimeout, match="outbound concurrent: "):
            client.post(URL, json=BODY)
        first.read()
        client.post(URL, json=BODY)
        second.close()
        client.post(URL, json=BODY)


def test_a_slot_is_given_back_after_an_error():
    def answer(request):
        raise httpx2.ReadTimeout("lost")

    with client_of(answer, concurrent=1, max_wait=0) as client:
        for _ in range(3):
            with pytest.raises(httpx2.ReadTimeout):
                client.post(URL, json=BODY)


def test_a_budget_for_each_model_and_none_for_others():
    budgets = {model: Budget(**LIMITS, name=model, clock=FakeClock()) for model in ("m", "n")}
    with client_of(lambda _: httpx2.Response(200, json=USED), lambda call: budgets.get(call.model)) as client:
        for model in ("m", "n", "n", "other"):
            client.post(URL, json={**BODY, "model": model})
        client.get("https://models.example.com/v1/models")
    assert [spent(budget)["tokens"] for budget in budgets.values()] == [30, 60]


def test_usage_above_the_estimate_is_charged_in_full_and_the_next_call_waits_it_off():
    clock = FakeClock()
    budget = Budget(tokens="600/minute token_bucket", clock=clock)
    answer = {"usage": {"input_tokens": 14, "output_tokens": 1086}}
    options = {"clock": clock, "max_wait": 90, "estimate": lambda call: (14, 86)}
    with client_of(lambda _: httpx2.Response(200, json=answer), budget, **options) as client:
        client.post(URL, json=BODY)
        assert budget.left() == {"tokens": 0}
        client.post(URL, json=BODY)
    assert clock.now == 60.0  # 500 in debt, and the next hundred: ten a second


def test_an_estimate_above_the_whole_budget_waits_for_the_whole_budget():
    clock = FakeClock()
    account = Budget(tokens=["60/minute token_bucket", "1000/hour token_bucket"], clock=clock)
    team = account.child("team", tokens="600/hour token_bucket")
    with client_of(lambda _: httpx2.Response(200, json=USED), team, clock=clock, max_wait=90) as client:
        client.post(URL, json=BODY)  # an estimate of 114
        client.post(URL, json=BODY)
    assert clock.now == 30.0
    assert team.left() == {"tokens": 30}


def test_a_tenant_is_the_key_of_the_budget():
    budget = Budget(**LIMITS, clock=FakeClock())
    with client_of(lambda _: httpx2.Response(200, json=USED), budget) as client:
        with call_options(tenant="acme"):
            client.post(URL, json=BODY)
            client.post(URL, json=BODY, extensions={"ratekeeper": {"tenant": "other"}})
        client.post(URL, json=BODY)
    assert [budget.left(key)["tokens"] for key in ("acme", "other", None)] == [970, 970, 970]


def test_requests_without_a_prompt_cost_no_tokens():
    budget = Budget(**LIMITS, clock=FakeClock())
    with client_of(lambda _: httpx2.Response(200, json={"data": []}), budget) as client:
        client.get("https://models.example.com/v1/models")
        client.post(URL, content=b"[1, 2]")
        client.post(URL, content=iter([b"{}"]))  # cannot be read in advance
    assert spent(budget) == {"requests": 3, "tokens": 0}


def test_a_call_waits_for_its_budget_and_the_meter_tells():
    clock = FakeClock()
    budget = Budget(tokens="114/minute token_bucket", clock=clock)
    meter = Meter({"m": (1.0, 2.0)}, clock=clock)
    answer = {"usage": {"input_tokens": 14, "output_tokens": 100}}
    with client_of(
        lambda _: httpx2.Response(200, json=answer), budget, meter=meter, clock=clock, max_wait=90
    ) as client:
        for _ in range(3):
            client.post(URL, json=BODY)
    progress = meter.progress()
    assert clock.now == pytest.approx(120, abs=0.01)
    assert (progress.calls, progress.input_tokens, progress.output_tokens) == (3, 42, 300)
    assert progress.waited == pytest.approx(120, abs=0.01)
    assert progress.money == pytest.approx(3 * 214 / 1e6)


def test_a_cooldown_that_starts_while_a_call_waits_for_its_budget_holds_the_call_and_charges_nothing():
    clock = FakeClock()
    sent = []
    transport = PacedTransport(
        httpx2.MockTransport(lambda _: sent.append(clock.now) or httpx2.Response(200, json=USED)),
        budget=Cooling(requests="100/hour", clock=clock),
        clock=clock,
        retry=Retry(first=0.0),
    )
    budget = transport._metering.budget
    budget.pacer = transport._client.pacer
    with httpx2.Client(transport=transport) as client:
        client.post(URL, json=BODY)
    assert sent == [5.0]
    assert budget.reserved == 2
    assert budget.left() == {"requests": 99}


class Cooling(Budget):
    """During its first reservation another call learns that the server wants to be left alone for five seconds."""

    reserved = 0

    def reserve(self, *arguments, **options):
        self.reserved += 1
        if self.reserved == 1:
            self.pacer.cooldowns.ends["models.example.com"] = self.pacer.clock.nanos() // 1000 + 5_000_000
        return super().reserve(*arguments, **options)


class Unavailable(FlowRunner):
    def run(self, flow):
        flow.close()
        raise StoreUnavailable("redis://db", "the store is away")


def test_an_answer_is_not_lost_because_its_settlement_is(caplog):
    budget = Budget(**LIMITS, clock=FakeClock())

    def answer(request):
        budget._level.runner = Unavailable(budget._level.runner.store)
        return httpx2.Response(200, json=USED)

    with client_of(answer, budget) as client:
        assert client.post(URL, json=BODY).json() == USED
    assert [record.getMessage() for record in caplog.records if record.name == "ratekeeper"] == [
        "models.example.com: the usage was not settled, and the estimate of 114 tokens stays charged: "
        "redis://db: the store is away"
    ]


def test_an_estimator_counts_the_prompt_and_the_text_of_a_broken_stream():
    estimate = TokenEstimator(count=lambda text: len(text.split()))
    budget = Budget(tokens="1000/hour", clock=FakeClock())
    body = Chunks(HEAD)
    with client_of(lambda _: httpx2.Response(200, headers=SSE, stream=body), budget, estimate=estimate) as client:
        client.post(URL, json=BODY)
    assert budget.left() == {"tokens": 1000 - 10 - 10}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"budget": AsyncBudget(tokens="5/second")},
            "budget: expected a Budget or a function of a ModelCall, got an AsyncBudget.",
        ),
        ({"budget": "5/second"}, "budget: expected a Budget or a function of a ModelCall, got '5/second'."),
        ({"budget": Budget(tokens="5/second"), "estimate": 5}, "estimate: expected a function of a ModelCall, got 5."),
        ({"concurrent": "5/second"}, "concurrent: expected a number of calls, such as 20, got '5/second'."),
        (
            {"budget": Budget(tokens="5/second"), "limit": "5/second"},
            "limit: expected none beside budget=. Give the budget that limit: Budget(requests='10/second', ...).",
        ),
    ],
)
def test_wrong_arguments(options, message):
    with pytest.raises(InvalidInput) as caught:
        PacedTransport(**options)
    assert str(caught.value) == message


def test_a_wrong_estimate():
    budget = Budget(tokens="1000/hour")
    message = "estimate: expected a pair of whole numbers, the tokens of input and output."
    with (
        client_of(lambda _: httpx2.Response(200), budget, estimate=lambda call: 5) as client,
        pytest.raises(InvalidInput) as caught,
    ):
        client.post(URL, json=BODY)
    assert str(caught.value) == message


def test_usage_by_unit():
    assert Usage(3, 4, 5).tokens == 7
