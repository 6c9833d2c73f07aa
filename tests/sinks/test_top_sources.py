"""The busiest source of a stream is never missed, in bounded memory."""

import random

import pytest

from ratekeeper.sinks.top_sources import MOST_SOURCES, TopSources


@pytest.mark.parametrize("by", [1, 50])
def test_the_busiest_source_is_never_missed(by):
    rng = random.Random(7)
    sources = TopSources()
    names = [("busy", by)] * (3000 // by) + [(f"other-{number}", 1) for number in range(20_000)]
    rng.shuffle(names)
    for name, times in names:
        sources.add(name, times)
        assert len(sources.counts) <= MOST_SOURCES
    name, share = sources.top()
    assert name == "busy"
    assert 3000 / 23_000 - 1 / MOST_SOURCES <= share <= 3000 / 23_000
