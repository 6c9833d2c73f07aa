"""httpx and httpx2 have the same transports: each speaks its own library's classes."""

import asyncio

import httpx
import httpx2
import pytest

from ratekeeper.outbound import AsyncBudget, Budget, TooLate
from ratekeeper.outbound import httpx as for_httpx
from ratekeeper.outbound import httpx2 as for_httpx2
from ratekeeper.testing import FakeClock

URL = "https://models.example.com/v1/messages"
BODY = {"messages": [], "max_tokens": 50}
LIBRARIES = [(httpx, for_httpx), (httpx2, for_httpx2)]


@pytest.mark.parametrize(("library", "module"), LIBRARIES, ids=["httpx", "httpx2"])
def test_sync(library, module):
    budget = Budget(tokens="100/hour", clock=FakeClock())
    inner = library.MockTransport(lambda _: library.Response(200, content=iter([b'{"usage": {"input_tokens": 60}}'])))
    with library.Client(transport=module.PacedTransport(inner, budget=budget, max_wait=0)) as client:
        assert isinstance(client.post(URL, json=BODY), library.Response)
        assert budget.left() == {"tokens": 40}
        with pytest.raises(module.PacingTimeout) as caught:
            client.post(URL, json=BODY)
    assert isinstance(caught.value, (TooLate, library.TimeoutException))
    assert caught.value.request.url == URL


@pytest.mark.parametrize(("library", "module"), LIBRARIES, ids=["httpx", "httpx2"])
def test_async(library, module):
    async def body():
        yield b'{"usage": {"input_tokens": 60}}'

    async def main():
        budget = AsyncBudget(tokens="100/hour", clock=FakeClock())
        inner = library.MockTransport(lambda _: library.Response(200, content=body()))
        async with library.AsyncClient(
            transport=module.AsyncPacedTransport(inner, budget=budget, max_wait=0)
        ) as client:
            await client.post(URL, json=BODY)
            with pytest.raises(module.PacingTimeout):
                await client.post(URL, json=BODY)
        return await budget.left()

    assert asyncio.run(main()) == {"tokens": 40}
