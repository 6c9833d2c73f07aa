"""Transports in the SDKs of language models, as strict type checkers see them; never run, only checked."""

from typing import assert_type

import anthropic
import httpx
import httpx2
import openai

from ratekeeper.outbound import AsyncBudget, Budget, Meter, ModelCall, Progress, TokenEstimator, call_options
from ratekeeper.outbound import httpx as for_httpx
from ratekeeper.outbound.httpx2 import AsyncPacedTransport, PacedTransport

budget = Budget(requests="500/minute", tokens="200000/minute")
async_budget = AsyncBudget(requests="500/minute", tokens="200000/minute")
meter = Meter(prices={"gpt": (1.25, 10)})
assert_type(meter.progress() + meter.progress(), Progress)


def by_model(call: ModelCall) -> Budget | None:
    assert_type(call.model, str)
    return budget if call.model.startswith("gpt") else None


transport = PacedTransport(httpx2.HTTPTransport(), budget=by_model, concurrent=20, meter=meter)
async_transport = AsyncPacedTransport(budget=async_budget, estimate=TokenEstimator(count=len, output=500))
assert_type(transport.__enter__(), PacedTransport)

openai.OpenAI(http_client=openai.DefaultHttpxClient(transport=transport), max_retries=0)
openai.AsyncOpenAI(http_client=openai.DefaultAsyncHttpxClient(transport=async_transport), max_retries=0)
anthropic.Anthropic(http_client=anthropic.DefaultHttpxClient(transport=transport), max_retries=0)
anthropic.AsyncAnthropic(http_client=anthropic.DefaultAsyncHttpxClient(transport=async_transport), max_retries=0)

httpx.Client(transport=for_httpx.PacedTransport(httpx.HTTPTransport(), budget=budget))
httpx.AsyncClient(transport=for_httpx.AsyncPacedTransport(budget=async_budget))
httpx2.Client(transport=transport, mounts={"https://": PacedTransport(limit=lambda request: request.method)})


def own_estimate(call: ModelCall) -> tuple[int, int]:
    return len(call.text), call.max_output or 100


with call_options(priority=5, tenant="acme"):
    PacedTransport(budget=budget, estimate=own_estimate)
