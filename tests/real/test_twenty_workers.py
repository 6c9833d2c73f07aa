"""20 processes with one key, on shared memory and on Redis, against a provider that enforces its limits."""

import os

import pytest

from examples import twenty_workers
from examples.llm_server import Provider

pytestmark = pytest.mark.real
SHORT = bool(os.environ.get("RATEKEEPER_REAL_SHORT"))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("store", ["shm", "redis"])
def test_no_call_is_refused_and_the_tokens_match(store, tmp_path, request):
    url = f"shm://{tmp_path}/limits" if store == "shm" else f"{request.getfixturevalue('redis_server').url}?deadline=5s"
    provider = Provider(requests=6_000, tokens=600_000)
    total = twenty_workers.main(url, 6 if SHORT else 20, 60 if SHORT else 4_000, provider)
    assert provider.refused == 0
    assert total.calls == provider.answered
    assert total.input_tokens + total.output_tokens == provider.tokens
