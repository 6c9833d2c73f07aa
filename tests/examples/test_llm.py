"""The clients in examples/ keep the limits of a server that enforces them, and use what they may."""

import pytest

from examples import anthropic_style, openai_style
from examples.llm_server import Provider
from ratekeeper.testing import FakeClock


@pytest.mark.full  # 120 calls of a real server
@pytest.mark.parametrize(("example", "answers"), [(openai_style, 120), (anthropic_style, 120)])
def test_a_client_with_a_budget_is_never_refused(example, answers):
    clock = FakeClock()
    provider = Provider(requests=600, tokens=30_000, now=lambda: clock.now)
    example.main(provider, clock, questions=answers if example is openai_style else answers // 2)
    assert (provider.answered, provider.refused) == (answers, 0)
    assert provider.tokens > 4000
    assert clock.now > 0  # it had to wait


@pytest.mark.full  # it waits
def test_without_a_budget_the_same_client_is_refused_and_waits_as_told():
    clock = FakeClock()
    provider = Provider(requests=60, tokens=600, now=lambda: clock.now)
    openai_style.main(provider, clock, questions=20)
    assert provider.answered == 20
    assert provider.refused > 0
