"""A store that is slow but alive: what is asked while replies are held back, and who decides.

A proxy holds replies until the test has seen what it waits for, so a busy machine only makes the tests slower.
"""

import asyncio
import contextlib
import logging
import os
import threading
import time

import pytest

from ratekeeper import AsyncLimiter, Limit, Limiter, StoreUnavailable
from ratekeeper.check import Check
from ratekeeper.native import core
from ratekeeper.stores.redis.aio_store import AsyncRedisStore
from ratekeeper.stores.redis.store import RedisStore
from ratekeeper.stores.redis.topology import slot_of
from tests.real.faulty_proxy import FaultyProxy
from tests.real.load import Lag, Load
from tests.servers import Cluster, Sentinel, Server

pytestmark = pytest.mark.real
SHORT = bool(os.environ.get("RATEKEEPER_REAL_SHORT"))
LIMIT = Limit.parse("40000 per 50 days")
PLAN = tuple([Check(f"s{number}", f"k{number}", LIMIT, 1) for number in range(6)])
PATIENT = 60.0  # seconds: never the reason for an answer here
KINDS = pytest.mark.parametrize("kind", ["sync", "async"])


@pytest.fixture(scope="module")
def shared_cluster():
    cluster = Cluster(between=FaultyProxy)
    yield cluster
    cluster.close()


@pytest.fixture
def cluster(shared_cluster):
    yield shared_cluster
    for proxy in shared_cluster.proxies:
        proxy.deaf = False
        proxy.release()


class Caller:
    """One store, as threads use it or as tasks on a loop of its own; each call runs beside the test."""

    def __init__(self, kind, url, **options):
        self.store = (RedisStore if kind == "sync" else AsyncRedisStore)(url, **options)
        self.loop = asyncio.new_event_loop() if kind == "async" else None
        if self.loop is not None:
            self.thread = threading.Thread(target=self.loop.run_forever)
            self.thread.start()

    def start(self, plan=PLAN):
        """Ask; the outcome is the decisions, or the error."""
        outcome = []

        def run():
            try:
                outcome.append(self.check(plan))
            except StoreUnavailable as error:
                outcome.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread, outcome

    def check(self, plan=PLAN):
        return self.wait(self.store.check, plan)

    def wait(self, call, *arguments):
        if self.loop is None:
            return call(*arguments)

        async def run():
            return await call(*arguments)

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(PATIENT)

    def close(self):
        self.wait(self.store.close)
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join()
            self.loop.close()


@contextlib.contextmanager
def calling(kind, url, **options):
    caller = Caller(kind, url, **options)
    try:
        yield caller
    finally:
        caller.close()


@KINDS
def test_a_plan_over_several_slots_asks_them_side_by_side(cluster, kind):
    """One after the other, six slots took six round trips."""
    with calling(kind, cluster.url, deadline=PATIENT) as caller:
        caller.check()
        before = [proxy.count() for proxy in cluster.proxies]
        for proxy in cluster.proxies:
            proxy.hold()
        thread, outcome = caller.start()
        for proxy, count in zip(cluster.proxies, before, strict=True):
            proxy.await_count(count + 1)  # all were asked, and none has answered
        for proxy in cluster.proxies:
            proxy.release()
        thread.join(PATIENT)
        assert all(outcome[0])


@KINDS
def test_all_nodes_that_hang_cost_one_deadline(cluster, kind):
    deadline = 0.5
    with calling(kind, cluster.url, deadline=deadline) as caller, Lag() as lag:
        while True:
            with contextlib.suppress(StoreUnavailable):  # a busy machine may need another attempt
                caller.check()
                break
        for proxy in cluster.proxies:
            proxy.deaf = True
        began = time.monotonic()
        with pytest.raises(StoreUnavailable):
            caller.check()
        first = time.monotonic() - began
        # A thread and a loop of this process are between the call and its answer.
        assert deadline <= first < 2 * deadline + 4 * lag.worst  # one after the other it would be three deadlines
        asked = [proxy.count() for proxy in cluster.proxies]
        for _ in range(20):
            with pytest.raises(StoreUnavailable):
                caller.check()
        # Nobody asks a node that is away: 20 plans over three nodes.  Probes are rare, and so are late give-backs.
        assert sum(proxy.count() for proxy in cluster.proxies) < sum(asked) + 20


@KINDS
def test_the_first_contact_with_a_cluster_has_a_budget_of_its_own(cluster, kind):
    """Three seeds shared one deadline, so that none could answer: no decision was ever made by the store."""
    for proxy in cluster.proxies:
        proxy.hold()
    learned = cluster.proxies[0].count(b"SLOTS")

    def let_go():
        cluster.proxies[0].await_count(learned + 1, b"SLOTS")
        time.sleep(1.5)  # longer than a deadline
        for proxy in cluster.proxies:
            proxy.release()

    thread = threading.Thread(target=let_go)
    thread.start()
    with calling(kind, cluster.url, deadline=1.0, first_deadline=PATIENT) as caller:
        assert all(caller.check())
    thread.join()


@KINDS
def test_a_limiter_learns_the_slots_and_connects_before_its_first_decision(cluster, kind):
    before = [proxy.count(b"CLIENT") for proxy in cluster.proxies]
    limiter = None

    async def open_limiter():
        return AsyncLimiter(LIMIT, store=f"{cluster.url}?deadline={PATIENT:g}")

    with calling(kind, cluster.url) as caller:
        if kind == "sync":
            limiter = Limiter(LIMIT, store=f"{cluster.url}?deadline={PATIENT:g}")
        else:
            limiter = caller.wait(open_limiter)
        for proxy, count in zip(cluster.proxies, before, strict=True):
            proxy.await_count(count + 1, b"CLIENT")  # of the handshake
        learned = sum(proxy.count(b"SLOTS") for proxy in cluster.proxies)
        assert [caller.wait(limiter.check, f"k{number}").reason for number in range(9)] == [""] * 9
        assert sum(proxy.count(b"SLOTS") for proxy in cluster.proxies) == learned
        caller.wait(limiter.close)


