"""What only a real server shows: names, times to live, rights, scripts that are lost, threads and loops that share."""

import asyncio
import itertools
import os
import random
import select
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ratekeeper import AsyncLimiter, InvalidInput, Limit, Limiter
from ratekeeper.check import Check
from ratekeeper.limit import parse_limits
from ratekeeper.stores.memory import MemoryStore
from ratekeeper.stores.redis.aio_store import AsyncRedisStore
from ratekeeper.stores.redis.request import CheckRequest
from ratekeeper.stores.redis.store import RedisStore
from ratekeeper.testing import FakeClock
from ratekeeper.testing.contract import walk_limits
from tests.servers import WITH_US, Server, free_port
from tests.stores.test_redis import ENDLESS

prefixes = itertools.count()
HOWTO = Path(__file__).parents[2] / "docs" / "howto" / "redis.md"
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
        names.update(client.scan_iter(f"{store.settings.prefix}:*"))  # at once: some live for a second
    assert len(names) >= len({limit.layout for limit in limits})
    assert not [name for name in names if b"alice" in name or b"{ace}" in name]
    assert ENDLESS not in [client.pttl(name) for name in names]


@pytest.mark.parametrize("text", ["5/hour", "5/hour fixed_window", "5/hour sliding_window", "5/hour sliding_log"])
def test_a_key_outlives_its_state_by_a_second(redis_server, store, text):
    limit = Limit.parse(text)
    store.check((Check("s", "k", limit, 5),))
    (name,) = redis_server.client().scan_iter(f"{store.settings.prefix}:*")
    recovery = 7_200_000 if "sliding_window" in text else 3_600_000
    passed = 30_000  # at most, since the check
    assert recovery + 1000 - passed < redis_server.client().pttl(name) <= recovery + 1000


def test_a_long_log_is_told_to_live_on_only_when_it_must(redis_server):
    clock = FakeClock()
    store = RedisStore(redis_server.url, prefix=f"server{next(prefixes)}", deadline=10, clock=clock)
    plan = (Check("s", "k", Limit.parse("200/minute sliding_log"), 1),)
    client = redis_server.client()
    store.check(plan)
    (name,) = client.scan_iter(f"{store.settings.prefix}:*")
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


def test_the_connection_bears_its_name(redis_server):
    limiter = Limiter("5/minute", store=redis_server.url + "?client_name=shop&deadline=10")
    limiter.check("k")
    assert "shop" in [client["name"] for client in redis_server.client().client_list()]
    limiter.close()


def test_a_unix_socket_and_a_database(tmp_path):
    server = Server(unixsocket=str(tmp_path / "s"))
    try:
        limiter = Limiter("5/minute", store=f"unix://{tmp_path}/s?db=3&deadline=10")
        assert limiter.check("k").reason == ""
        assert server.client(db=3).dbsize() == 1
        limiter.close()
    finally:
        server.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A key and a certificate that signs itself, for a server and for a client."""
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    words += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(words, check=True, capture_output=True)
    return key, certificate


def secured(certificate, clients="no", **options):
    """A server with a port for TLS; its certificate is the authority for its clients' too."""
    key, text = certificate
    files = {"tls-cert-file": text, "tls-key-file": key, "tls-ca-cert-file": text, "tls-auth-clients": clients}
    return Server(**{"tls-port": free_port(), **files, **options})


def test_tls(certificate):
    server = secured(certificate)
    try:
        url = f"rediss://127.0.0.1:{server.options['tls-port']}?deadline=10"
        trusting = f"{url}&tls_ca={certificate[1]}"
        limiter = Limiter("5/minute", store=trusting)
        assert (limiter.check("k").reason, limiter.check("k").remaining) == ("", 3)
        limiter.close()

        async def main():
            async with AsyncLimiter("5/minute", store=trusting) as limiter:
                assert (await limiter.check("k")).remaining == 2
                assert limiter.store.connections().server.wire.file == -1  # what is encrypted only the loop may read

        asyncio.run(main())
        assert "certificate verify failed" in Limiter("5/minute", store=url).check("k").reason.lower()
        limiter = Limiter("5/minute", store=f"{url}&tls_verify=off")
        assert (limiter.check("k").reason, limiter.peek("k").remaining) == ("", 1)
        limiter.close()
    finally:
        server.close()


