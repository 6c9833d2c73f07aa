"""HTTP requests: the same answers whether they arrive at once, in pieces, or for the second time."""

from __future__ import annotations

from fuzz.choices import Choices, segments
from fuzz.listeners import made, talk
from ratekeeper.service.http.response import response
from ratekeeper.service.http.server import Call, HttpListener
from ratekeeper.service.options import Bounds

BOUNDS = Bounds(head=600, body=400, pipelined=8)


def echo(call: Call) -> bytes:
    """An answer that says how a call was read."""
    facts = [call.method, call.path, call.query, *[f"{name!r}={value!r}" for name, value in call.headers]]
    return response(200, "\n".join([*facts, call.body.hex()]).encode("latin-1"))


def check(data: bytes) -> None:
    choices = Choices(data)
    cuts, stream = choices.piece(8), choices.rest()
    listener = made(lambda: HttpListener(echo, BOUNDS))
    first, _ = talk(listener, [stream])
    again, _ = talk(listener, [stream])
    in_parts, _ = talk(made(lambda: HttpListener(echo, BOUNDS)), segments(stream, cuts))
    assert again == first, "a request is read otherwise when its head is in the cache"
    assert in_parts == first, "a request is read otherwise when it arrives in parts"
    assert not sum(listener.faults.counts.values()), "a call failed"
