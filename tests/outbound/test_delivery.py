"""Pacing and retrying through httpx, with time in the test's hand; the server is a function."""

import asyncio

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratekeeper import LimitExceeded
from ratekeeper.errors import InvalidInput
from ratekeeper.outbound import Retry, TooLate
from ratekeeper.outbound.httpx import AsyncPacedTransport, PacedTransport, PacingTimeout
from ratekeeper.stores import MemoryStore
from ratekeeper.stores.redis.store import RedisStore
from ratekeeper.testing import FakeClock
from tests import tier
from tests.outbound.provider import STEADY, URL, Server, client
from tests.servers import closed_port

fields = st.sampled_from(["Retry-After", "RateLimit", "X-RateLimit-Reset", "X-RateLimit-Remaining", "Date"])


def test_requests_leave_at_a_pace():
    clock = FakeClock()
    server = Server(clock)
    with client(server, clock, limit="2/second") as session:
        for _ in range(4):
            session.get(URL)
        session.get("https://other.example.com/")
    assert server.times == [0.0, 0.5, 1.0, 1.5, 1.5]  # another host has a pace of its own


def test_each_host_and_route_has_its_own_pace():
    clock = FakeClock()
    server = Server(clock)
    limits = {"api.example.com": "10/second", "api.example.com/search": "1/second"}
    with client(server, clock, limit=limits) as session:
        for path in ("/search", "/search/deep", "/searching", "/"):
            session.get(f"https://API.example.com{path}")
        session.get("https://other.example.com/search")
    assert server.times == [0.0, 1.0, 1.1, 1.2, 1.2]


def test_a_key_function_chooses_what_is_counted():
    clock = FakeClock()
    server = Server(clock)
    with client(server, clock, limit="1/second", key=lambda request: request.headers["x-tenant"]) as session:
        for tenant in ("a", "b", "a", "b"):
            session.get(URL, headers={"x-tenant": tenant})
        session.get(URL, headers={"x-tenant": "a"}, extensions={"ratekeeper": {"key": ("tenant", 3)}})
    assert server.times == [0.0, 0.0, 1.0, 1.0, 1.0]


def test_a_function_may_choose_the_limit():
    clock = FakeClock()
    server = Server(clock)
    choose = {"GET": None, "POST": "1/second"}.get
    with client(server, clock, limit=lambda request: choose(request.method)) as session:
        for method in ("POST", "GET", "GET", "POST"):
            session.request(method, URL)
    assert server.times == [0.0, 0.0, 0.0, 1.0]


def test_a_wait_that_is_too_long_is_not_begun():
    clock = FakeClock()
    server = Server(clock)
    with client(server, clock, limit="1/minute", max_wait=30) as session:
        session.get(URL)
        with pytest.raises(PacingTimeout) as caught:
            session.get(URL)
        for kind in (TooLate, LimitExceeded, httpx.TimeoutException):
            assert isinstance(caught.value, kind)
        assert caught.value.retry_after == 60.0
        assert str(caught.value) == (
            "api.example.com: expected a turn in time, but it comes in 60 s. Raise max_wait, or send less."
        )
        assert caught.value.request.url == URL
        assert clock.now == 0.0
        session.get(URL, extensions={"ratekeeper": {"max_wait": 60}})
    assert server.times == [0.0, 60.0]


