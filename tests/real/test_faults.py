"""A server that dies, hangs, fills up or cannot be reached, under load: nobody raises, waits or is counted twice."""

import asyncio
import contextlib
import itertools
import logging
import os
import random
import signal
import threading
import time

import pytest
import uvloop

from ratekeeper import AsyncLimiter, Limit, Limiter, StoreUnavailable
from ratekeeper.check import Check
from ratekeeper.stores.redis.aio_store import AsyncRedisStore
from ratekeeper.stores.redis.store import RedisStore
from tests.real.faulty_proxy import FaultyProxy
from tests.real.load import Load
from tests.servers import Server

pytestmark = pytest.mark.real
SHORT = bool(os.environ.get("RATEKEEPER_REAL_SHORT"))
OUTAGE = 1.2 if SHORT else 4.0  # seconds
DEADLINE = 0.2
SLACK = 0.6  # a busy machine; without a deadline a call would take the whole outage
RECOVERY = 5.0
LIMIT = 40_000
prefixes = itertools.count()


@contextlib.contextmanager
def killed(server, proxy):
    server.kill()
    yield
    server.start()


@contextlib.contextmanager
def stopped(server, proxy):
    server.process.send_signal(signal.SIGSTOP)
    yield
    server.process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def paused(server, proxy):
    until = time.monotonic() + DEADLINE + SLACK + OUTAGE + 3  # it cannot be ended before: that is a command too
    server.client().execute_command("CLIENT", "PAUSE", int((until - time.monotonic()) * 1000), "ALL")
    yield
    time.sleep(max(0.0, until - time.monotonic()))


@contextlib.contextmanager
def paused_writes(server, proxy):
    """Answers PING, but no script: a probe that only says PING would be fooled."""
    server.client().execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
    yield
    server.client().execute_command("CLIENT", "UNPAUSE")


@contextlib.contextmanager
def swallowed(server, proxy):
    proxy.deaf = True
    yield
    proxy.deaf = False


@contextlib.contextmanager
def full(server, proxy):
    server.client().config_set("maxmemory", "1")
    yield
    server.client().config_set("maxmemory", "0")


@contextlib.contextmanager
def busy(server, proxy):
    """A script of somebody else that does not end."""
    server.client().config_set("busy-reply-threshold", "100")

    def spin():
        with contextlib.suppress(Exception):
            server.client().eval("while true do end", 0)

    thread = threading.Thread(target=spin)
    thread.start()
    yield
    server.client().script_kill()
    thread.join()


FAULTS = [killed, stopped, paused, paused_writes, swallowed, full, busy]
CASES = [(fault, kind, "local") for fault in FAULTS for kind in ("sync", "async")]
CASES += [(stopped, "sync", "allow"), (stopped, "async", "deny")]
if not SHORT:
    CASES += [(fault, kind, mode) for fault in FAULTS for kind in ("sync", "async") for mode in ("allow", "deny")]


@pytest.fixture
def server():
    server = Server()
    yield server
    with contextlib.suppress(Exception):
        server.process.send_signal(signal.SIGCONT)
    server.close()


@pytest.fixture
def proxy(server):
    proxy = FaultyProxy(server.port)
    yield proxy
    proxy.close()


