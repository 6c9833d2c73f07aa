"""Requests on the wire, and what to make of the replies: shared by threads and event loops.  No I/O.

The one rule that keeps a caller from being charged twice: a command is sent again only after a reply that says it was
not executed.  After a lost reply nobody knows, so it is never sent again.
"""

from __future__ import annotations

import logging

from hiredis import ReplyError

from ratekeeper.errors import StoreUnavailable
from ratekeeper.stores.codec import command
from ratekeeper.stores.ledger import bulk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ratekeeper.clock import Clock
    from ratekeeper.stores.codec import AnyRequest
    from ratekeeper.stores.script import Script
    from ratekeeper.stores.settings import Address, Settings

log = logging.getLogger("ratekeeper.store")

MOST_TRIES = 5
PAUSE = 0.002  # seconds before a slot on the move is asked again
LAST = 0.01  # of the deadline that must be left for that: who is sent too late for an answer may have paid for it
ASKING = b"*1\r\n$6\r\nASKING\r\n"

# Replies that say "not executed", and what to do: `elsewhere` another server has the key, `again` soon, `anew` on a
# new connection, `down` the server cannot serve anybody now, `refused` this command only.
TROUBLES = {
    "NOSCRIPT": "evaluate",
    "MOVED": "elsewhere",
    "ASK": "elsewhere",
    "TRYAGAIN": "again",
    "READONLY": "anew",
    "MASTERDOWN": "anew",
    "LOADING": "down",
    "BUSY": "down",
    "CLUSTERDOWN": "down",
    "NOAUTH": "down",
    "WRONGPASS": "down",
    "NOPERM": "down",
    "NOREPLICAS": "refused",
    "MISCONF": "refused",
    "OOM": "refused",
    "CROSSSLOT": "refused",
}


class Flight:
    """One command on its way, with the requests it carries."""

    __slots__ = ("asking", "evaluate", "requests", "sent", "since", "tries")

    def __init__(self, requests: Sequence[AnyRequest], since: float) -> None:
        self.requests = requests
        self.since = since  # when the first of them was made: the deadline runs from there
        self.evaluate = False
        self.asking = False
        self.tries = 0
        self.sent = 0

    def payload(self, script: Script, clock: Clock, gives_time: bool) -> bytes:
        """The command; ``clock`` is asked when it leaves, and rules the decision if it ``gives_time``."""
        self.tries += 1
        self.sent = clock.nanos()
        now = self.sent // 1000 if gives_time else None
        name, word = (b"EVAL", script.text) if self.evaluate else (b"EVALSHA", script.sha)
        return (ASKING if self.asking else b"") + command(self.requests, name, word, now)

    def land(self, reply: Any, name: str) -> bool:
        """Hand each request its part of the reply; False if it was no reply to them, so that none after it is."""
        replies = [reply] if len(self.requests) == 1 else reply
        if not isinstance(replies, list) or len(replies) != len(self.requests):
            self.fail(StoreUnavailable(name, "answered something else than was asked", charged=None))
            return False
        understood = True
        sent = self.sent
        for request, part in zip(self.requests, replies, strict=True):
            future = request.future
            if not future.done():  # else cancelled: its answer goes nowhere, and to nobody else
                try:
                    result = request.read(part, sent)
                except Exception as error:
                    understood = False
                    why = f"answered something else than was asked ({error})"
                    future.set_exception(StoreUnavailable(name, why, charged=None))
                else:
                    future.set_result(result)
        return understood

    def fail(self, error: StoreUnavailable) -> None:
        for request in self.requests:
            if not request.future.done():
                request.future.set_exception(error)


def judge(flight: Flight, error: Exception, asked: Address) -> tuple[str, int, Address]:
    """What to do after an error reply: a word of TROUBLES, or ``unknown``; for ``elsewhere`` also slot and address."""
    text = str(error)
    word = text.partition(" ")[0]
    action = TROUBLES.get(word, "unknown")
    slot, place = -1, asked
    flight.asking = False
    if action == "again":
        flight.tries = 0  # a slot on the move: until the deadline, and wherever that leads
    elif action == "evaluate":
        flight.evaluate = True
    elif action == "elsewhere":
        _, index, target = text.split(" ")[:3]
        host, _, port = target.rpartition(":")
        slot, place = int(index), (host or asked[0], int(port))  # an empty host is the one that was asked
        flight.asking = word == "ASK"
    if flight.tries >= MOST_TRIES and action in ("evaluate", "elsewhere", "anew"):
        action = "down" if action == "anew" else "refused"
    return action, slot, place


class Handshake:
    """The first words on a connection: ``while words: judge(replies to payload)``.

    The script itself is sent only to a server that says it lacks it, after all else was well: before a client has named
    itself servers take no long word, and hang up instead of saying why.
    """

    def __init__(self, settings: Settings, script: Script) -> None:
        self.settings = settings
        self.words: list[tuple[list[bytes], bool]] = []  # and whether a refusal matters
        if settings.password:
            user = [settings.username.encode()] if settings.username else []
            self.words.append(([b"AUTH", *user, settings.password.encode()], True))
        if settings.db:
            self.words.append(([b"SELECT", b"%d" % settings.db], True))
        if settings.client_name:
            self.words.append(([b"CLIENT", b"SETNAME", settings.client_name.encode()], False))
        self.words.append(([b"INFO"], False))
        # The script itself, asked for nothing: a server may answer PING and run no script.
        trial = ([b"EVALSHA", script.sha, b"0", *script.nothing], True)
        self.words.append(trial)
        self.loading = [([b"SCRIPT", b"LOAD", script.text], False), trial]

    @property
    def payload(self) -> bytes:
        return b"".join([spoken(*words) for words, _ in self.words])

    def judge(self, replies: Sequence[Any]) -> None:
        """Raise StoreUnavailable if the server will not serve us; warn if it will forget."""
        said, self.words = self.words, []
        for (words, matters), reply in zip(said, replies, strict=True):
            if isinstance(reply, ReplyError):
                if str(reply).startswith("NOSCRIPT"):  # if it cannot be loaded either, each command brings it along
                    self.words, self.loading = self.loading, []
                elif matters:
                    raise StoreUnavailable(self.settings.shown, f"refused {words[0].decode()}: {reply}")
            elif words[0] == b"INFO":
                facts = dict(line.partition(":")[::2] for line in reply.decode("utf-8", "replace").split("\r\n"))
                if facts.get("role") == "slave" and facts.get("slave_read_only") != "0":
                    # A script that writes nothing would run there: it must not look well to a probe.
                    raise StoreUnavailable(self.settings.shown, "is a replica, and answers READONLY to what writes")
                warn_of_eviction(facts, self.settings.shown)


def spoken(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join([bulk(word) for word in words])


warned: set[str] = set()


def warn_of_eviction(facts: dict[str, str], store: str) -> None:
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy != "noeviction" and facts.get("maxmemory", "0") != "0" and store not in warned:
        warned.add(store)
        log.warning(
            "%s: expected maxmemory-policy noeviction, got %s. A full server will forget who is at the limit; "
            "set noeviction, or give limits a server of their own.",
            store,
            policy,
        )
