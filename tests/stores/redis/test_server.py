"""What only a real server shows: names, times to live, rights, scripts that are lost, threads and loops that share."""

import itertools
import os
import select
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ratekeeper import Limit, Limiter
from ratekeeper.check import Check
from ratekeeper.limit import parse_limits
from ratekeeper.stores.redis.store import RedisStore
from ratekeeper.testing import FakeClock
from ratekeeper.testing.contract import walk_limits
from tests.servers import END_WITH_PARENT, Server
from tests.stores.redis.test_store import ENDLESS

prefixes = itertools.count()
HOWTO = Path(__file__).parents[3] / "docs" / "howto" / "redis.md"
ALL = ["gcra", "token_bucket", "leaky_bucket", "fixed_window", "sliding_window", "sliding_log"]
LEAST = "+evalsha +eval +script|load +time +get +mget +set +del +getrange +setrange +pexpire"


@pytest.fixture
def store(redis_server):
    made = RedisStore(redis_server.url, prefix=f"server{next(prefixes)}", deadline=10)
    yield made
    made.close()


def test_every_key_expires_and_no_name_shows_a_caller(redis_server, store):
    limits = [*walk_limits(), Limit.parse("300/minute sliding_log"), parse_limits(["5/minute", "300/hour sliding_log"])]
    client, names = redis_server.client(), set()
    for limit in limits:
        plan = (Check("sp{ace}", "alice@example.org", limit, 1),)
        for _ in range(3):
            store.check(plan)
        store.take(plan)
        store.refund(plan)
        store.check(plan)
        names.update(client.scan_iter(f"{store.settings.prefix}:*", count=100_000))  # at once: some live for a second
    assert len(names) >= len({limit.layout for limit in limits})
    assert not [name for name in names if b"alice" in name or b"{ace}" in name]
    assert ENDLESS not in [client.pttl(name) for name in names]


@pytest.mark.parametrize("text", ["5/hour", "5/hour fixed_window", "5/hour sliding_window", "5/hour sliding_log"])
def test_a_key_outlives_its_state_by_a_second(redis_server, store, text):
    limit = Limit.parse(text)
    store.check((Check("s", "k", limit, 5),))
    (name,) = redis_server.client().scan_iter(f"{store.settings.prefix}:*", count=100_000)
    recovery = 7_200_000 if "sliding_window" in text else 3_600_000
    passed = 30_000  # at most, since the check
    assert recovery + 1000 - passed < redis_server.client().pttl(name) <= recovery + 1000


def test_a_long_log_is_told_to_live_on_only_when_it_must(redis_server):
    clock = FakeClock()
    store = RedisStore(redis_server.url, prefix=f"server{next(prefixes)}", deadline=10, clock=clock)
    plan = (Check("s", "k", Limit.parse("200/minute sliding_log"), 1),)
    client = redis_server.client()
    store.check(plan)
    (name,) = client.scan_iter(f"{store.settings.prefix}:*", count=100_000)
    needed = 3_600_000  # milliseconds: what a store with a clock of its own keeps at least
    assert 2 * needed - 30_000 < client.pttl(name) <= 2 * needed
    client.pexpire(name, 60_000)
    clock.advance(3599)
    store.check(plan)
    assert client.pttl(name) <= 60_000
    clock.advance(2)
    store.check(plan)
    assert 2 * needed - 30_000 < client.pttl(name) <= 2 * needed
    store.close()


def test_a_refusal_writes_nothing_and_a_check_is_one_command(redis_server, store):
    client = redis_server.client()
    limits = [Limit(2, "1 hour", algorithm=name) for name in ALL]
    plans = [tuple([Check("s", key, limit, 1) for key in "abc"]) for limit in limits]
    for plan in plans:
        store.check(plan)
        store.check(plan)
    client.config_resetstat()
    store.translator.refusals.clear()
    store.translator.layouts.clear()
    for plan in plans:
        assert not any(store.check(plan))
    used = client.info("commandstats")
    assert used["cmdstat_evalsha"]["calls"] == len(ALL)
    assert "cmdstat_set" not in used
    assert "cmdstat_setrange" not in used


