"""Keys: two keys share a counter exactly if they are the same key, in Python and in the C core alike."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from fuzz.choices import Choices
from ratekeeper import Limiter, MemoryStore
from ratekeeper.errors import InvalidKey
from ratekeeper.keys import encode, wire
from ratekeeper.stores.memory import MemoryStore as PureStore
from ratekeeper.testing import FakeClock

STORES = (MemoryStore, PureStore)


def key_of(choices: Choices, depth: int = 0) -> Any:
    kind = choices.number() % (6 if depth < 4 else 4)
    if kind == 0:
        return choices.text(255)
    if kind == 1:
        return choices.piece(255)
    if kind == 2:
        return choices.number(choices.number() % 12) - choices.number(8)
    if kind == 3:
        return UUID(bytes=choices.take(16).ljust(16, b"\0"))
    return tuple([key_of(choices, depth + 1) for _ in range(choices.number() % 5)])


def identical(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(identical, one, other))
    return bool(one == other)


def encoded(key: Any) -> bytes | None:
    try:
        return wire(encode(key))
    except InvalidKey:
        assert key in ("", b"", ()), key
        return None


def check(data: bytes) -> None:
    choices = Choices(data)
    one, other = key_of(choices), key_of(choices)
    first, second = encoded(one), encoded(other)
    if first is None or second is None:
        return
    assert len(first) <= 4 * 256 + 1
    same = identical(one, other)
    assert (first == second) == same, (one, other)
    for store in STORES:
        limiter = Limiter("1/day", store=store(max_keys=100, clock=FakeClock()))
        assert limiter.check(one)
        assert limiter.check(other).allowed != same, (store, one, other)
        limiter.close()
