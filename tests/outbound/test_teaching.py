"""A word that an outbound client does not take is told with the one to write."""

import pytest

from ratekeeper import InvalidInput
from ratekeeper.outbound import Adaptive, AsyncBudget, Budget, pace
from ratekeeper.outbound.aiohttp import PacedMiddleware
from ratekeeper.outbound.boto3 import PacedCalls
from ratekeeper.outbound.grpc import PacedInterceptor
from ratekeeper.outbound.httpx import AsyncPacedTransport, PacedTransport
from ratekeeper.outbound.httpx2 import PacedTransport as PacedTransport2
from ratekeeper.outbound.requests import PacedAdapter

WAITING = [PacedTransport, AsyncPacedTransport, PacedTransport2, PacedAdapter, PacedMiddleware, PacedInterceptor, pace]


@pytest.mark.parametrize("kind", WAITING)
def test_a_timeout_is_called_max_wait(kind):
    with pytest.raises(InvalidInput) as caught:
        kind(limit="5/minute", timeout=3)
    message = str(caught.value)
    assert message.startswith(f"{getattr(kind, '__name__', 'Pace')}: expected one of ".replace("pace:", "Pace:"))
    assert message.endswith(", got 'timeout'. Write max_wait=, the longest wait in seconds.")


@pytest.mark.parametrize(
    ("kind", "word", "advice"),
    [
        (PacedTransport, "rpm", "Write limit='500/minute', or budget=Budget(rpm=500)."),
        (PacedTransport, "tpm", "Write budget=Budget(tpm=100_000)."),
        (PacedTransport, "max_concurrency", "Write concurrent=."),
        (PacedAdapter, "retries", "Write max_retries=."),
        (PacedAdapter, "stor", "Did you mean 'store'?"),
        (PacedCalls, "stor", "Did you mean 'store'?"),
        (Adaptive, "stor", "Did you mean 'store'?"),
    ],
)
def test_words_of_others_are_taught(kind, word, advice):
    with pytest.raises(InvalidInput) as caught:
        kind(**{word: 5})
    assert str(caught.value).endswith(f", got {word!r}. {advice}")


@pytest.mark.parametrize("word", ["tpm", "tokens"])
def test_no_word_is_advised_that_is_not_there(word):
    with pytest.raises(InvalidInput) as caught:
        PacedAdapter(**{word: 5})
    assert "budget=" not in str(caught.value)


@pytest.mark.parametrize("kind", [Budget, AsyncBudget])
@pytest.mark.parametrize("word", ["timeout", "max_wait"])
def test_a_budget_waits_where_it_is_reserved(kind, word):
    with pytest.raises(InvalidInput, match=r"Write reserve\(timeout=\.\.\.\): how long a reservation waits\.$"):
        kind(rpm=60, **{word: 3})
