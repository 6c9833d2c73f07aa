"""HTTP responses as bytes."""

import json

from ratekeeper.service.http.response import HEADS, TEXT, as_json, problem, response


def parsed(data):
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return first, dict(line.split(": ", 1) for line in lines), body


def test_a_response_has_a_length_a_date_and_its_own_fields():
    first, fields, body = parsed(response(200, b"hello", TEXT, [(b"x-one", b"1")]))
    assert (first, body) == ("HTTP/1.1 200 OK", b"hello")
    assert fields.pop("date").endswith(" GMT")
    assert fields == {
        "server": "ratekeeper",
        "content-type": "text/plain; charset=utf-8",
        "x-content-type-options": "nosniff",
        "cache-control": "no-store",
        "content-length": "5",
        "x-one": "1",
    }


def test_heads_are_built_once_a_second():
    HEADS.tick()
    response(200, b"", TEXT)
    head = HEADS.cached[200, TEXT]
    response(200, b"other", TEXT)
    assert HEADS.cached[200, TEXT] is head
    HEADS.tick()
    assert HEADS.cached == {}


def test_an_error_is_a_problem_document():
    first, fields, body = parsed(problem(404, "no such path", [(b"allow", b"GET")], path="/x"))
    assert (first, fields["content-type"], fields["allow"]) == (
        "HTTP/1.1 404 Not Found", "application/problem+json", "GET",
    )  # fmt: skip
    assert json.loads(body) == {
        "type": "about:blank", "title": "Not Found", "status": 404, "detail": "no such path", "path": "/x",
    }  # fmt: skip


def test_json_is_short_and_in_utf_8():
    assert as_json({"a": [1, "é"]}) == '{"a":[1,"é"]}'.encode()