@pytest.mark.parametrize(
    ("answer", "times"),
    [
        ((429, {"retry-after": "7"}), [0.0, 7.0]),
        ((429, {}), [0.0, 0.0]),
        ((403, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "9"}), [0.0, 9.0]),
        ((403, {"retry-after": "2"}), [0.0, 2.0]),
        ((403, {}), [0.0]),
        ((503, {"retry-after": "3"}), [0.0, 3.0]),
        ((503, {}), [0.0, 0.0]),
        ((500, {"retry-after": "3"}), [0.0]),
        ((404, {}), [0.0]),
        ((429, {"retry-after": "31"}), [0.0]),  # longer than max_wait
        ((429, {"retry-after": "9" * 40}), [0.0]),
        ((429, {"retry-after": "-1"}), [0.0, 0.0]),
        ((429, {"retry-after": "7", "age": "5"}), [0.0, 0.0]),  # a cached response
        (httpx.ConnectError("refused"), [0.0, 0.0]),
        (httpx.ReadTimeout("slow"), [0.0, 0.0]),
    ],
)
def test_which_answers_are_retried_and_when(answer, times):
    clock = FakeClock()
    server = Server(clock, answer)
    with client(server, clock) as session:
        response = session.get(URL)
    assert server.times == times
    assert response.status_code == (200 if len(times) == 2 else answer[0])


@pytest.mark.parametrize(
    ("answer", "plain", "with_key"),
    [
        ((429, {"retry-after": "7"}), 2, 2),  # a refused request was not carried out
        ((503, {"retry-after": "7"}), 1, 2),
        ((502, {}), 1, 2),
        (httpx.ConnectError("refused"), 2, 2),
        (httpx.ReadError("reset"), 1, 2),
    ],
)
def test_a_request_that_may_have_been_carried_out_is_retried_only_if_it_is_idempotent(answer, plain, with_key):
    for headers, count in (({}, plain), ({"idempotency-key": "k1"}, with_key)):
        clock = FakeClock()
        server = Server(clock, answer)
        with client(server, clock) as session:
            if isinstance(answer, Exception) and count == 1:
                with pytest.raises(type(answer)):
                    session.post(URL, json={}, headers=headers)
            else:
                session.post(URL, json={}, headers=headers)
        assert len(server.came) == count


def test_a_body_that_can_be_read_once_is_not_sent_again():
    clock = FakeClock()
    server = Server(clock, (429, {"retry-after": "1"}))
    with client(server, clock) as session:
        assert session.put(URL, content=iter([b"once"])).status_code == 429
        assert session.put(URL, content=b"bytes").status_code == 200
    assert server.times == [0.0, 1.0]  # the second waited for the cooldown of the first


def test_retries_end():
    clock = FakeClock()
    server = Server(clock, *[(429, {"retry-after": "1"})] * 9)
    with client(server, clock, retry=Retry(2, first=0.0)) as session:
        assert session.get(URL).status_code == 429
    assert server.times == [0.0, 1.0, 2.0]
    server = Server(clock, *[httpx.ConnectError("refused")] * 9)
    with client(server, clock, retry=None, max_retries=1) as session, pytest.raises(httpx.ConnectError):
        session.get(URL)
    assert len(server.came) == 2


def test_a_cancelled_request_gives_its_place_back():
    async def main():
        clock = FakeClock(auto=False)
        server = Server(clock)
        transport = AsyncPacedTransport(httpx.MockTransport(server), limit="1/second", clock=clock)
        async with httpx.AsyncClient(transport=transport) as session:
            await session.get(URL)
            tasks = [asyncio.create_task(session.get(URL)) for _ in range(3)]
            for _ in range(20):
                await asyncio.sleep(0)
            tasks[0].cancel()
            for _ in range(20):
                await asyncio.sleep(0)
            clock.advance(2.0)
            for _ in range(50):
                await asyncio.sleep(0)
            clock.advance(1.0)
            await asyncio.gather(*tasks[1:])
        assert len(server.times) == 3

    asyncio.run(main())


class Slow(MemoryStore):
    """A store that takes ``seconds`` to answer a check."""

    seconds = 0.0

    def check(self, plan):
        decisions = super().check(plan)
        self.clock.advance(self.seconds)
        return decisions


