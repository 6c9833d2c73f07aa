"""The example of 20 workers with one key; its processes run in tests/real/test_twenty_workers.py."""

from examples import twenty_workers
from examples.llm_server import Provider, serving


def test_a_worker_uses_what_the_provider_counts():
    provider = Provider(requests=6_000, tokens=600_000)
    before = twenty_workers.meter.progress()
    with serving(provider) as url:
        after = twenty_workers.work(url, "memory://", range(12))
    assert after.calls - before.calls == provider.answered == 12
    tokens = after.input_tokens + after.output_tokens - before.input_tokens - before.output_tokens
    assert tokens == provider.tokens
    assert provider.refused == 0
    assert after.money > before.money


def test_the_progress_line_ends_when_it_is_told(capsys):
    done = twenty_workers.show_progress(every=0.001)
    done.set()
    assert str(twenty_workers.meter).endswith(f"${twenty_workers.meter.progress().money:,.2f}")
