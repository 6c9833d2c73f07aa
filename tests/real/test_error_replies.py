"""Every word with which a real server says no: what was not executed is sent again where that can help, else a mode
decides; nobody is charged for it, the log has a line each way, and the store is in use again soon after."""

import asyncio
import contextlib
import logging
import os
import shutil
import threading
import time

import pytest

from ratekeeper import Limit, Limiter
from ratekeeper.check import Check
from ratekeeper.limit import parse_limits
from ratekeeper.stores.redis.aio_store import AsyncRedisStore
from ratekeeper.stores.redis.store import RedisStore
from ratekeeper.stores.redis.topology import slot_of
from tests.real.load import Load
from tests.real.test_faults import busy, full
from tests.servers import Cluster, Server
from tests.stores.redis.test_topology import move_slot

pytestmark = pytest.mark.real
SHORT = bool(os.environ.get("RATEKEEPER_REAL_SHORT"))
LIMIT = Limit.parse("40000 per 50 days")
DEADLINE = 0.2
SLACK = 0.6
RECOVERY = 5.0
LASTS = 0.5 if SHORT else 2.0


def told_by(server, word):
    """How often the server answered with this word, by its own account."""
    return server.client().info("errorstats").get(f"errorstat_{word}", {}).get("count", 0)


@contextlib.contextmanager
def loading(server):
    """A restart with thousands of keys to read, each with a pause."""
    client = server.client()
    client.execute_command("DEBUG", "POPULATE", "3000", "filler", "100")
    client.save()
    server.kill()
    server.options = {**server.options, "key-load-delay": "1000", "loading-process-events-interval-bytes": "1024"}
    server.start()
    yield
    server.client().config_set("key-load-delay", "0")


@contextlib.contextmanager
def readonly(server):
    server.client().execute_command("REPLICAOF", "127.0.0.1", "1")
    yield
    server.client().execute_command("REPLICAOF", "NO", "ONE")


@contextlib.contextmanager
def unauthenticated(server):
    """A password is set, and all connections are made anew."""
    client = server.client()
    client.execute_command("ACL", "SETUSER", "watcher", "on", ">watcher", "+@all", "~*")
    client.execute_command("AUTH", "watcher", "watcher")
    client.config_set("requirepass", "secret")
    client.client_kill_filter(_type="normal", skipme=True)
    yield
    client.config_set("requirepass", "")


@contextlib.contextmanager
def forbidden(server):
    client = server.client()
    client.execute_command("ACL", "SETUSER", "default", "-evalsha")
    yield
    client.execute_command("ACL", "SETUSER", "default", "+evalsha")


@contextlib.contextmanager
def unwritable(server):
    """It cannot save, and says so to everybody who writes."""
    client = server.client()
    client.config_set("save", "3600 1")
    client.config_set("stop-writes-on-bgsave-error", "yes")
    shutil.rmtree(server.folder)  # where the file would be
    client.bgsave()
    until = time.monotonic() + 20
    while client.info("persistence")["rdb_last_bgsave_status"] == "ok":
        assert time.monotonic() < until
        time.sleep(0.01)
    yield
    client.config_set("stop-writes-on-bgsave-error", "no")


WORDS = {
    "LOADING": loading,
    "READONLY": readonly,
    "NOAUTH": unauthenticated,
    "NOPERM": forbidden,
    "BUSY": lambda server: busy(server, None),
    "OOM": lambda server: full(server, None),
    "MISCONF": unwritable,
}


