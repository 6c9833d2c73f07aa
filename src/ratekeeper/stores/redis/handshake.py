"""The first commands on a connection: authenticate, choose the database, load the script, look at the server.

No I/O: says what to send, and reads the replies.
"""

from __future__ import annotations

from ratekeeper.errors import StoreUnavailable
from ratekeeper.stores.redis.batch import log
from ratekeeper.stores.redis.resp import BrokenReply, ErrorReply, encode_command

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ratekeeper.stores.redis.script import Script
    from ratekeeper.stores.redis.url import RedisSettings


class Handshake:
    """The first commands on a connection: ``while words: judge(replies to payload)``.

    The script itself is sent only to a server that lacks it, after all other commands succeeded: servers accept no long
    argument before a client has authenticated, and hang up without an error.
    """

    def __init__(self, settings: RedisSettings, script: Script) -> None:
        self.settings = settings
        self.words: list[tuple[list[bytes], bool]] = []  # each command, and whether an error reply to it matters
        if settings.password:
            self.words.append((authentication(settings.username, settings.password), True))
        if settings.db:
            self.words.append(([b"SELECT", b"%d" % settings.db], True))
        if settings.client_name:
            self.words.append(([b"CLIENT", b"SETNAME", settings.client_name.encode()], False))
        self.words.append(([b"INFO"], False))
        # The script, with arguments that do nothing: a server that answers PING may still be unable to run scripts.
        trial = ([b"EVALSHA", script.sha, b"0", *script.nothing], True)
        self.words.append(trial)
        self.trial = encode_command(*trial[0])
        self.loading = [([b"SCRIPT", b"LOAD", script.text], False), trial]

    @property
    def payload(self) -> bytes:
        return b"".join([encode_command(*words) for words, _ in self.words])

    def judge(self, replies: Sequence[Any]) -> None:
        """Raise StoreUnavailable if the server cannot serve us; warn if it may evict keys."""
        said, self.words = self.words, []
        for (words, matters), reply in zip(said, replies, strict=True):
            if isinstance(reply, ErrorReply):
                if str(reply).startswith("NOSCRIPT"):  # if it cannot be loaded, each command sends it
                    self.words, self.loading = self.loading, []
                elif matters:
                    raise StoreUnavailable(self.settings.shown, f"refused {words[0].decode()}: {reply}")
            elif words[0] == b"INFO":
                if not isinstance(reply, bytes):
                    raise BrokenReply("answered something else than was asked")
                facts = dict(line.partition(":")[::2] for line in reply.decode("utf-8", "replace").split("\r\n"))
                if facts.get("role") == "slave" and facts.get("slave_read_only") != "0":
                    # A replica runs scripts that write nothing, so a probe would succeed.
                    raise StoreUnavailable(self.settings.shown, "is a replica, and answers READONLY to what writes")
                warn_of_eviction(facts, self.settings.shown)
                if facts.get("run_id"):
                    runs[self.settings.shown] = facts["run_id"]


class Question:
    """One command on a connection of its own: to sentinels, and for the map of a cluster."""

    def __init__(self, settings: RedisSettings, words: tuple[bytes, ...]) -> None:
        self.settings = settings
        self.words = words
        user, password = settings.username, settings.password
        if settings.service:
            user, password = settings.sentinel_username, settings.sentinel_password
        self.payload, self.replies = encode_command(*words), 1
        if password:
            self.payload, self.replies = encode_command(*authentication(user, password)) + self.payload, 2

    def answer(self, replies: Sequence[Any]) -> Any:
        """The reply to the command, or StoreUnavailable."""
        reply = replies[-1]
        if isinstance(reply, ErrorReply):
            raise StoreUnavailable(self.settings.shown, f"refused {self.words[0].decode()}: {reply}")
        return reply


def too_slow(settings: RedisSettings) -> str:
    return f"answers, but not within {settings.deadline * 1000:g} ms"


def authentication(user: str, password: str) -> list[bytes]:
    return [b"AUTH", *([user.encode()] if user else []), password.encode()]


LONGEST_POLICY = 20  # letters; what is longer is none that a server has
warned: set[str] = set()
runs: dict[str, str] = {}  # the latest run of each server, by the URL of its store


def warn_of_eviction(facts: dict[str, str], store: str) -> None:
    policy = facts.get("maxmemory_policy", "noeviction")
    if len(policy) > LONGEST_POLICY or not policy.isprintable():
        policy = "an unknown one"
    if policy != "noeviction" and facts.get("maxmemory", "0") != "0" and store not in warned:
        warned.add(store)
        log.warning(
            "%s: expected maxmemory-policy noeviction, got %s. A full server will forget which clients are at the "
            "limit; set noeviction, or give limits a server of their own.",
            store,
            policy,
        )
