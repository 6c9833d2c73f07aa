"""Cooldowns: shared at once within a process, and through the store between processes."""

import asyncio

import httpx
import pytest

from ratekeeper.outbound import Retry
from ratekeeper.outbound.cooldown import Cooldowns, cooldowns_of, look_up_interval
from ratekeeper.outbound.httpx import AsyncPacedTransport, PacedTransport, PacingTimeout
from ratekeeper.stores import MemoryStore, open_store
from ratekeeper.stores.redis.store import RedisStore
from ratekeeper.testing import FakeClock
from tests.outbound.provider import STEADY, URL, Server, client


def test_all_callers_stop_when_one_must_wait():
    async def main():
        clock = FakeClock()
        server = Server(clock, (200, {}), (429, {"retry-after": "10"}))
        transport = AsyncPacedTransport(
            httpx.MockTransport(server), limit="10/second burst 3 leaky_bucket", clock=clock, retry=STEADY
        )
        async with httpx.AsyncClient(transport=transport) as session:
            await asyncio.gather(*[session.get(URL) for _ in range(6)])
        # The second was refused at 0.1; the others stopped, and came after the cooldown, at the pace.
        assert server.times[:2] == [0.0, 0.1]
        assert server.times[2] == 10.1
        assert all(
            later - sooner >= 0.099999 for sooner, later in zip(server.times[2:], server.times[3:], strict=False)
        )
        assert len(server.times) == 7

    asyncio.run(main())


def test_clients_of_one_store_share_a_cooldown():
    clock = FakeClock(start=50.0)
    store = MemoryStore(clock=clock)
    one, two = Server(clock, (429, {"retry-after": "10"})), Server(clock)
    transports = [PacedTransport(httpx.MockTransport(server), store=store, retry=STEADY) for server in (one, two)]
    with httpx.Client(transport=transports[0]) as first, httpx.Client(transport=transports[1]) as second:
        assert first.get(URL, extensions={"ratekeeper": {"max_wait": 1}}).status_code == 429
        with pytest.raises(PacingTimeout, match="turn in time, but it comes in 10"):
            second.get(URL, extensions={"ratekeeper": {"max_wait": 1}})
        second.get(URL)
    assert two.times == [60.0]


def test_a_cooldown_ends_after_an_hour_however_long_the_server_asks_for():
    clock = FakeClock()
    server = Server(clock, (429, {"retry-after": "999999999"}))
    with client(server, clock, max_wait=None, max_retries=0, retry=Retry(0, first=0.0)) as session:
        assert session.get(URL).status_code == 429
        session.get(URL)
    assert server.times == [0.0, 3600.0]


class Process:
    """The store of one process of a fleet: it shares its states with others, and counts what it is asked."""

    def __init__(self, states, blocking):
        self.states_of_all = states
        self.blocking = blocking
        self.clock = states.clock
        self.questions = []

    def __getattr__(self, operation):
        def ask(*arguments):
            self.questions.append(operation)
            return getattr(self.states_of_all, operation)(*arguments)

        return ask


def run(flow, store):
    """Run a flow to its end, and return its result."""
    try:
        effect = next(flow)
        while True:
            effect = flow.send(getattr(store, effect.operation)(*effect.arguments))
    except StopIteration as done:
        return done.value


def test_of_two_cooldowns_the_later_end_stays_also_in_the_store():
    clock = FakeClock(start=50.0)
    store = MemoryStore(clock=clock)
    cooldowns = Cooldowns("h", clock, 0)
    for micros, left in ((5_000_000, 5_000_000), (2_000_000, 5_000_000), (9_000_000, 9_000_000)):
        run(cooldowns.start("k", micros), store)
        assert cooldowns.remaining("k") == left
        other = Cooldowns("h", clock, 0)
        assert run(other.look_up("k"), store) == left
        assert other.remaining("k") == left
    clock.advance(9)
    assert cooldowns.remaining("k") == 0


def fleet(blocking, limit=None):
    """Two processes that share a store; the server refuses the first request of the first."""
    clock = FakeClock(start=50.0)
    states = MemoryStore(clock=clock)
    answers = [httpx.Response(429, headers={"retry-after": "10"})]

    def server(request):
        return answers.pop() if answers and request.headers.get("refuse") else httpx.Response(200)

    def client(store):
        transport = PacedTransport(
            httpx.MockTransport(server), limit=limit, store=store, retry=Retry(0, first=0.0), max_wait=1
        )
        return httpx.Client(transport=transport)

    stores = [Process(states, blocking) for _ in range(2)]
    return clock, stores, [client(store) for store in stores]