def test_tls_with_certificates_of_clients(certificate):
    server = secured(certificate, clients="yes")
    try:
        key, text = certificate
        url = f"rediss://127.0.0.1:{server.options['tls-port']}?deadline=10&tls_ca={text}"
        limiter = Limiter("5/minute", store=f"{url}&tls_certificate={text}&tls_key={key}")
        assert (limiter.check("k").reason, limiter.peek("k").remaining) == ("", 4)
        limiter.close()
        assert Limiter("5/minute", store=url, on_store_error="deny").check("k").reason.startswith("deny: ")
    finally:
        server.close()


def test_tls_to_a_cluster(certificate):
    server = secured(certificate, **{"cluster-enabled": "yes", "tls-cluster": "yes"})
    try:
        server.client().execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        while b"cluster_state:ok" not in server.client().execute_command("CLUSTER", "INFO"):
            pass
        url = f"redis+cluster://127.0.0.1:{server.options['tls-port']}?deadline=10&tls=on&tls_ca={certificate[1]}"
        limiter = Limiter(["5/minute", "9/hour"], store=url)
        assert (limiter.check("k").reason, limiter.check("k").remaining) == ("", 3)
        assert limiter.store.slots.masters[0] == ("127.0.0.1", server.options["tls-port"])
        limiter.close()
    finally:
        server.close()


def test_an_evicting_server_is_warned_about_once(caplog):
    server = Server(maxmemory="100mb", **{"maxmemory-policy": "allkeys-lru"})
    try:
        for _ in range(2):
            limiter = Limiter("5/minute", store=server.url + "?deadline=10")
            limiter.check("k")
            limiter.close()
        told = [record.getMessage() for record in caplog.records if "maxmemory" in record.getMessage()]
        assert told == [
            f"{server.url}: expected maxmemory-policy noeviction, got allkeys-lru. A full server will forget who is at "
            "the limit; set noeviction, or give limits a server of their own."
        ]
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


# While the server is idle, of 62 the first 32 go ahead; and one alone, if the last one was alone too.
@pytest.mark.parametrize(("before", "many", "commands"), [(2, 4, 1), (2, 10, 2), (1, 4, 2)])
def test_a_loop_sends_one_command_for_all_callers_of_a_turn(redis_server, before, many, commands):
    async def main():
        store = AsyncRedisStore(redis_server.url, prefix=f"server{next(prefixes)}", deadline=10)
        limiters = [AsyncLimiter(Limit(40, "50 days", algorithm=name), store=store) for name in ALL]
        for _ in range(2):  # connected
            await asyncio.gather(*[limiters[0].check("warm") for _ in range(before)])
        client = redis_server.client()
        client.config_resetstat()
        calls = [limiter.check("k") for limiter in limiters for _ in range(many)]
        calls += [limiters[0].peek("k"), limiters[0].refund("other")]
        answers = await asyncio.gather(*calls)
        assert client.info("commandstats")["cmdstat_evalsha"]["calls"] == commands
        for number in range(len(ALL)):
            part = answers[number * many : number * many + many]
            assert [decision.remaining for decision in part] == list(range(39, 39 - many, -1))
        assert answers[len(ALL) * many].remaining == 40 - many
        await store.close()

    asyncio.run(main())


def test_keys_and_costs_that_must_be_looked_at(redis_server):
    """Keys of other kinds are counted by what they are; a cost that is none takes nothing."""
    prefix = f"server{next(prefixes)}"
    limiter = Limiter("9 per 50 days", store=RedisStore(redis_server.url, prefix=prefix, deadline=10))
    kinds = ["k" * 300, b"k", ("k", 1), "k"]

    class Cost(int):
        pass

    async def main():
        store = AsyncRedisStore(redis_server.url, prefix=prefix, deadline=10)
        other = AsyncLimiter("9 per 50 days", store=store)
        for wrong in (0, -1, 1.5, "1", None, 2**63):
            with pytest.raises(InvalidInput):
                limiter.check("k", wrong)
            with pytest.raises(InvalidInput):
                await other.check("k", wrong)
        for key in kinds:
            assert limiter.check(key, Cost(2)).remaining == 7
            assert (await other.check(key, Cost(2))).remaining == 5
        assert (await other.check(bytearray(b"k"))).remaining == 4
        await store.close()

    asyncio.run(main())
    limiter.store.close()