@pytest.mark.parametrize(("fault", "kind", "mode"), dict.fromkeys(CASES))
def test_an_outage_is_a_mode(server, proxy, fault, kind, mode, caplog):
    caplog.set_level(logging.INFO, "ratekeeper.store")
    url = (proxy if fault is swallowed else server).url
    limit = Limit.parse(f"{LIMIT} per 50 days")
    with Load(kind, limit, url, deadline=DEADLINE, on_store_error=mode) as load:
        load.wait(lambda decision: decision.reason == "")
        time.sleep(0.2)
        with fault(server, proxy):
            fails_after = load.wait(lambda decision: decision.reason != "")
            began = time.monotonic() + DEADLINE + SLACK / 2  # those under way when it began are over
            time.sleep(OUTAGE)
            ended = time.monotonic()
        recovers_after = load.wait(lambda decision: decision.reason == "")
        time.sleep(0.2)
    assert load.errors == []
    worst = max(took for _, took, _ in load.answers)
    assert worst < DEADLINE + SLACK + load.lag
    assert fails_after < DEADLINE + SLACK + load.lag
    assert recovers_after < RECOVERY + load.lag
    # Meanwhile the mode that was chosen decides, at next to no cost.
    meanwhile = load.between(began, ended)
    assert len(meanwhile) > 50
    assert {decision.reason.partition(":")[0] for _, _, decision in meanwhile} == {mode}
    taken = sorted(took for _, took, _ in meanwhile)
    assert taken[len(taken) // 2] < DEADLINE / 4  # nobody waits for the dead
    if mode != "local":
        assert all(decision.allowed == (mode == "allow") for _, _, decision in meanwhile)
    # Nobody is admitted for free, and nobody is counted twice: in doubt are only those whose answers were lost.
    here, there = load.admitted(by_store=False), load.admitted(by_store=True)
    if mode == "local":
        assert here <= LIMIT // 2
    client = server.client()
    names = list(client.scan_iter("*"))
    assert len(names) == 1
    assert all(client.pttl(name) > 0 for name in names)
    with contextlib.closing(Limiter(limit, store=server.url, name="load", deadline=10)) as limiter:
        used = LIMIT - limiter.peek("k").remaining
    if fault is not killed:  # which forgot what was used before
        doubtful = [decision for _, _, decision in load.answers if decision.reason != "" and is_doubtful(decision)]
        in_doubt, charged = len(doubtful), 0
        if mode == "local":  # what was admitted here was charged when the store was back
            charged = here - sum(decision.allowed for decision in doubtful)
        assert there + charged <= used <= there + charged + in_doubt
    # Few lines in the log: one for each change of state.
    told = [record.getMessage() for record in caplog.records if record.name == "ratekeeper.store"]
    lost = [line for line in told if "Using on_store_error=" in line and line.endswith(" until it recovers")]
    back = [line for line in told if line.endswith("answers again")]
    assert len(lost) == len(back) <= 3


def is_doubtful(decision):
    return any(word in decision.reason for word in ("gave no answer", "lost the connection", "deadline"))


@pytest.mark.parametrize("hangs_up", [False, True])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_lost_reply_is_counted_once_and_told(server, proxy, kind, hangs_up):
    limit = Limit.parse("100 per 50 days")
    plan = (Check("s", "k", limit, 1),)
    proxy.hangs_up = hangs_up

    async def ask(store):
        answer = store.check(plan)
        return await answer if kind == "async" else answer

    async def main():
        store = (AsyncRedisStore if kind == "async" else RedisStore)(proxy.url, deadline=2)
        assert (await ask(store))[0].remaining == 99
        proxy.lose = 1
        with pytest.raises(StoreUnavailable) as caught:
            await ask(store)
        assert caught.value.charged is None
        assert proxy.lost == 1
        reader = RedisStore(server.url, deadline=10)
        assert reader.peek(plan)[0].remaining == 98  # once, though the store was asked and its answer never came
        reader.close()
        closing = store.close()
        if kind == "async":
            await closing

    asyncio.run(main())


def test_replies_lost_under_load_are_never_charged_twice(server, proxy):
    with Load("async", Limit.parse(f"{LIMIT} per 50 days"), proxy.url, deadline=0.1, on_store_error="deny") as load:
        load.wait(lambda decision: decision.reason == "")
        for turn in range(4 if SHORT else 20):
            proxy.hangs_up = turn % 2 == 1
            proxy.lose = 1
            load.wait(lambda decision: decision.reason != "")
            load.wait(lambda decision: decision.reason == "")
    assert load.errors == []
    there = load.admitted(by_store=True)
    in_doubt = sum(1 for _, _, decision in load.answers if decision.reason != "" and is_doubtful(decision))
    limiter = Limiter(f"{LIMIT} per 50 days", store=server.url, name="load", deadline=10)
    assert there <= LIMIT - limiter.peek("k").remaining <= there + in_doubt
    limiter.close()


def test_ten_thousand_cancellations_mix_up_no_answers(server):
    """Each key has a cost of its own, so an answer that went to another caller would show."""
    wanted = 1_000 if SHORT else 10_000

    async def main():
        chance = random.Random(7)
        store = AsyncRedisStore(server.url, deadline=60, on_store_error="deny")
        limiter = AsyncLimiter("100000 per 50 days", store=store)
        await limiter.check("warm")
        kept, cancelled, charged = [], [], {}

        async def call(number):
            cost = number % 97 + 1
            task = asyncio.ensure_future(limiter.check(f"{number}", cost=cost))
            for _ in range(chance.randrange(6)):
                await asyncio.sleep(0)
            if chance.random() < 0.75:
                task.cancel()
            try:
                answer = await task
            except asyncio.CancelledError:
                cancelled.append(number)
            else:
                assert (answer.reason, answer.remaining) == ("", 100_000 - cost)
                kept.append(number)

        first = 0
        while len(cancelled) < wanted:  # how many are in time to be cancelled depends on the machine
            await asyncio.gather(*[call(number) for number in range(first, first + 100)])
            first += 100
        for number in [*kept, *cancelled]:
            charged[number] = 100_000 - (await limiter.peek(f"{number}")).remaining
        # Who got an answer paid once; who was cancelled paid once or not at all.
        assert all(charged[number] == number % 97 + 1 for number in kept)
        assert all(charged[number] in (0, number % 97 + 1) for number in cancelled)
        assert len({charged[number] > 0 for number in cancelled}) == 2  # both happened
        link = store.connections().server
        assert (len(link.pending), len(link.waiting), len(link.in_flight)) == (0, 0, 0)
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("share", [0.0, 0.3], ids=["kept", "cancelled"])
def test_tasks_that_learn_from_each_other_lose_and_gain_nothing(server, loop, share):
    """Sixty-four tasks at keys that are refused nearly always: all that a key was allowed was admitted, or is left."""
    # A bucket that is empty is whole after five seconds: a busy machine asks again before.
    rate, burst, keys = 5, 25, [f"key {number}" for number in range(20)]

    async def main(store):
        chance = random.Random(5)
        limiter = AsyncLimiter(f"{rate}/second burst {burst}", store=store)
        await limiter.check("warm")
        admitted, in_doubt, asked = dict.fromkeys(keys, 0), dict.fromkeys(keys, 0), 0

        async def task(number):
            nonlocal asked
            while time.monotonic() < until:
                for key in chance.sample(keys, 5):
                    call = asyncio.ensure_future(limiter.check(key))
                    await asyncio.sleep(0)
                    if chance.random() < share:
                        call.cancel()
                    asked += 1
                    try:
                        answer = await call
                    except asyncio.CancelledError:
                        in_doubt[key] += 1
                    else:
                        admitted[key] += answer.allowed

        began = time.monotonic()
        until = began + (2 if SHORT else 10)
        await asyncio.gather(*[task(number) for number in range(64)])
        for key in keys:
            before = time.monotonic()
            left = (await limiter.peek(key)).remaining
            least, most = (burst + rate * (instant - began) - left for instant in (before, time.monotonic()))
            assert admitted[key] <= most + 1
            assert admitted[key] + in_doubt[key] >= least - 2  # one is on its way to be whole, the first came later
        assert asked > 10 * sum(admitted.values()) if share == 0 else any(in_doubt.values())

    async def closed():  # uvloop cannot be closed after an error otherwise
        async with contextlib.AsyncExitStack() as stack:
            store = AsyncRedisStore(server.url, prefix=f"learn{next(prefixes)}", deadline=60)
            stack.push_async_callback(store.close)
            await main(store)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(closed())
