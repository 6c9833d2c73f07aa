"""Mistakes of our own: each place is logged once with its traceback, and every one is counted."""

import logging

import pytest
import redis

from ratekeeper.service.faults import Faults
from tests.service.running import ANY, running


def fail(number):
    try:
        if number:
            raise TypeError(f"mistake {number}")
        raise KeyError("another")
    except Exception as error:
        return error


def test_each_place_is_logged_once_and_all_are_counted(caplog):
    counts = {}
    faults = Faults(counts)
    with caplog.at_level(logging.ERROR, "ratekeeper"):
        for number in (1, 2, 3, 0):
            faults.note("resp", fail(number))
        faults.note("http", fail(1))
    assert counts == {"resp": 4, "http": 1}
    assert [record.exc_info[0] for record in caplog.records] == [TypeError, KeyError]
    assert caplog.records[0].getMessage() == (
        "resp: a call failed because of a mistake in ratekeeper. Please report it. "
        "Further ones from this place are not logged but counted in ratekeeper_faults_total."
    )


def test_what_is_remembered_of_them_is_bounded():
    faults = Faults({})
    for number in range(1000):
        code = compile("\n" * number + "raise ValueError", "generated.py", "exec")
        try:
            exec(code)
        except ValueError as error:
            faults.note("http", error)
    assert len(faults.logged) == 256


@pytest.mark.parametrize("words", [("RK.CHECK", "k", "3/minute"), ("CL.THROTTLE", "k", 1, 2, 60)])
def test_a_redis_client_learns_that_it_is_our_mistake(caplog, words):
    with running(resp=ANY) as service, redis.Redis(port=service.addresses["resp"][1], socket_timeout=60) as client:

        def fail(*arguments):
            raise TypeError("secret detail")

        service.worker.decider.limits.find = service.worker.decider.limits.add = fail
        with caplog.at_level(logging.ERROR, "ratekeeper"):
            for _ in range(3):
                with pytest.raises(redis.ResponseError, match=r"^internal error$"):
                    client.execute_command(*words)
        assert [record.exc_info[0] for record in caplog.records] == [TypeError]
        assert b'ratekeeper_faults_total{door="resp"} 3' in service.call("GET", "/metrics")[2]


def test_an_http_caller_learns_that_it_is_our_mistake(caplog):
    with running() as service:

        def fail(*arguments):
            raise AttributeError("secret detail")

        service.worker.decider.limits.find = fail
        with caplog.at_level(logging.ERROR, "ratekeeper"):
            for _ in range(3):
                status, _, body = service.post("/v1/check", {"key": "k", "limit": "3/minute"})
                assert status == 500
                assert "secret" not in str(body)
        assert [record.exc_info[0] for record in caplog.records] == [AttributeError]
        assert b'ratekeeper_faults_total{door="http"} 3' in service.call("GET", "/metrics")[2]