def test_one_that_is_likely_to_stay_alone_is_sent_at_once(redis_server):
    async def main():
        store = AsyncRedisStore(redis_server.url, prefix=f"server{next(prefixes)}", deadline=10)
        link, layout = store.connections().server, store.translator.layout("s", Limit.parse("5/second"))

        def ask():
            return link.ask(CheckRequest(layout, "k", 1))

        await ask()
        first, second = ask(), ask()
        assert len(link.pending) == 1  # the first one alone; the second finds the server busy
        link.flush()
        await asyncio.gather(first, second)
        third = ask()
        assert len(link.pending) == 1  # the last one was not alone
        await third
        last = ask()
        assert link.pending == []
        await last
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(6))
def test_plans_of_one_command_are_decided_like_one_after_the_other(redis_server, seed):
    chance = random.Random(seed)
    limits = [Limit(chance.choice([3, 9]), "minute", algorithm=name) for name in ALL]
    limits += [Limit.parse("150/minute sliding_log"), parse_limits(["5/second", "20/minute", "30/hour fixed_window"])]

    def some_plan():
        if chance.random() < 0.6:  # many that differ in their key only
            limit, cost = chance.choice(limits), chance.choice([1, 1, 1, 2])
            return [(Check(str(limit), str(chance.randrange(3)), limit, cost),) for _ in range(chance.randrange(1, 5))]
        subjects = chance.choices(limits, k=chance.choice([2, 3, 3, 4]))
        return [
            tuple([Check(str(limit), str(chance.randrange(3)), limit, chance.choice([1, 2])) for limit in subjects])
        ]

    async def main():
        clock = FakeClock()
        model = MemoryStore(clock=clock)
        options = {"prefix": f"server{next(prefixes)}", "deadline": 10, "deny_cache": False}
        store = AsyncRedisStore(redis_server.url, clock=clock, **options)
        refused = 0
        for _ in range(60):
            clock.advance(chance.choice([0.0, 0.1, 1.0, 7.0, 60.0]))
            plans = [plan for _ in range(6) for plan in some_plan()]
            answers = await asyncio.gather(*[ask(store, plan) for plan in plans])
            for plan, answer in zip(plans, answers, strict=True):
                expected = model.check(plan)
                assert [figures(one) for one in answer] == [figures(one) for one in expected], plan
                refused += not all(answer)
        assert refused > 50
        await store.close()

    async def ask(store, plan):
        return await store.check(plan)

    def figures(one):
        return one.allowed, one.remaining, one.retry_after, one.reset_after, one.delay

    asyncio.run(main())


def test_a_cancelled_caller_neither_blocks_nor_gets_another_answer(redis_server):
    async def main():
        store = AsyncRedisStore(redis_server.url, prefix=f"server{next(prefixes)}", deadline=10)
        limiter = AsyncLimiter("100000 per 50 days", store=store)
        await limiter.check("warm")
        kept = cancelled = 0
        for turn in range(300):
            tasks = [asyncio.ensure_future(limiter.check(f"{turn} {number}", cost=number + 1)) for number in range(8)]
            for _ in range(turn % 4):
                await asyncio.sleep(0)
            for number in range(turn % 8):
                tasks[number].cancel()
            for number, answer in enumerate(await asyncio.gather(*tasks, return_exceptions=True)):
                if isinstance(answer, asyncio.CancelledError):
                    cancelled += 1
                else:
                    kept += 1
                    assert answer.remaining == 100_000 - number - 1
        assert kept + cancelled == 2400
        assert cancelled > 500
        await store.close()

    asyncio.run(main())


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