def test_a_turn_that_comes_too_late_because_the_store_is_slow_is_given_back():
    clock = FakeClock()
    store = Slow(clock=clock)
    server = Server(clock)
    transport = PacedTransport(httpx.MockTransport(server), limit="6/minute", store=store, max_wait=12)
    with httpx.Client(transport=transport) as session:
        session.get(URL)
        store.seconds = 5.0
        with pytest.raises(PacingTimeout, match="it comes in 10 s"):
            session.get(URL)  # five seconds for the answer, and ten until the turn
        store.seconds = 0.0
        session.get(URL)  # the place that was given back
    assert server.times == [0.0, 10.0]


@pytest.mark.parametrize("limit", ["10/second", "10/second burst 1 gcra", ["10/second", "30/minute burst 8"]])
def test_requests_that_come_at_once_leave_in_order_at_the_pace(limit):
    async def main():
        clock = FakeClock()
        server = Server(clock)
        transport = AsyncPacedTransport(httpx.MockTransport(server), limit=limit, clock=clock)
        async with httpx.AsyncClient(transport=transport) as session:
            await asyncio.gather(*[session.get(f"https://h/{number}") for number in range(12)])
        return server

    server = asyncio.run(main())
    assert [path for _, path in server.came] == [f"/{number}" for number in range(12)]
    gaps = [round(later - sooner, 6) for sooner, later in zip(server.times, server.times[1:], strict=False)]
    assert gaps[:7] == [0.1] * 7
    assert all(gap >= 0.1 for gap in gaps)


def test_priorities_go_first():
    async def main():
        clock = FakeClock()
        server = Server(clock)
        transport = AsyncPacedTransport(httpx.MockTransport(server), limit="1/second", clock=clock)
        async with httpx.AsyncClient(transport=transport) as session:
            await asyncio.gather(
                *[
                    session.get(f"https://h/{number}", extensions={"ratekeeper": {"priority": number // 4}})
                    for number in range(8)
                ]
            )
        order = [path for _, path in server.came]
        # Two have their places already and the third is first in line; then the urgent ones.
        assert order == ["/0", "/1", "/2", "/4", "/5", "/6", "/7", "/3"]

    asyncio.run(main())


def test_without_its_store_a_client_paces_by_itself():
    clock = FakeClock()
    server = Server(clock, (200, {}), (200, {}), (429, {"retry-after": "5"}))
    with closed_port() as port:
        store = RedisStore(f"redis://127.0.0.1:{port}", clock=clock, local_share=1.0)
        transport = PacedTransport(httpx.MockTransport(server), limit="2/second", store=store, retry=STEADY)
        with httpx.Client(transport=transport) as session:
            for _ in range(4):
                session.get(URL)
        store.close()
    assert server.times == [0.0, 0.5, 1.0, 6.0, 6.6595]  # and slower after the refusal


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Retry(-1), "max_retries: expected a whole number from 0, got -1."),
        (lambda: Retry(cap=float("nan")), "cap: expected seconds from 0 to 86,400, got nan."),
        (lambda: PacedTransport(max_wait=-1), "max_wait: expected seconds of at least 0, got -1."),
        (lambda: PacedTransport(key="x"), "key: expected a function of the request, got 'x'."),
        (lambda: PacedTransport(limit={"/x": "1/s"}), "limit: expected a host, or a host and a path, got '/x'."),
    ],
)
def test_mistakes_raise_at_once(make, message):
    with pytest.raises(InvalidInput) as caught:
        make()
    assert str(caught.value) == message


anything = st.text(st.characters(codec="latin-1", exclude_categories=["Cc"]), max_size=12)


@given(st.lists(fields, max_size=5), st.lists(anything, min_size=5, max_size=5))
@settings(max_examples=tier.examples(60), deadline=None)
def test_no_server_can_stall_a_client(names, values):
    clock = FakeClock()
    headers = [(name.encode(), value.encode("latin-1")) for name, value in zip(names, values, strict=False)]

    def server(request):
        return httpx.Response(429, headers=headers)

    with client(server, clock, retry=None) as session:
        assert session.get(URL).status_code == 429
    assert clock.now <= 30.0
