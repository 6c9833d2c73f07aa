"""What a replay counts is bounded and true."""

from ratekeeper import Policy
from ratekeeper.lab.clock import VirtualClock
from ratekeeper.lab.counts import MOST_BINS, BusiestStretch, ReplayCounts
from ratekeeper.lab.decide_log import LogDecider
from ratekeeper.lab.log_lines import Block
from tests.lab.samples import EPOCH, ONE


def test_memory_is_bounded_and_shares_of_clients_stay_correct():
    clock = VirtualClock()
    decider = LogDecider(Policy.parse(ONE, clock=clock), clock)
    counts = ReplayCounts(["rule0"], most_clients=100)
    for minute in range(50):
        names = [f"10.0.{minute}.{number}" for number in range(40)] + ["6.6.6.6"] * 20
        block = Block([EPOCH + minute * 60_000_000 + number for number in range(60)], names, ["GET / HTTP/1.1"] * 60)
        counts.add(block, decider.decide(block), decider)
    counts.finish(decider)
    assert len(counts.clients) <= 140
    assert len(counts.clients) + sum(counts.merged_clients.values()) == 50 * 40 + 1
    assert counts.clients["6.6.6.6"].refused == 50 * 17
    assert (counts.requests, sum(counts.timeline.requests), counts.refused) == (3000, 3000, 50 * 17)
    assert len(counts.timeline.requests) <= MOST_BINS


def test_the_busiest_stretch_is_found():
    calm = [second * 1_000_000 for second in range(500)]
    busy = [500_000_000 + number * 1000 for number in range(100)]
    times = [*calm, *busy, *(501_000_000 + at for at in calm)]
    busiest = BusiestStretch(100)
    for start in range(0, len(times), 25):
        part = times[start : start + 25]
        busiest.add(Block(part, ["a"] * len(part), ["x"] * len(part)))
    assert [at for block in busiest.best for at in block.times] == busy
    assert sum(len(block) for block in busiest.window) <= 100