def test_a_flushed_script_is_sent_again_and_nobody_pays_twice(redis_server, store):
    client = redis_server.client()
    limiter = Limiter("50 per 50 days", store=store)
    admitted = 0
    for _ in range(60):
        client.script_flush()
        admitted += limiter.check("k").allowed
    assert admitted == 50


def test_a_unix_socket_and_a_database(tmp_path):
    server = Server(unixsocket=str(tmp_path / "s"))
    try:
        limiter = Limiter("5/minute", store=f"unix://{tmp_path}/s?db=3&deadline=10")
        assert limiter.check("k").reason == ""
        assert server.client(db=3).dbsize() == 1
        limiter.close()
    finally:
        server.close()


def test_a_full_server_fails_alone_and_takes_nothing():
    server = Server(**{"maxmemory-policy": "noeviction"})
    try:
        limiter = Limiter("5/minute", store=server.url + "?deadline=10", on_store_error="allow")
        assert limiter.check("k").reason == ""
        server.client().config_set("maxmemory", "1")
        assert "OOM" in limiter.check("k").reason
        assert limiter.peek("k").remaining == 4  # reading still works, and the breaker stayed closed
        server.client().config_set("maxmemory", "0")
        assert limiter.check("k").remaining == 3
        limiter.close()
    finally:
        server.close()


def test_threads_share_commands_and_get_their_own_answers(redis_server, store):
    limit = Limit.parse("1000000 per 50 days")
    limiter = Limiter(limit, store=store)
    wrong = []

    def run(number):
        for turn in range(50):
            if limiter.check(f"{number} {turn}", cost=number + 1).remaining != 1_000_000 - number - 1:
                wrong.append(number)  # noqa: PERF401

    threads = [threading.Thread(target=run, args=(number,)) for number in range(16)]
    client = redis_server.client()
    limiter.check("warm")
    client.config_resetstat()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert client.info("commandstats")["cmdstat_evalsha"]["calls"] < 800


def test_a_forked_child_opens_its_own_connection(redis_server, store):
    limiter = Limiter("1000 per 50 days", store=store)
    limiter.check("k")
    child = os.fork()
    if not child:
        code = 1
        try:
            code = 0 if all(limiter.check("k").reason == "" for _ in range(20)) else 2
        finally:
            os._exit(code)
    answers = [limiter.check("k").reason for _ in range(20)]
    assert os.waitpid(child, 0)[1] == 0
    assert set(answers) == {""}
    assert limiter.peek("k").remaining == 1000 - 41


def test_an_idle_connection_is_used_again_and_a_closed_one_replaced(redis_server, store, monkeypatch):
    limiter = Limiter("1000 per 50 days", store=store)
    limiter.check("k")
    link = store.server
    before = link.connection
    monkeypatch.setattr("ratekeeper.stores.redis.connection.IDLE", 0.0)
    assert (limiter.check("k").reason, link.connection) == ("", before)
    before.socket.shutdown(2)
    answer = limiter.check("k")
    assert (answer.reason, answer.remaining) == ("", 997)
    assert link.connection is not before


@pytest.mark.skipif(not END_WITH_PARENT, reason="there is no setpriv here")
def test_a_run_that_is_killed_leaves_no_server_behind():
    code = "from tests.servers import Server; one = Server(); print(one.process.pid, one.folder, flush=True); input()"
    root = Path(__file__).parents[3]
    run = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root)
    number, folder = run.stdout.readline().decode().split()
    ended = os.pidfd_open(int(number))
    assert not select.select([ended], [], [], 0)[0]
    run.kill()
    run.communicate()
    assert select.select([ended], [], [], 10)[0]
    os.close(ended)
    shutil.rmtree(folder)


def test_a_store_that_was_closed_tells_of_no_outage(redis_server, caplog):
    store = RedisStore(redis_server.url, prefix=f"server{next(prefixes)}", deadline=10)
    store.check((Check("s", "k", Limit.parse("5/hour"), 1),))
    (link,) = store.connections.servers.values()
    store.close()
    link.trip("lost the connection")  # as a thread finds it that was asking
    assert not caplog.records
