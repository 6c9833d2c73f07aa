"""When a store is asked again after it failed."""

from ratekeeper.stores.redis.breaker import HASTE, LATEST, MOST_PROOFS, SOONEST, STABLE_FOR, Breaker


def test_one_failure_opens_it_and_one_answer_closes_it():
    breaker = Breaker()
    assert not breaker.is_open
    assert breaker.trip(100.0, "gave no answer")
    assert not breaker.trip(100.0, "gave no answer")
    assert breaker.is_open
    assert breaker.close(0.0)
    assert not breaker.close(0.0)
    assert not breaker.is_open


def test_a_store_that_only_looks_well_is_looked_at_less_and_less():
    breaker, now = Breaker(), 1000.0
    for _ in range(10):  # the probe is answered, the next call is not
        breaker.trip(now, "gave no answer")
        now = breaker.probe_at
        assert breaker.is_due(now)
        breaker.close(now)
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


def test_a_store_that_fails_soon_after_it_answered_must_prove_itself_more_often():
    breaker, proofs = Breaker(), []
    for turn in range(6):
        breaker.trip(float(turn), "gave no answer")
        breaker.trip(float(turn), "gave no answer")  # a failed probe asks for no more
        proofs.append(breaker.proofs)
        breaker.close(float(turn))
    assert proofs == [1, 2, 4, 8, 16, MOST_PROOFS]
    breaker.trip(5.0 + STABLE_FOR, "gave no answer")
    assert breaker.proofs == 1


def test_a_probe_has_less_time_than_a_decision():
    breaker = Breaker()
    assert breaker.quick_enough(0.05) == 0.05
    breaker.trip(0.0, "gave no answer")
    assert breaker.quick_enough(0.05) == 0.05 * HASTE
