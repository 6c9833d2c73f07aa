"""Twenty processes whose calls of one burst are refused slow down once; a limit that one learns holds for all."""

import multiprocessing
import time
import uuid

import pytest

from ratekeeper.outbound import Budget
from ratekeeper.stores.shared import remove

pytestmark = pytest.mark.real
FORK = multiprocessing.get_context("fork")
WORKERS = 20
LIMIT = {
    "openai": {"x-ratelimit-limit-requests": "100", "x-ratelimit-remaining-requests": "99"},
    "anthropic": {"anthropic-ratelimit-requests-limit": "100", "anthropic-ratelimit-requests-remaining": "99"},
    "ietf": {"ratelimit-policy": '"p";q=100;w=60', "ratelimit": '"p";r=99;t=60'},
}


@pytest.fixture(params=["redis", "shm"])
def url(request):
    if request.param == "redis":
        yield request.getfixturevalue("redis_server").url
        return
    name = f"learned-{uuid.uuid4().hex}"
    yield f"shm://{name}?max_keys=1000"
    remove(name)


def run(url, learn):
    """What each of twenty processes has left; ``learn`` gets its number and its reservation, after all have one."""
    name, ready, answers = uuid.uuid4().hex, FORK.Barrier(WORKERS), FORK.Queue()

    def work(number):
        budget = Budget(requests="400/minute", store=url, name=name)
        reservation = budget.reserve()
        ready.wait(60)
        learn(number, reservation)
        ready.wait(60)
        time.sleep(0.3)  # a process asks Redis for what others learned every 100 ms
        answers.put(budget.left()["requests"])

    fleet = [FORK.Process(target=work, args=(number,)) for number in range(WORKERS)]
    for process in fleet:
        process.start()
    left = [answers.get(timeout=120) for _ in fleet]
    for process in fleet:
        process.join()
    return left


def test_twenty_refusals_of_one_burst_slow_everybody_down_once(url):
    left = run(url, lambda number, reservation: reservation.learn({}, 429))
    assert all(400 * 0.74 - WORKERS <= each <= 400 * 0.76 - WORKERS for each in left), left


@pytest.mark.parametrize("wire", LIMIT)
def test_a_limit_that_one_process_learns_holds_for_all(url, wire):
    left = run(url, lambda number, reservation: number == 7 and reservation.learn(LIMIT[wire]))
    assert all(97 - WORKERS <= each <= 100 - WORKERS for each in left), left