@KINDS
def test_a_cluster_that_cannot_be_learned_is_logged_once(cluster, kind, caplog):
    caplog.set_level(logging.INFO, "ratekeeper.store")
    for proxy in cluster.proxies:
        proxy.deaf = True
    with calling(kind, cluster.url, deadline=0.1, first_deadline=0.2) as caller:
        for _ in range(20):
            with pytest.raises(StoreUnavailable):
                caller.check()
        (line,) = [record.getMessage() for record in caplog.records]
        assert "which node serves which slot" in line
        assert line.endswith("Using on_store_error=local (50 % of each limit, per process) until it recovers")
        for proxy in cluster.proxies:
            proxy.deaf = False
        until = time.monotonic() + PATIENT
        while "answers again" not in caplog.text and time.monotonic() < until:
            with contextlib.suppress(StoreUnavailable):
                caller.check()
            time.sleep(0.01)
        assert f"{cluster.url}: answers again" in caplog.text


@KINDS
def test_the_first_contact_through_a_sentinel_has_a_budget_of_its_own(kind):
    server = Server()
    sentinel = Sentinel(server)
    proxy = FaultyProxy(sentinel.port)
    proxy.hold()

    def let_go():
        proxy.await_count(1, b"SENTINEL")
        time.sleep(0.7)  # longer than a deadline, shorter than an attempt to connect
        proxy.release()

    thread = threading.Thread(target=let_go)
    thread.start()
    try:
        url = f"redis+sentinel://127.0.0.1:{proxy.port}/main"
        with calling(kind, url, deadline=0.5, first_deadline=PATIENT) as caller:
            assert all(caller.check(PLAN[:1]))
        thread.join()
    finally:
        for each in (proxy, sentinel, server):
            each.close()


@KINDS
def test_what_one_slot_took_is_given_back_in_the_background(cluster, kind):
    """One node hangs: the caller is told at the deadline, and the others get back what they took."""
    reader = RedisStore(cluster.url, deadline=PATIENT)
    plan = tuple([Check(f"back-{kind}", f"k{number}", LIMIT, 1) for number in range(6)])
    here = tuple([check for check in plan if owner(cluster, reader, check) != 0])
    reader.peek(plan)
    with calling(kind, cluster.url, deadline=1.0) as caller:
        while True:
            with contextlib.suppress(StoreUnavailable):
                caller.check()  # another plan: each node is connected
                break
        cluster.proxies[0].deaf = True
        with pytest.raises(StoreUnavailable):
            caller.check(plan)
        until = time.monotonic() + PATIENT
        while time.monotonic() < until:
            remaining = {decision.remaining for decision in reader.peek(here)}
            if remaining == {LIMIT.count}:
                break
            time.sleep(0.02)
    cluster.proxies[0].deaf = False
    reader.close()
    assert remaining == {LIMIT.count}


def owner(cluster, store, check):
    """The number of the node that has the key of a check."""
    name = store.translator.layout(check.space, check.limit).name(check.key)
    return cluster.servers.index(cluster.owner(slot_of(name)))


@pytest.fixture
def proxy():
    server = Server()
    proxy = FaultyProxy(server.port)
    yield proxy
    proxy.close()
    server.close()


@pytest.mark.skipif(core is None, reason="without the C core threads take turns")
def test_threads_do_not_wait_for_the_answers_of_others(proxy):
    """Whoever came while a batch was under way waited for its answer first: two threads were never decided there."""
    limiter = Limiter(LIMIT, store=proxy.url, deadline=PATIENT)
    assert not limiter.check("warm").reason
    before, reasons = proxy.count(), []
    proxy.hold()
    threads = []
    for number in range(16):
        threads.append(threading.Thread(target=lambda: reasons.append(limiter.check("k").reason)))
        threads[-1].start()
        proxy.await_count(before + number + 1)  # it was sent, and no reply has come
    assert reasons == []
    proxy.release()
    for thread in threads:
        thread.join(PATIENT)
    limiter.close()
    assert reasons == [""] * 16


SLOW = [(0.08, "sync"), (0.08, "async"), (0.4, "sync"), (0.4, "async"), (0.9, "sync"), (0.9, "async")]


@pytest.mark.parametrize(("late", "kind"), SLOW[:2] if SHORT else SLOW)
def test_a_server_that_is_too_slow_is_away_and_does_not_come_and_go(proxy, kind, late, caplog):
    """The probe had a second, the decision 50 ms: the log had up to 71 lines in 20 seconds."""
    caplog.set_level(logging.INFO, "ratekeeper.store")
    proxy.replies_late = late
    with Load(kind, LIMIT, proxy.url, workers=4, deadline=0.05, on_store_error="deny") as load:
        time.sleep(3 if SHORT else 20)
    assert load.errors == []
    lines = [record.getMessage() for record in caplog.records if record.name == "ratekeeper.store"]
    assert 1 <= len(lines) <= 3, lines
    # Which of the two it meets first depends on the delay: a decision that is late, or a first contact that is.
    assert "50 ms" in lines[0] or "could not be reached within 1000 ms" in lines[0]
