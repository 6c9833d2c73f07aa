"""requests against a real server that enforces a limit."""

import io

import pytest
import requests

from ratekeeper.outbound import TooLate
from ratekeeper.outbound.requests import PacedAdapter
from ratekeeper.outbound.requests import PacingTimeout as RequestsTimeout
from tests.outbound.enforcing import STEADY, EmptyQuota, Enforcing
from tests.outbound.web import serving


def test_requests():
    server = Enforcing()
    with serving(server) as url, requests.Session() as session:
        adapter = PacedAdapter(limit="2/second", clock=server.clock, retry=STEADY)
        session.mount("http://", adapter)
        for _ in range(6):
            assert session.get(url).status_code == 200
        assert (server.clock.now, server.statuses) == (2.5, [200] * 6)
        adapter.options = {"max_wait": 0}
        with pytest.raises(RequestsTimeout) as caught:
            session.get(url)
        assert isinstance(caught.value, TooLate)
        assert isinstance(caught.value, requests.exceptions.Timeout)


def test_requests_sends_a_file_again_from_where_it_stood_but_not_an_iterator():
    server = Enforcing("1/second")
    with serving(server) as url, requests.Session() as session:
        session.mount("http://", PacedAdapter(clock=server.clock, retry=STEADY))
        file = io.BytesIO(b"skipped, sent")
        file.seek(9)
        assert session.put(url).status_code == 200
        assert session.put(url, data=file).content == b"sent"
        assert session.put(url, data=iter([b"once"])).status_code == 429
        assert server.seen == [(200, b""), (429, b"sent"), (200, b"sent"), (429, b"once")]


def test_retry_after_decides_where_a_response_has_a_reset_too():
    server = EmptyQuota()
    with serving(server) as url, requests.Session() as session:
        session.mount("http://", PacedAdapter(clock=server.clock, retry=STEADY, max_wait=8))
        assert session.get(url).status_code == 200
    assert server.times == [0.0, 1.0]