@pytest.fixture
def server():
    server = Server()
    yield server
    server.close()


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("word", WORDS)
def test_a_server_that_says_no(server, word, kind, caplog):
    caplog.set_level(logging.INFO, "ratekeeper.store")
    with Load(kind, LIMIT, server.url, workers=4, deadline=DEADLINE, on_store_error="deny") as load:
        load.wait(lambda decision: decision.reason == "")
        with WORDS[word](server):
            load.wait(lambda decision: word in decision.reason, seconds=10)
            time.sleep(LASTS)
        recovers_after = load.wait(lambda decision: decision.reason == "")
        time.sleep(0.1)
    assert load.errors == []
    assert max(took for _, took, _ in load.answers) < DEADLINE + SLACK + load.lag
    assert recovers_after < RECOVERY + load.lag
    assert all(decision.reason.startswith("deny: ") for _, _, decision in load.answers if decision.reason)
    there = load.admitted(by_store=True)
    doubtful = sum(
        1 for _, _, decision in load.answers if any(each in decision.reason for each in ("no answer", "lost"))
    )
    if word != "LOADING":  # which forgot what was used since it was last saved
        with contextlib.closing(Limiter(LIMIT, store=server.url, name="load", deadline=10)) as limiter:
            assert there <= LIMIT.count - limiter.peek("k").remaining <= there + doubtful
    lines = [record.getMessage() for record in caplog.records if record.name == "ratekeeper.store"]
    lost = [line for line in lines if "Using on_store_error=" in line and line.endswith(" until it recovers")]
    back = [line for line in lines if line.endswith("answers again")]
    assert len(lost) == len(back) <= 3
    if word in ("OOM", "MISCONF"):  # a refusal of what writes is no outage; a machine that stops for a while is one
        assert [line for line in lost if "gave no answer" not in line] == []


@pytest.fixture
def cluster():
    cluster = Cluster()
    yield cluster
    cluster.close()


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_slot_that_nobody_serves(cluster, kind):
    """CLUSTERDOWN; and MOVED, when another node has it in the end."""
    store = RedisStore(cluster.url, deadline=10)
    slot = slot_of(store.translator.layout("load", LIMIT).name("k"))
    store.close()
    owner = cluster.owner(slot)
    other = next(server for server in cluster.servers if server is not owner)
    with Load(kind, LIMIT, cluster.url, workers=4, deadline=DEADLINE, on_store_error="deny") as load:
        load.wait(lambda decision: decision.reason == "")
        for server in cluster.servers:
            server.client().execute_command("CLUSTER", "DELSLOTS", slot)
        load.wait(lambda decision: "CLUSTERDOWN" in decision.reason, seconds=10)
        time.sleep(LASTS)
        other.client().execute_command("CLUSTER", "ADDSLOTS", slot)
        other.client().execute_command("CLUSTER", "BUMPEPOCH")
        recovers_after = load.wait(lambda decision: decision.reason == "")
    assert load.errors == []
    assert max(took for _, took, _ in load.answers) < 2 * DEADLINE + SLACK + load.lag
    assert recovers_after < RECOVERY + 10 * DEADLINE + load.lag  # the nodes must hear of it, too
    assert told_by(owner, "CLUSTERDOWN") > 0


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_plan_of_two_keys_halfway_between_two_nodes(cluster, kind):
    """TRYAGAIN, as only one of them has moved: asked again until both have, or the deadline is over."""
    limit = parse_limits(["40000 per 50 days", "100 per 50 days sliding_log"])
    store = RedisStore(cluster.url, prefix="halfway", deadline=10)
    plan = (Check("load", "k", limit, 1),)
    store.check(plan)
    slot = slot_of(store.translator.layout("load", limit).name("k"))
    source = cluster.owner(slot)
    target = next(server for server in cluster.servers if server is not source)
    steps = move_slot(cluster, slot, source, target)
    next(steps)
    first, _ = source.client().execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100)
    source.client().execute_command("MIGRATE", "127.0.0.1", target.port, first, 0, 5000)
    late = RedisStore(cluster.url, prefix="halfway", deadline=1)
    limiter = Limiter(limit, store=late, name="load", on_store_error="deny")
    assert "TRYAGAIN" in limiter.check("k").reason
    late.close()
    answers = []
    if kind == "sync":
        asking = threading.Thread(target=lambda: answers.append(store.check(plan)))
    else:

        async def ask():
            other = AsyncRedisStore(cluster.url, prefix="halfway", deadline=10)
            answers.append(await other.check(plan))
            await other.close()

        asking = threading.Thread(target=lambda: asyncio.run(ask()))
    before = told_by(source, "TRYAGAIN") + told_by(target, "TRYAGAIN")
    asking.start()
    until = time.monotonic() + 20
    while told_by(source, "TRYAGAIN") + told_by(target, "TRYAGAIN") < before + 3:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert answers == []
    for _ in steps:
        pass
    asking.join()
    assert [[part.remaining for part in decision.parts()] for decision in answers[0]] == [[39998, 98]]
    store.close()
