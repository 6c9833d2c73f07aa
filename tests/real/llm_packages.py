"""Recipes for packages on top of the SDKs: run with their folder first on the path; prints what the budget spent.

python -m tests.real.llm_packages PACKAGE
"""

import asyncio
import sys
from contextlib import contextmanager
from importlib import import_module

import httpx

from ratekeeper.outbound import AsyncBudget, Budget
from ratekeeper.outbound.httpx import AsyncPacedTransport, PacedTransport
from ratekeeper.testing import FakeClock
from tests.outbound.llm_provider import Provider
from tests.outbound.web import serving

LIMITS = {"requests": "1000/hour", "tokens": "100000/hour"}
PROMPT = [{"role": "user", "content": "why is the sky blue today"}]


def library_of(client_class):
    """httpx or httpx2: whichever this release builds its clients with."""
    names = {base.__module__.partition(".")[0] for base in client_class.__mro__}
    return "httpx2" if "httpx2" in names else "httpx"


def transports(name):
    module = import_module(f"ratekeeper.outbound.{name}")
    return import_module(name), module.PacedTransport, module.AsyncPacedTransport


def langchain(url, budget, async_budget):
    from langchain_openai import ChatOpenAI
    from openai import DefaultHttpxClient

    library, paced, async_paced = transports(library_of(DefaultHttpxClient))
    chat = ChatOpenAI(
        model="m",
        base_url=url + "/v1",
        api_key="k",
        max_retries=0,
        http_client=library.Client(transport=paced(budget=budget)),
        http_async_client=library.AsyncClient(transport=async_paced(budget=async_budget)),
    )
    assert chat.invoke("why is it so").content.startswith("word")
    assert len(list(chat.stream("why is it so", stream_usage=True))) > 3
    assert asyncio.run(chat.ainvoke("and why is that")).content.startswith("word")


def litellm(url, budget, async_budget):
    import litellm
    import openai

    library, paced, _ = transports(library_of(openai.DefaultHttpxClient))
    http = library.Client(transport=paced(budget=budget))
    client = openai.OpenAI(base_url=url + "/v1", api_key="k", http_client=http, max_retries=0)
    options = {"model": "openai/m", "messages": PROMPT, "api_base": url + "/v1", "api_key": "k", "client": client}
    assert litellm.completion(**options).usage.completion_tokens == 9
    chunks = litellm.completion(**options, stream=True, stream_options={"include_usage": True})
    assert len(list(chunks)) > 3


def google(url, budget, async_budget):
    from google import genai
    from google.genai import types

    options = types.HttpOptions(
        base_url=url,
        httpx_client=httpx.Client(transport=PacedTransport(budget=budget)),
        httpx_async_client=httpx.AsyncClient(transport=AsyncPacedTransport(budget=async_budget)),
    )
    client = genai.Client(api_key="k", http_options=options)
    assert client.models.generate_content(model="m", contents="why is it so").text.startswith("word")
    assert len(list(client.models.generate_content_stream(model="m", contents="why is it so"))) > 3
    answer = asyncio.run(client.aio.models.generate_content(model="m", contents="and why is that"))
    assert answer.text.startswith("word")


@contextmanager
def counting():
    provider = Provider()
    with serving(provider) as url:
        yield provider, url


def main(package):
    budget = Budget(**LIMITS, clock=FakeClock())
    async_budget = AsyncBudget(**LIMITS, clock=FakeClock())
    whole = budget.left()
    with counting() as (provider, url):
        {"langchain": langchain, "litellm": litellm, "google": google}[package](url, budget, async_budget)
    lefts = [budget.left(), asyncio.run(left_of(async_budget))]
    for unit, amount in whole.items():
        spent = sum(amount - left[unit] for left in lefts)
        print(unit, spent, provider.counted[unit])


async def left_of(budget):
    return await budget.left()


if __name__ == "__main__":
    main(sys.argv[1])
