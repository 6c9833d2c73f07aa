"""Errors travel: through pickles, copies and pools of processes, with all their facts."""

import copy
import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

import ratekeeper
from ratekeeper import Decision, InvalidRules, Limiter, LimitExceeded, StoreUnavailable

ERRORS = [
    LimitExceeded(Decision(False, 5, 0, 1.5, 9.0), "api"),
    LimitExceeded(Decision(False, 5, 5, None)),
    StoreUnavailable("redis://h", "gave no answer in 50 ms", charged=None),
    InvalidRules("rules.toml: expected a table, got a list.", place="rules[0]"),
    *[
        getattr(ratekeeper, name)("where: expected this, got that.")
        for name in ("AlreadySettled", "Closed", "InvalidCost", "InvalidInput", "InvalidKey", "InvalidLimit")
    ],
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
def test_an_error_is_the_same_after_a_copy(error, way):
    again = way(error)
    assert type(again) is type(error)
    assert (str(again), again.args, again.__dict__) == (str(error), error.args, error.__dict__)


def refused():
    job = Limiter("1/hour", name="job").limit(lambda: None)
    job()
    job()


def test_a_refusal_in_a_worker_process_reaches_whoever_asked():
    with (
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool,
        pytest.raises(LimitExceeded, match=r"job: limit of 1 reached\. Try again in") as caught,
    ):
        pool.submit(refused).result(60)
    assert caught.value.decision.limit == 1
    assert 3000 < caught.value.retry_after <= 3600
