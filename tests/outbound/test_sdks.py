"""The SDKs of OpenAI and Anthropic against a server with their wire formats: the budget matches the server's count."""

import asyncio
import json

import anthropic
import httpx
import httpx2
import openai
import pytest

from ratekeeper.outbound import AsyncBudget, Budget, Retry
from ratekeeper.outbound import httpx as for_httpx
from ratekeeper.outbound.httpx2 import AsyncPacedTransport, PacedTransport
from ratekeeper.testing import FakeClock
from tests.outbound.llm_provider import Provider
from tests.outbound.web import serving

LIMITS = {"requests": "1000/hour", "tokens": "100000/hour", "input_tokens": "50000/hour", "output_tokens": "50000/hour"}
PROMPT = [{"role": "user", "content": "why is the sky blue today"}]
PLAIN = Retry(first=0.0)


@pytest.fixture(scope="module")
def provider():
    return Provider()


@pytest.fixture(scope="module")
def url(provider):
    with serving(provider) as address:
        yield address


@pytest.fixture(autouse=True)
def counted(provider):
    provider.counted.clear()
    provider.seen.clear()
    provider.refusals.clear()
    return provider.counted


def spent(before, after):
    return {unit: before[unit] - left for unit, left in after.items()}


def use_openai(client):
    """One call of each kind; what it returns is awaited or iterated by the caller."""
    yield client.chat.completions.create(model="m", messages=PROMPT, max_tokens=40)
    yield client.chat.completions.create(
        model="m", messages=PROMPT, max_tokens=40, stream=True, stream_options={"include_usage": True}
    )
    yield client.responses.create(model="m", input="how deep is the sea", max_output_tokens=30)
    yield client.responses.create(model="m", input="how deep is it", max_output_tokens=30, stream=True)
    yield client.embeddings.create(model="m", input="four words of text")


def use_anthropic(client):
    yield client.messages.create(model="m", messages=PROMPT, max_tokens=40)
    yield client.messages.create(model="m", messages=PROMPT, max_tokens=3, stream=True)  # the estimate is too low


SDKS = [
    (openai.OpenAI, openai.AsyncOpenAI, "/v1", use_openai, 5),
    (anthropic.Anthropic, anthropic.AsyncAnthropic, "", use_anthropic, 2),
]


@pytest.mark.parametrize(("sdk", "_", "path", "use", "calls"), SDKS, ids=["openai", "anthropic"])
def test_sync(sdk, _, path, use, calls, url, counted):
    budget = Budget(**LIMITS, clock=FakeClock())
    before = budget.left()
    http = httpx2.Client(transport=PacedTransport(budget=budget))
    with sdk(base_url=url + path, api_key="k", http_client=http, max_retries=0) as client:
        for answer in use(client):
            if isinstance(answer, (openai.Stream, anthropic.Stream)):
                assert len(list(answer)) > 3
    assert counted["requests"] == calls
    assert spent(before, budget.left()) == counted


@pytest.mark.parametrize(("_", "sdk", "path", "use", "calls"), SDKS, ids=["openai", "anthropic"])
def test_async(_, sdk, path, use, calls, url, counted):
    async def main():
        budget = AsyncBudget(**LIMITS, clock=FakeClock())
        before = await budget.left()
        http = httpx2.AsyncClient(transport=AsyncPacedTransport(budget=budget))
        async with sdk(base_url=url + path, api_key="k", http_client=http, max_retries=0) as client:
            for coming in use(client):
                answer = await coming
                if isinstance(answer, (openai.AsyncStream, anthropic.AsyncStream)):
                    assert len([event async for event in answer]) > 3
        return spent(before, await budget.left())

    assert asyncio.run(main()) == counted
    assert counted["requests"] == calls


def test_many_tasks_at_once(url, counted):
    async def main():
        budget = AsyncBudget(**LIMITS, clock=FakeClock())
        before = await budget.left()
        http = httpx2.AsyncClient(transport=AsyncPacedTransport(budget=budget, concurrent=4))
        async with anthropic.AsyncAnthropic(base_url=url, api_key="k", http_client=http) as client:

            async def ask(number):
                prompt = [{"role": "user", "content": "why " * (number + 1)}]
                async with client.messages.stream(model="m", messages=prompt, max_tokens=90) as stream:
                    return (await stream.get_final_message()).usage.output_tokens

            outputs = await asyncio.gather(*[ask(number) for number in range(12)])
            assert outputs == [number + 4 for number in range(12)]
        return spent(before, await budget.left())

    assert asyncio.run(main()) == counted


