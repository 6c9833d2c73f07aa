"""Commands of Redis clients: the same replies whether they arrive at once or in pieces, in the cache or not."""

from __future__ import annotations

from functools import cache
from typing import Any

from fuzz.choices import Choices, segments
from fuzz.listeners import made, talk
from ratekeeper.rules.policy import Policy
from ratekeeper.service.decider import Decider
from ratekeeper.service.options import Bounds, Options
from ratekeeper.service.resp import RespListener
from ratekeeper.testing import FakeClock

BOUNDS = Bounds(body=400, words=12, pipelined=8, names=8)
RULES: dict[str, Any] = {"rules": [], "store": "memory://?max_keys=300"}


class NoCache(dict[Any, Any]):
    """Forgets everything."""

    def __setitem__(self, name: Any, value: Any) -> None:
        pass


@cache
def service(token: str | None, is_cached: bool) -> RespListener:
    def make() -> RespListener:
        policy = Policy.parse(RULES, clock=FakeClock())
        listener = RespListener(Decider(policy, Options(token=token, bounds=BOUNDS)), BOUNDS)
        if not is_cached:
            listener.throttle_terms, listener.check_terms = NoCache(), NoCache()
        return listener

    listener: RespListener = made(make)
    return listener


def forget(decider: Any) -> None:
    """As if the service had just begun."""
    decider.policy.async_store.clear()
    decider.limits.by_name.clear()
    decider.limits.budget.clear()
    decider.clear_caches()


def replies(token: str | None, is_cached: bool, parts: Any) -> bytes:
    listener = service(token, is_cached)
    forget(listener.decider)
    sent, connection = talk(listener, parts)
    assert not sum(listener.decider.counters.faults.values()), "a command failed"
    return sent.replace(b":%d\r\n" % (id(connection) % 2**31), b":ID\r\n")


def check(data: bytes) -> None:
    choices = Choices(data)
    token = "secret" if choices.number() % 4 == 3 else None
    cuts, stream = choices.piece(8), choices.rest()
    at_once = replies(token, True, [stream])
    assert replies(token, True, segments(stream, cuts)) == at_once, "a command is read otherwise in parts"
    assert replies(token, False, [stream]) == at_once, "a command is read otherwise when it is in the cache"
