"""When a store is asked again after it failed."""

from ratekeeper.stores.redis.breaker import LATEST, SOONEST, Breaker


def test_one_failure_opens_it_and_one_answer_closes_it():
    breaker = Breaker()
    assert not breaker.is_open
    assert breaker.trip(100.0, "gave no answer")
    assert not breaker.trip(100.0, "gave no answer")
    assert breaker.is_open
    assert breaker.close()
    assert not breaker.close()
    assert not breaker.is_open


def test_a_store_that_only_looks_well_is_looked_at_less_and_less():
    breaker, now = Breaker(), 1000.0
    for _ in range(10):  # the probe is answered, the next call is not
        breaker.trip(now, "gave no answer")
        now = breaker.probe_at
        assert breaker.is_due(now)
        breaker.close()
    assert breaker.pause == LATEST
    breaker.trip(now + 3 * LATEST, "gave no answer")  # well for a while
    assert breaker.pause == SOONEST


def test_probes_are_one_at_a_time_jittered_and_further_and_further_apart():
    first = set()
    for _ in range(50):
        breaker, now, pauses = Breaker(), 0.0, []
        for _ in range(10):
            breaker.trip(now, "")
            pauses.append(breaker.probe_at - now)
            assert not breaker.is_due(breaker.probe_at - 1e-9)
            now = breaker.probe_at
            assert breaker.is_due(now)
            assert not breaker.is_due(now)  # the second caller does not probe as well
        expected = [min(LATEST, SOONEST * 2**number) for number in range(10)]
        assert all(wanted / 2 <= pause <= wanted for pause, wanted in zip(pauses, expected, strict=True))
        first.add(pauses[0])
    assert len(first) > 40
