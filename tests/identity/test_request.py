"""The facts of one request: what is taken from it, and what is refused."""

import pytest

from ratekeeper import InvalidInput, Request


@pytest.mark.parametrize(
    "facts",
    [{"method": None}, {"path": None}, {"peer": 5}, {"headers": None}, {"headers": {"a": 5}}, {"headers": "ab"}],
)
def test_a_request_of_something_else_is_refused_and_shows_no_secret(facts):
    with pytest.raises(InvalidInput, match=r"^request: expected "):
        Request(**{"peer": "192.0.2.1", **facts})


@pytest.mark.parametrize(
    ("facts", "host"),
    [
        ({"headers": {"Host": "Api.Example.:443"}}, "api.example"),
        ({"headers": {"Host": "[2001:DB8::1]:8080"}}, "[2001:db8::1]"),
        ({"path": "http://api.example:80/search"}, "api.example"),
        ({"headers": {"Host": "one"}, "host": "two"}, "two"),
        ({"headers": [("Host", "one"), ("Host", "two")]}, ""),
        ({}, ""),
    ],
)
def test_a_host_has_neither_port_nor_capitals_nor_a_final_dot(facts, host):
    assert Request(**facts).host == host


def test_a_header_that_may_come_once_is_unknown_if_it_comes_twice():
    request = Request(headers=[("X-Plan", "free"), ("X-Plan", "paid"), ("X-User", " ann "), ("X-Empty", "")])
    assert request.values(b"x-plan") == ["free", "paid"]
    assert [request.value(name) for name in (b"x-plan", b"x-user", b"x-empty", b"x_user")] == [None, "ann", None, None]


@pytest.mark.parametrize(("text", "length"), [("12", 12), ("-1", None), ("1e3", None), ("٣", None), ("9" * 16, None)])
def test_the_length_of_a_body_is_a_plain_number(text, length):
    assert Request(headers={"Content-Length": text}).length == length
    assert Request(headers={"Content-Length": text}, size=7).length == 7


def test_a_path_is_cut_at_its_query_unless_a_server_has_decoded_it():
    assert (Request(path="/a?b=1").path, Request(path="/a?b=1").query) == ("/a", b"b=1")
    assert Request(path="/a?b=1", decoded=True).path == "/a?b=1"


def test_a_request_shows_neither_peer_nor_headers():
    assert repr(Request("GET", "/a", "192.0.2.1", {"Authorization": "secret"})) == "Request('GET', '/a')"
