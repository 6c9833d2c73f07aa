"""What stops a script in its middle, or before: a full server, one that is busy, a script that is killed.

Whatever it is, nothing may be half-written: a plan is in all of its records or in none, and every key still expires.
"""

import contextlib
import itertools
import threading

import pytest

from ratekeeper import Limit, Limiter, StoreUnavailable
from ratekeeper.algorithms import ALGORITHMS
from ratekeeper.check import Check
from ratekeeper.limit import parse_limits
from ratekeeper.stores.redis.store import RedisStore
from tests.servers import Server

prefixes = itertools.count()
LONG = Limit.parse("200 per 50 days sliding_log")
LIMITS = [
    *[Limit(5, "50 days", algorithm=name) for name in ALGORITHMS],
    LONG,
    Limit.parse("5 concurrent for 1 day"),
    parse_limits(["5 per 50 days", "50 per 49 days fixed_window", "500 per 48 days"]),
    parse_limits(["5 per 50 days", "50 per 49 days sliding_log", "100 per 48 days sliding_log"]),
]


@pytest.fixture(params=["redis-server", "valkey-server"], scope="module")
def server(request):
    made = Server(request.param, **{"maxmemory-policy": "noeviction"})
    yield made
    made.close()


@pytest.fixture
def store(server):
    with contextlib.closing(
        RedisStore(server.url, prefix=f"errors{next(prefixes)}", deadline=10, deny_cache=False)
    ) as made:
        yield made


def contents(client):
    """All that is on the server."""
    return {name: client.dump(name) for name in client.scan_iter("*")}


def plans():
    """Plans of every shape, some of whose records exist and others do not."""
    old = [Check(str(limit), "old", limit, 1) for limit in LIMITS]
    new = [Check(str(limit), "new", limit, 1) for limit in LIMITS]
    found = [(check,) for check in (*old, *new)]
    found += [tuple(old), tuple(new), (*old, *new), (old[0], new[1], old[2]), (old[6], new[0]), (new[0], new[0])]
    return old, found


@pytest.mark.parametrize("operation", ["check", "take"])
def test_a_full_server_writes_all_of_a_plan_or_nothing(server, store, operation):
    client = server.client()
    old, shapes = plans()
    for check in old:
        store.check((check,))
    before = contents(client)
    client.config_set("maxmemory", "1")
    try:
        for plan in shapes:
            with pytest.raises(StoreUnavailable, match="OOM") as failed:
                getattr(store, operation)(plan)
            assert failed.value.charged is False
            assert contents(client) == before, plan
        assert all(store.peek(tuple(old)))
        full = (Check("s", "refused", LIMITS[0], 6), *old)
        assert not all(store.check(full))  # a refusal writes nothing, so it is answered
        assert contents(client) == before
    finally:
        client.config_set("maxmemory", "0")
    assert all(store.check(tuple(old)))
    assert all(client.pttl(name) > 0 for name in client.scan_iter("*"))


def test_what_threads_ask_together_of_a_full_server_is_written_whole_or_not(server, store):
    """Plans that share a command share its fate: no admission is lost, none is granted twice."""
    client = server.client()
    limit = Limit.parse("500 per 50 days")
    limiter = Limiter(limit, store=store, on_store_error="deny")
    admitted = []

    def run():
        admitted.append(sum(limiter.check("k").allowed for _ in range(100)))

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for _ in range(40):
        client.config_set("maxmemory", "1")
        client.config_set("maxmemory", "0")
    for thread in threads:
        thread.join()
    assert 500 - limiter.peek("k").remaining == sum(admitted)
    assert sum(admitted) > 0


@pytest.mark.full  # it waits for the server
def test_a_script_that_is_killed_has_written_nothing(server, store):
    """Only a script that has not written yet can be killed: ours reads a whole plan before it writes."""
    client, killer = server.client(), server.client()
    many = tuple([Check("s", str(number), LIMITS[0], 1) for number in range(30_000)])
    store.peek(many[:1])
    client.config_set("busy-reply-threshold", "1")
    before = contents(client)
    ended = threading.Event()
    killed = []

    def kill():
        while not ended.is_set():
            with contextlib.suppress(Exception):
                killed.append(killer.script_kill())

    def peek_on(plan):
        for _ in range(100):  # until the killer comes in time
            store.peek(plan)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        with pytest.raises(StoreUnavailable, match=r"[Kk]illed") as failed:
            peek_on(many)
        assert failed.value.charged is None  # the words of a killed script are not those of one that never ran
    finally:
        ended.set()
        thread.join()
        client.config_set("busy-reply-threshold", "5000")
    assert killed
    assert contents(client) == before
    assert store.check(many[:1])[0].remaining == 4


def test_a_busy_server_executes_nothing_and_is_asked_again_when_it_is_free(server, store):
    client, other = server.client(), server.client(socket_timeout=60)
    client.config_set("busy-reply-threshold", "1")
    limiter = Limiter(LIMITS[0], store=store, on_store_error="deny")
    assert limiter.check("k").remaining == 4

    def block():
        with contextlib.suppress(Exception):
            other.eval("while true do end", 0)

    thread = threading.Thread(target=block)
    thread.start()
    answers = []
    try:
        while not any("BUSY" in answer.reason for answer in answers):
            answers.append(limiter.check("busy"))
    finally:
        while thread.is_alive():
            with contextlib.suppress(Exception):
                client.script_kill()
            thread.join(0.01)
        client.config_set("busy-reply-threshold", "5000")
    with contextlib.closing(RedisStore(server.url, prefix=store.settings.prefix, deadline=10)) as fresh:
        used = [5 - Limiter(LIMITS[0], store=fresh, name=limiter.name).peek(key).remaining for key in ("k", "busy")]
    assert used == [1, sum(answer.allowed for answer in answers)]