def test_a_client_of_the_older_httpx(url, counted):
    budget = Budget(**LIMITS, clock=FakeClock())
    before = budget.left()
    http = httpx.Client(transport=for_httpx.PacedTransport(budget=budget))
    with openai.OpenAI(base_url=url + "/v1", api_key="k", http_client=http) as client:
        client.chat.completions.create(model="m", messages=PROMPT)
    assert spent(before, budget.left()) == counted
    assert counted["requests"] == 1


def test_a_compressed_answer():
    provider = Provider(compress=True)
    budget = Budget(**LIMITS, clock=FakeClock())
    before = budget.left()
    http = httpx2.Client(transport=PacedTransport(budget=budget))
    with serving(provider) as url, anthropic.Anthropic(base_url=url, api_key="k", http_client=http) as client:
        for answer in use_anthropic(client):
            list(answer)
    assert spent(before, budget.left()) == provider.counted


def test_refusals_are_counted_as_requests_and_cost_no_tokens(provider, url, counted):
    provider.refusals += [(429, {"retry-after": "2"}), (429, {"retry-after-ms": "500"})]
    clock = FakeClock()
    budget = Budget(**LIMITS, clock=FakeClock())
    before = budget.left()
    http = httpx2.Client(transport=PacedTransport(budget=budget, clock=clock, retry=PLAIN))
    with openai.OpenAI(base_url=url + "/v1", api_key="k", http_client=http) as client:
        client.chat.completions.create(model="m", messages=PROMPT)
    assert clock.now == 2.5
    assert counted["requests"] == 3
    budget._level.shares.cooldowns.ends.clear()  # a refusal slows down; here only charges count
    assert spent(before, budget.left()) == counted


@pytest.mark.parametrize(
    ("sdk", "path", "use", "error"),
    [
        (openai.OpenAI, "/v1", use_openai, openai.RateLimitError),
        (anthropic.Anthropic, "", use_anthropic, anthropic.RateLimitError),
    ],
)
def test_the_retries_of_an_sdk_do_not_multiply_ours(sdk, path, use, error, provider, url, counted):
    provider.refusals += [(429, {})] * 50
    http = httpx2.Client(transport=PacedTransport(max_retries=2, clock=FakeClock()))
    with sdk(base_url=url + path, api_key="k", http_client=http, max_retries=5) as client, pytest.raises(error):
        next(use(client))
    assert counted["requests"] == 3  # not 3 * 6


def test_an_attempt_that_an_sdk_repeats_is_not_repeated_again(provider, url, counted):
    provider.refusals += [(429, {})] * 50
    with httpx2.Client(transport=PacedTransport(max_retries=2, clock=FakeClock())) as client:
        response = client.post(url + "/v1/messages", json={}, headers={"x-stainless-retry-count": "1"})
        assert response.headers["x-should-retry"] == "false"
        assert counted["requests"] == 1
        response = client.post(url + "/v1/messages", json={})  # not an SDK: its response stays as it was
        assert "x-should-retry" not in response.headers


def test_a_turn_that_comes_too_late_is_the_timeout_of_the_sdk(url, counted):
    budget = Budget(requests="1/hour", clock=FakeClock())
    budget.reserve()
    http = httpx2.Client(transport=PacedTransport(budget=budget, max_wait=1, clock=FakeClock()))
    with (
        openai.OpenAI(base_url=url + "/v1", api_key="k", http_client=http, max_retries=0) as client,
        pytest.raises(openai.APITimeoutError) as caught,
    ):
        client.chat.completions.create(model="m", messages=PROMPT)
    cause = caught.value.__cause__
    assert cause.retry_after == pytest.approx(3600, rel=0.5)
    assert str(cause).endswith(" s. Raise max_wait, or send less.")
    assert counted["requests"] == 0


def test_streams_pass_byte_for_byte(provider, url):
    body = {"model": "m", "messages": PROMPT, "max_tokens": 9, "stream": True}
    plain = httpx2.post(url + "/v1/messages", json=body).content
    with (
        httpx2.Client(transport=PacedTransport(budget=Budget(tokens="1000/hour"))) as client,
        client.stream("POST", url + "/v1/messages", json=body) as response,
    ):
        assert b"".join(response.iter_raw()) == plain
    assert json.loads(plain.partition(b"data: ")[2].partition(b"\r")[0])["type"] == "message_start"