def test_a_remote_store_is_asked_for_cooldowns_of_other_processes_every_100_ms():
    clock, _, (one, two) = fleet(blocking=True)
    assert two.get(URL).status_code == 200  # looks it up: no cooldown
    assert one.get(URL, headers={"refuse": "1"}).status_code == 429
    with pytest.raises(PacingTimeout):
        one.get(URL)  # its own process knows at once
    clock.advance(0.099999)
    assert two.get(URL).status_code == 200
    clock.advance(0.000001)
    with pytest.raises(PacingTimeout, match=r"comes in 9\.9 s"):
        two.get(URL)
    clock.advance(9.9)
    assert two.get(URL).status_code == one.get(URL).status_code == 200


def test_shared_memory_is_read_at_every_request():
    _, _, (one, two) = fleet(blocking=False)
    assert two.get(URL).status_code == 200
    assert one.get(URL, headers={"refuse": "1"}).status_code == 429
    with pytest.raises(PacingTimeout, match="comes in 10 s"):
        two.get(URL)


def test_which_store_is_asked_how_often(tmp_path):
    assert look_up_interval(open_store("memory://")) is None
    shared = open_store(f"shm://{tmp_path}")
    assert look_up_interval(shared) == 0
    shared.close()
    remote = RedisStore("redis://127.0.0.1:1")
    assert look_up_interval(remote) == 100_000
    remote.close()


def test_clients_share_cooldowns_by_store_and_name():
    store, other = MemoryStore(), MemoryStore()
    assert cooldowns_of(store, "a") is cooldowns_of(store, "a")
    assert cooldowns_of(store, "a") is not cooldowns_of(store, "b")
    assert cooldowns_of(store, "a") is not cooldowns_of(other, "a")
    before = cooldowns_of(store, "a")
    store.use_clock(FakeClock())
    assert cooldowns_of(store, "a").clock is store.clock is not before.clock


class Slotted:
    """A store that has no weak references."""

    __slots__ = ("blocking", "clock")


def test_a_store_without_weak_references_works_alone():
    store = Slotted()
    store.blocking, store.clock = False, FakeClock()
    assert cooldowns_of(store, "a") is not cooldowns_of(store, "a")
    assert cooldowns_of(store, "a").interval == 0


def test_the_oldest_of_too_many_keys_is_forgotten(monkeypatch):
    monkeypatch.setattr("ratekeeper.outbound.cooldown.MOST_KEYS", 2)
    store = MemoryStore(clock=FakeClock())
    cooldowns = cooldowns_of(store, "a")
    for key in ("a", "b", "b", "c"):
        run(cooldowns.start(key, 1_000_000), store)
    assert [bool(cooldowns.remaining(key)) for key in "abc"] == [False, True, True]


@pytest.mark.parametrize("limit", ["100/second", {"api.example.com": "100/second", "api.example.com/v1": "50/second"}])
def test_a_request_that_need_not_wait_asks_the_store_once(limit):
    clock, stores, (one, _) = fleet(blocking=True, limit=limit)
    questions = stores[0].questions
    one.get(URL)
    assert questions == ["states", "check"]  # the first looks for a cooldown as well
    for _ in range(4):
        questions.clear()
        clock.advance(0.02)
        one.get(URL)
        assert questions == ["check"]
    clock.advance(0.02)
    questions.clear()
    one.get(URL)
    assert questions == ["states", "check"]  # 100 ms later


class Counting(MemoryStore):
    """A store of this process that counts what it is asked."""

    def check(self, plan):
        self.questions.append("check")
        return super().check(plan)

    def states(self, plan):
        self.questions.append("states")
        return super().states(plan)


def test_a_store_in_this_process_is_never_asked_for_cooldowns():
    clock = FakeClock()
    store = Counting(clock=clock)
    store.questions = []
    transport = PacedTransport(httpx.MockTransport(lambda _: httpx.Response(200)), limit="100/second", store=store)
    with httpx.Client(transport=transport) as client:
        client.get(URL)
        assert store.questions == ["check"]
        client.get(URL)  # admitted with a delay: still one question
        assert store.questions == ["check", "check"]
        assert clock.now == 0.01

    async def main():
        transport = AsyncPacedTransport(
            httpx.MockTransport(lambda _: httpx.Response(200)), limit="100/second", store=store
        )
        async with httpx.AsyncClient(transport=transport) as client:
            await client.get(URL)

    clock.advance(1)
    store.questions.clear()
    asyncio.run(main())
    assert store.questions == ["check"]


def test_a_request_that_would_wait_too_long_takes_no_place():
    """Its turn is foreseen: a place that is taken and given back would delay others meanwhile."""
    clock = FakeClock()
    store = Counting(clock=clock)
    store.questions = []
    transport = PacedTransport(httpx.MockTransport(lambda _: httpx.Response(200)), limit="1/minute", store=store)
    with httpx.Client(transport=transport) as client:
        client.get(URL)
        store.questions.clear()
        with pytest.raises(PacingTimeout):
            client.get(URL)
    assert store.questions == ["states"]
