"""Requests and tokens per minute in one budget: a client of the chat completions API that many providers offer.

Run it: ``python -m examples.openai_style``.  The provider is simulated on this machine and enforces its limits; the
client reserves an estimate, and settles the usage that the answer reports.
"""

from __future__ import annotations

import httpx

from examples.llm_server import Provider, count_tokens, serving
from ratekeeper.outbound import Budget
from ratekeeper.outbound.httpx import PacedTransport
from ratekeeper.testing import FakeClock

MOST_OUTPUT = 50


class Chat:
    """Calls one model; waits for its turn in the budget, and never exceeds it."""

    def __init__(self, url: str, budget: Budget, clock: FakeClock | None = None) -> None:
        # The transport has no limit of its own: it retries, should the provider refuse after all.
        self.client = httpx.Client(base_url=url, transport=PacedTransport(clock=clock))
        self.budget = budget

    def ask(self, prompt: str) -> str:
        with self.budget.reserve(tokens=count_tokens(prompt) + MOST_OUTPUT, timeout=120) as spending:
            body = {"model": "m", "max_tokens": MOST_OUTPUT, "messages": [{"role": "user", "content": prompt}]}
            response = self.client.post("/v1/chat/completions", json=body)
            response.raise_for_status()
            answer = response.json()
            spending.settle(tokens=answer["usage"]["total_tokens"])
        return str(answer["choices"][0]["message"]["content"])


def main(provider: Provider | None = None, clock: FakeClock | None = None, questions: int = 40) -> Provider:
    provider = provider or Provider(requests=600, tokens=30_000)
    with serving(provider) as url:
        # Five per cent are left unused, because the provider counts slightly differently.
        account = Budget(requests="570/minute burst 30", tokens="28500/minute burst 1500", clock=clock, name="account")
        model = account.child("model", key="m", tokens="28500/minute burst 1500")
        chat = Chat(url, model, clock)
        for number in range(questions):
            chat.ask(f"question {number}: " + "why? " * (number % 50))
        chat.client.close()
    print(f"{provider.answered} answers, {provider.tokens} tokens, {provider.refused} refused; left: {model.left()}")
    return provider


if __name__ == "__main__":
    main()
