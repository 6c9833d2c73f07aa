"""A budget for a streaming client: usage is charged as it arrives, even if the stream breaks.

Run it: ``python -m examples.anthropic_style``.  Two teams share an account, and each has its own budget within it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import httpx

from examples.llm_server import Provider, count_tokens, serving
from ratekeeper.outbound import AsyncBudget
from ratekeeper.outbound.httpx import AsyncPacedTransport
from ratekeeper.testing import FakeClock

MOST_OUTPUT = 50


class Messages:
    """Streams answers, and charges every piece."""

    def __init__(self, client: httpx.AsyncClient, budget: AsyncBudget) -> None:
        self.client = client
        self.budget = budget

    async def stream(self, prompt: str) -> AsyncIterator[str]:
        async with self.budget.reserve(tokens=count_tokens(prompt) + MOST_OUTPUT, timeout=120) as spending:
            body = {"model": "m", "max_tokens": MOST_OUTPUT, "messages": [{"role": "user", "content": prompt}]}
            async with self.client.stream("POST", "/v1/messages", json=body) as response:
                response.raise_for_status()
                async for line in response.aiter_lines():
                    if not line.startswith("data: "):
                        continue
                    event = json.loads(line[6:])
                    if event["type"] == "message_start":
                        await spending.add(tokens=event["message"]["usage"]["input_tokens"])
                    elif event["type"] == "content_block_delta":
                        await spending.add(tokens=count_tokens(event["delta"]["text"]))
                        yield event["delta"]["text"]


async def run(url: str, clock: FakeClock | None, questions: int) -> dict[str, dict[str, int]]:
    account = AsyncBudget(requests="570/minute burst 30", tokens="28500/minute burst 1500", clock=clock, name="account")
    teams = {name: account.child("team", key=name, tokens="20000/minute burst 1000") for name in ("search", "support")}
    async with httpx.AsyncClient(base_url=url, transport=AsyncPacedTransport(clock=clock)) as client:

        async def work(team: str) -> None:
            for number in range(questions):
                async for _ in Messages(client, teams[team]).stream(f"{team} {number}: " + "why? " * (number % 50)):
                    pass

        await asyncio.gather(*[work(team) for team in teams])
        return {name: await team.left() for name, team in teams.items()}


def main(provider: Provider | None = None, clock: FakeClock | None = None, questions: int = 20) -> Provider:
    provider = provider or Provider(requests=600, tokens=30_000)
    with serving(provider) as url:
        left = asyncio.run(run(url, clock, questions))
    print(f"{provider.answered} answers, {provider.tokens} tokens, {provider.refused} refused; left: {left}")
    return provider


if __name__ == "__main__":
    main()
