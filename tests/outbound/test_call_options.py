"""Options of a block reach the requests of libraries that know nothing of them."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from requests.adapters import BaseAdapter

from ratekeeper.errors import InvalidInput
from ratekeeper.outbound import call_options
from ratekeeper.outbound.call_options import current_options
from ratekeeper.outbound.requests import PacedAdapter
from ratekeeper.testing import FakeClock
from tests.outbound.provider import URL, Server, client


class Inner(BaseAdapter):
    def send(self, request, **options):
        response = requests.Response()
        response.status_code, response._content = 200, b""
        return response

    def close(self):
        pass


def test_a_block_adds_to_the_outer_one_and_ends():
    with call_options(priority=1, tenant="a"):
        with call_options(priority=2):
            assert current_options() == {"priority": 2, "tenant": "a"}
        assert current_options() == {"priority": 1, "tenant": "a"}
    assert current_options() == {}


def test_tasks_inherit_and_other_threads_do_not():
    async def look():
        return dict(current_options())

    async def main():
        with call_options(priority=3):
            return await asyncio.gather(look(), asyncio.to_thread(current_options))

    assert asyncio.run(main()) == [{"priority": 3}] * 2
    with call_options(priority=3), ThreadPoolExecutor() as pool:
        assert pool.submit(current_options).result() == {}


def test_a_request_obeys_and_its_own_options_win():
    clock = FakeClock()
    server = Server(clock)
    with client(server, clock, limit="1/second", key=lambda request: "all") as http:
        with call_options(key="block"):
            http.get(URL)
            http.get(URL)
            assert clock.now == 1.0
            http.get(URL, extensions={"ratekeeper": {"key": "request"}})
        http.get(URL)
        assert clock.now == 1.0


def test_requests_of_other_libraries_obey_too():
    clock = FakeClock()
    adapter = PacedAdapter(Inner(), limit="1/second", clock=clock)
    with requests.Session() as session:
        session.mount("https://", adapter)
        for tenant in "ab":
            with call_options(key=tenant):
                session.get(URL)
        assert clock.now == 0.0


def test_an_unknown_option():
    with pytest.raises(InvalidInput) as caught, call_options(priorty=3):
        pass
    message = "call_options: expected priority, max_wait, key, tenant, got 'priorty'. Did you mean 'priority'?"
    assert str(caught.value) == message