def test_a_store_serves_one_loop_after_the_other(redis_server):
    store = AsyncRedisStore(redis_server.url, prefix=f"server{next(prefixes)}", deadline=10)
    limiter = AsyncLimiter("5 per 50 days", store=store)

    async def once():
        try:
            return await limiter.check("k")
        finally:
            await store.close()

    assert [asyncio.run(once()).remaining for _ in range(3)] == [4, 3, 2]


def test_an_idle_connection_is_used_again_and_a_closed_one_replaced(redis_server, store, monkeypatch):
    limiter = Limiter("1000 per 50 days", store=store)
    limiter.check("k")
    link, _ = store.home
    before = link.connection
    monkeypatch.setattr("ratekeeper.stores.redis.connection.IDLE", 0.0)
    assert (limiter.check("k").reason, link.connection) == ("", before)
    before.socket.shutdown(2)
    answer = limiter.check("k")
    assert (answer.reason, answer.remaining) == ("", 997)
    assert link.connection is not before


def test_a_demoted_master_is_left_and_found_again():
    server = Server()
    try:
        client = server.client()
        limiter = Limiter("50 per 50 days", store=server.url + "?deadline=10", on_store_error="deny")

        async def from_a_loop(many):
            async with AsyncLimiter("50 per 50 days", store=server.url + "?deadline=10", on_store_error="deny") as own:
                await own.check("warm")
                client.execute_command("REPLICAOF", "127.0.0.1", "1")
                answers = await asyncio.gather(*[own.check("k") for _ in range(many)])
                client.execute_command("REPLICAOF", "NO", "ONE")
                return answers

        assert limiter.check("k").reason == ""
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
        assert "READONLY" in limiter.check("k").reason
        client.execute_command("REPLICAOF", "NO", "ONE")
        assert limiter.peek("k").remaining in (0, 49)  # refused by the breaker, or nothing was taken meanwhile
        for many in (1, 200):
            answers = asyncio.run(from_a_loop(many))
            assert len(answers) == many
            assert all("READONLY" in answer.reason for answer in answers)
        limiter.close()
    finally:
        server.close()


def reason_of(url):
    """What threads and loops are told by a limiter that cannot use its store; it must be the same."""

    async def from_a_loop():
        async with AsyncLimiter("5/minute", store=url, on_store_error="deny") as limiter:
            return (await limiter.check("k")).reason

    with Limiter("5/minute", store=url, on_store_error="deny") as limiter:
        reason = limiter.check("k").reason
    assert asyncio.run(from_a_loop()) == reason
    return reason


def test_a_missing_password_is_named():
    """The script is longer than what servers take of those who have not named themselves: they hang up on it."""
    server = Server(requirepass="secret")
    try:
        assert reason_of(server.url + "?deadline=10") == "deny: refused EVALSHA: NOAUTH Authentication required."
        with Limiter("5/minute", store=server.url.replace("://", "://:secret@") + "?deadline=10") as limiter:
            assert limiter.check("k").reason == ""
    finally:
        server.close()


def test_a_replica_is_known_when_it_is_connected_to():
    master = Server(**{"repl-diskless-sync-delay": 0})
    replica = Server(replicaof=f"127.0.0.1 {master.port}")
    try:
        while replica.client().info("replication")["master_link_status"] != "up":  # while it loads, it says only that
            pass
        expected = "deny: is a replica, and answers READONLY to what writes"
        assert reason_of(replica.url + "?deadline=10") == expected
        replica.client().config_set("replica-read-only", "no")
        with Limiter("5/minute", store=replica.url + "?deadline=10") as limiter:
            assert limiter.check("k").reason == ""
    finally:
        replica.close()
        master.close()


@pytest.mark.skipif(not WITH_US, reason="there is no setpriv here")
def test_a_run_that_is_killed_leaves_no_server_behind():
    code = "from tests.servers import Server; one = Server(); print(one.process.pid, one.folder, flush=True); input()"
    root = Path(__file__).parents[2]
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
    ((link, _),) = store.links.values()
    store.close()
    link.trip("lost the connection")  # as a thread finds it that was asking
    assert not caplog.records
