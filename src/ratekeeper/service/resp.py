"""The listener for Redis clients, in any language.

    CL.THROTTLE key max_burst count period [quantity]      replies as redis-cell does
    RK.CHECK key limit [COST n] [NAME name] [PEEK]         allowed, limit, remaining, retry_after, reset_after, delay
    RK.RESET key limit [NAME name]                         forgets what the key has used of a limit
    DEL key ..., TTL key                                   the same for what CL.THROTTLE counts, and when it recovers

``RK.CHECK`` replies with times in microseconds, and -1 for a retry that can never pass.  A ``quantity`` of 0 and
``PEEK`` take nothing.  A command decides at once, so a transaction cannot hold one: between ``MULTI`` and ``EXEC``
every command is refused, and nothing is charged.
"""

from __future__ import annotations

import re
from functools import partial
from heapq import nlargest
from hmac import compare_digest
from math import ceil
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from ratekeeper.check import Check, to_cost
from ratekeeper.errors import InvalidInput, RatekeeperError, StoreUnavailable, shown
from ratekeeper.keys import encode
from ratekeeper.limit import Limit
from ratekeeper.service.command_parser import CommandParser, ProtocolError
from ratekeeper.service.connection import ClientConnection, PendingDecision, PendingResponse
from ratekeeper.service.listener import Listener
from ratekeeper.service.table_budget import NoRoom
from ratekeeper.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratekeeper.decision import Decision
    from ratekeeper.service.decider import Decider
    from ratekeeper.service.named_limits import NamedLimit
    from ratekeeper.service.options import Bounds

    AnyReply = bytes | PendingResponse
    Words = list[bytes]
    # What a command asks beside its key: the limit's table, the cost, the reply, and the first line of its array.
    Terms = tuple[Any, int, Callable[[bytes, Decision], bytes], int]

SPACE = "CL.THROTTLE"
MOST_REPORTED = 64  # the most refused keys of a second
MOST_REFUSED = 4096  # different refused keys that are counted apart before they are reported
MOST_TERMS = 1024
LONGEST_END = 256  # bytes of cached words
OK = b"+OK\r\n"
REFUSED_IN_TRANSACTION = (
    b"-ERR %b: expected no MULTI before it, as each command decides at once and cannot be undone. "
    b"Send it without a transaction; nothing was charged.\r\n"
)
BUSY = b"-TRYAGAIN the service is at capacity\r\n"
DIGITS = re.compile(rb"\d{1,15}")
# Before a client has authenticated, as in Redis: enough for AUTH and HELLO.
UNKNOWN_CLIENT_BYTES = 16_384
UNKNOWN_CLIENT_WORDS = 10

# The hot path recognises commands by their bytes.  A command that came before, with any key, is: a beginning from this
# list, the length of the key, the key, and an end that is in the cache.
THROTTLE_STARTS = tuple(
    [b"*%d\r\n$11\r\n%b\r\n$" % (count, name) for count in (5, 6) for name in (b"CL.THROTTLE", b"cl.throttle")]
)
CHECK_STARTS = tuple(
    [b"*%d\r\n$8\r\n%b\r\n$" % (count, name) for count in (3, 5, 7) for name in (b"RK.CHECK", b"rk.check")]
)
THROTTLE_START, CHECK_START = len(THROTTLE_STARTS[0]), len(CHECK_STARTS[0])
KEY_LENGTHS = {b"%d\r\n" % length: length for length in range(1, 100)}


class RespConnection(ClientConnection):
    """One Redis client."""

    listener: RespListener

    def __init__(self, listener: RespListener) -> None:
        super().__init__(listener)
        self.parser = CommandParser(listener.bounds.body, listener.bounds.words)
        self.is_authenticated = listener.token is None
        if not self.is_authenticated:
            self.parser.most_bytes = min(UNKNOWN_CLIENT_BYTES, listener.bounds.body)
            self.parser.most_words = UNKNOWN_CLIENT_WORDS
        self.version = 2
        self.is_in_transaction = False

    def busy_response(self) -> bytes:
        return b"-ERR max number of clients reached\r\n"

    def receive(self, part: bytes) -> None:
        listener, parser = self.listener, self.parser
        if parser.at >= len(parser.buffer):
            parser.buffer, parser.at = part, 0
        else:
            parser.feed(part)
        has_command = True
        try:
            has_command = self.execute_all(parser)
        except ProtocolError as error:
            self.refuse(str(error))
        if parser.at >= len(parser.buffer) and not parser.count:  # between two commands
            if not self.is_ending:
                self.is_receiving = False
            self.active_at = listener.loop.time()
            if self.held:
                listener.hold(self, 0)
        elif not self.is_ending:
            if has_command or not self.is_receiving:
                self.active_at = listener.loop.time()  # the present command began with this read
            self.is_receiving = True
            listener.hold(self, parser.held)
        if self.queue and listener.waiting > listener.bounds.waiting:
            self.pause_reading()
        self.flush()

    def execute_all(self, parser: CommandParser) -> bool:
        """Execute every complete command; says whether there was one."""
        listener, queue, append = self.listener, self.queue, self.ready.append
        refused, lengths = listener.refused, KEY_LENGTHS
        buffer, at = parser.buffer, parser.at
        find, startswith = buffer.find, buffer.startswith
        is_between = self.is_authenticated and not self.is_in_transaction and not parser.count
        end, terms, last_cached = b"", None, None  # of the last command: the next is often the same
        allowed, size = 0, len(buffer)
        has_command = False
        try:
            while at < size:
                # The hot path: a command that came before, and a decision without asking the store.
                cached = None
                if is_between:
                    if startswith(THROTTLE_STARTS, at):
                        key_at, cached = at + THROTTLE_START, listener.throttle_terms
                    elif startswith(CHECK_STARTS, at):
                        key_at, cached = at + CHECK_START, listener.check_terms
                if cached:
                    digits = 4  # with the line end: most keys have 10 to 99 bytes
                    length = lengths.get(buffer[key_at : key_at + 4])
                    if length is None:
                        digits = 3
                        length = lengths.get(buffer[key_at : key_at + 3], 0)
                    key_at += digits
                    key_end = key_at + length
                    if cached is last_cached and startswith(end, key_end):
                        next_at = key_end + len(end)
                    else:
                        next_at = find(b"\r\n*", key_end) + 2
                        if next_at == 1:
                            next_at = size
                        end = buffer[key_end:next_at]
                        terms = cached.get(end)
                        last_cached = cached if terms else None
                    if terms and length and terms[3] == buffer[at + 1]:
                        at = next_at
                        parser.has_sent_array = has_command = True
                        word = buffer[key_at:key_end]
                        try:
                            key: str | bytes = word.decode()
                        except UnicodeDecodeError:
                            key = word
                        try:
                            table, cost, encode_reply, _ = terms
                            decision = table.check_now(key, cost)
                            if decision is None:
                                self.decide_later(word, terms)
                                continue
                            if decision.reason:
                                listener.decider.note_fallback(decision)
                            if encode_reply is throttle_reply:
                                if decision.allowed:
                                    allowed += 1
                                else:
                                    refused[word] = refused.get(word, 0) + 1
                            reply = encode_reply(word, decision)
                        except Exception as error:
                            reply = listener.error_reply(error)
                        if queue:
                            queue.append(reply)
                        else:
                            append(reply)
                        continue
                parser.at = at
                words = parser.next_command()
                at = parser.at
                if words is None:
                    break
                has_command = True
                self.reply(self.execute_one(words))
                if self.is_ending:
                    break
                is_between = self.is_authenticated and not self.is_in_transaction
            parser.at = at
        finally:
            listener.allowed += allowed
            if len(refused) > MOST_REFUSED:
                listener.report()
        return has_command

    def decide_later(self, word: bytes, terms: Terms) -> None:
        """Reply when the store has answered."""
        listener = self.listener
        if listener.waiting >= 2 * listener.bounds.waiting:
            listener.turned_away[listener.name] += 1
            self.respond(BUSY)
            return
        table, cost, encode_reply, _ = terms
        finish = partial(listener.finish, encode_reply, word)
        self.respond_later(PendingDecision(table, text_of(word), cost, finish, listener.error_reply))

    def execute_one(self, words: Words) -> AnyReply:
        """Execute a command that is not in the cache."""
        name = words[0].upper()
        try:
            if self.parser.is_typed and name not in COMMANDS and name not in LIMIT_COMMANDS:
                # Another protocol: a browser that was led here sends POST and Host:, and then what a page chose.
                raise ProtocolError(f"expected a Redis client, got {shown(words[0].decode('latin-1')[:16])}")
            if not self.is_authenticated and name not in (b"AUTH", b"HELLO", b"QUIT"):
                return b"-NOAUTH Authentication required.\r\n"
            if self.is_in_transaction and name not in (b"MULTI", b"EXEC", b"DISCARD", b"RESET", b"QUIT"):
                return REFUSED_IN_TRANSACTION % one_line(name.decode("latin-1")[:64])
            command = COMMANDS.get(name)
            if command is not None:
                return command(self, words)
            if name in LIMIT_COMMANDS:
                if self.listener.waiting >= 2 * self.listener.bounds.waiting:
                    self.listener.turned_away[self.listener.name] += 1
                    return BUSY
                return LIMIT_COMMANDS[name](self.listener, words)
            return b"-ERR unknown command '%b'\r\n" % one_line(name.decode("latin-1")[:64])
        except ProtocolError:
            raise
        except Exception as error:
            return self.listener.error_reply(error)

    def reply(self, reply: AnyReply) -> None:
        if isinstance(reply, bytes):
            self.respond(reply)
        else:
            self.respond_later(reply)

    def refuse(self, why: str) -> None:
        """Reply with a protocol error and hang up: the bytes that follow cannot be parsed."""
        self.is_ending = self.is_receiving = True
        self.respond(b"-ERR Protocol error: %b\r\n" % why.encode())
        self.flush()

    def forget_request(self) -> None:
        self.parser = CommandParser(0, 0)

    def refuse_for_room(self) -> None:
        self.refuse("expected the rest of the command sooner, as the service is at capacity")

    def authorise(self, password: bytes) -> bytes:
        token = self.listener.token
        if token is None:
            return b"-ERR AUTH called without any password configured. Are you sure your configuration is correct?\r\n"
        if not compare_digest(password, token.encode()):
            return b"-WRONGPASS invalid username-password pair or user is disabled.\r\n"
        self.is_authenticated = True
        self.parser.most_bytes, self.parser.most_words = self.listener.bounds.body, self.listener.bounds.words
        return OK

    def auth(self, words: Words) -> bytes:
        if len(words) not in (2, 3):
            return wrong_number(words)
        return self.authorise(words[-1])

    def hello(self, words: Words) -> bytes:
        index, version = 2, self.version
        if len(words) > 1:
            if words[1] not in (b"2", b"3"):
                return b"-NOPROTO unsupported protocol version\r\n"
            version = int(words[1])
        while index < len(words):
            option = words[index].upper()
            if option == b"AUTH" and index + 2 < len(words):
                reply = self.authorise(words[index + 2])
                if reply is not OK:
                    return reply
                index += 3
            elif option == b"SETNAME" and index + 1 < len(words):
                index += 2
            else:
                return b"-ERR Syntax error in HELLO\r\n"
        if not self.is_authenticated:
            return b"-NOAUTH HELLO must be called with the client already authenticated\r\n"
        self.version = version
        pairs = [(b"server", b"ratekeeper"), (b"version", b"7.0.0"), (b"proto", version), (b"id", id(self) % 2**31),
                 (b"mode", b"standalone"), (b"role", b"master"), (b"modules", [])]  # fmt: skip
        head = b"%%%d\r\n" % len(pairs) if version == 3 else b"*%d\r\n" % (2 * len(pairs))
        return head + b"".join([encoded(name) + encoded(value) for name, value in pairs])

    def ping(self, words: Words) -> bytes:
        return b"+PONG\r\n" if len(words) == 1 else encoded(words[1])

    def echo(self, words: Words) -> bytes:
        return encoded(words[1]) if len(words) == 2 else wrong_number(words)

    def quit(self, words: Words) -> bytes:
        self.is_ending = True
        return OK

    def accept(self, words: Words) -> bytes:
        return OK

    def reset_connection(self, words: Words) -> bytes:
        self.is_in_transaction = False
        return b"+RESET\r\n"

    def multi(self, words: Words) -> bytes:
        """Begin a transaction: clients then wait for the end of it, whatever becomes of the commands inside."""
        if self.is_in_transaction:
            return b"-ERR MULTI calls can not be nested\r\n"
        self.is_in_transaction = True
        return OK

    def exec(self, words: Words) -> bytes:
        if not self.is_in_transaction:
            return b"-ERR EXEC without MULTI\r\n"
        self.is_in_transaction = False
        return b"-EXECABORT Transaction discarded because of previous errors: nothing was charged.\r\n"

    def discard(self, words: Words) -> bytes:
        if not self.is_in_transaction:
            return b"-ERR DISCARD without MULTI\r\n"
        self.is_in_transaction = False
        return OK

    def client(self, words: Words) -> bytes:
        second = words[1].upper() if len(words) > 1 else b""
        return b":%d\r\n" % (id(self) % 2**31) if second == b"ID" else OK

    def config(self, words: Words) -> bytes:
        """Reply to ``CONFIG GET``, which tools send first, that nothing is configured."""
        return encoded([words[2], b""]) if len(words) > 2 else encoded([])

    def empty(self, words: Words) -> bytes:
        return encoded([])

    def info(self, words: Words) -> bytes:
        return encoded(b"# Server\r\nredis_version:7.0.0\r\nredis_mode:standalone\r\nserver:ratekeeper\r\n")


COMMANDS: dict[bytes, Callable[[RespConnection, Words], bytes]] = {
    b"AUTH": RespConnection.auth,
    b"HELLO": RespConnection.hello,
    b"PING": RespConnection.ping,
    b"ECHO": RespConnection.echo,
    b"QUIT": RespConnection.quit,
    b"SELECT": RespConnection.accept,
    b"RESET": RespConnection.reset_connection,
    b"MULTI": RespConnection.multi,
    b"EXEC": RespConnection.exec,
    b"DISCARD": RespConnection.discard,
    b"CLIENT": RespConnection.client,
    b"COMMAND": RespConnection.empty,
    b"CONFIG": RespConnection.config,
    b"INFO": RespConnection.info,
}


class RespListener(Listener):
    """The Redis protocol, versions 2 and 3."""

    name = "resp"
    connection_class = RespConnection

    def __init__(self, decider: Decider, bounds: Bounds) -> None:
        super().__init__(bounds, decider.counters.turned_away, decider.faults)
        self.idle_for = bounds.resp_idle_for or float("inf")
        self.decider = decider
        self.token = decider.options.token
        # What commands ask, by their bytes behind the key.
        self.throttle_terms: dict[bytes, Terms] = {}
        self.check_terms: dict[bytes, Terms] = {}
        decider.caches += [self.throttle_terms, self.check_terms]
        self.calls = 0
        self.allowed = 0  # on the hot path, since the last report
        self.refused: dict[bytes, int] = {}  # the same, by key

    def sweep(self) -> None:
        self.throttle_terms.clear()  # rules, store or overrides may have changed
        self.check_terms.clear()
        self.report()
        super().sweep()

    def report(self) -> None:
        """Add what was counted on the hot path to the counters."""
        counters = self.decider.counters
        refused = sum(self.refused.values())
        for result, count in (("allowed", self.allowed), ("refused", refused)):
            if count:
                counters.bump(SPACE, result, count)
        counters.calls["resp"] = counters.calls.get("resp", 0) + self.calls + self.allowed + refused
        for key, count in nlargest(MOST_REPORTED, self.refused.items(), key=itemgetter(1)):
            self.decider.note_refused(text_of(key), count)
        self.calls = self.allowed = 0
        self.refused.clear()

    def remember(self, cache: dict[bytes, Terms], words: Words, table: Any, cost: int, encode_reply: Any) -> None:
        """Cache what the words behind the key mean."""
        if not self.decider.overrides.is_killed and len(cache) < MOST_TERMS:
            end = b"\r\n" + b"".join([encoded(word) for word in words[2:]])
            if len(end) <= LONGEST_END:
                cache[end] = table, cost, encode_reply, ord("0") + len(words)

    def throttle(self, words: Words) -> AnyReply:
        """CL.THROTTLE, with the reply of redis-cell: whole seconds, rounded up."""
        if len(words) not in (5, 6):
            return wrong_number(words)
        burst, count, period = (whole_number(word) for word in words[2:5])
        quantity = whole_number(words[5]) if len(words) == 6 else 1
        decider, place = self.decider, (SPACE, (burst, count, period), None)
        named = decider.limits.by_name.get(place)
        if named is None:
            named = decider.limits.add(place, SPACE, Limit(count, period, burst=burst + 1))
        named.uses += 1
        self.calls += 1
        check = Check(SPACE, encode(text_of(words[1])), named.limit, quantity or 1)
        if not quantity:
            return self.ask("peek", check, peek_reply)
        self.remember(self.throttle_terms, words, named.table, quantity, throttle_reply)
        return self.ask("check", check, throttle_reply)

    def finish(self, encode_reply: Callable[[bytes, Decision], bytes], word: bytes, decision: Decision) -> bytes:
        """Count a decision of the store, and reply with it."""
        if decision.reason:
            self.decider.note_fallback(decision)
        if encode_reply is throttle_reply:
            if decision.allowed:
                self.allowed += 1
            else:
                self.refused[word] = self.refused.get(word, 0) + 1
        return encode_reply(word, decision)

    def check(self, words: Words) -> AnyReply:
        """RK.CHECK."""
        if len(words) < 3:
            return wrong_number(words)
        cost, name, operation, index = 1, None, "check", 3
        while index < len(words):
            option = words[index].upper()
            if option == b"PEEK":
                operation = "peek"
                index += 1
            elif option == b"COST" and index + 1 < len(words):
                cost = whole_number(words[index + 1])
                index += 2
            elif option == b"NAME" and index + 1 < len(words):
                name = plain_text(words[index + 1], "NAME")
                index += 2
            else:
                raise InvalidInput(
                    f"RK.CHECK: expected COST n, NAME name or PEEK, got {shown(option.decode('latin-1'))}."
                )
        named = self.decider.limits.find(None, plain_text(words[2], "limit"), name)
        check = Check(named.name, encode(text_of(words[1])), named.limit, to_cost(cost))
        self.calls += 1
        if operation == "check":
            self.remember(self.check_terms, words, named.table, cost, partial(self.counted_reply, named))
        return self.ask(operation, check, check_reply)

    def reset(self, words: Words) -> AnyReply:
        """RK.RESET."""
        if len(words) not in (3, 5):
            return wrong_number(words)
        if len(words) == 5 and words[3].upper() != b"NAME":
            raise InvalidInput(f"RK.RESET: expected NAME name, got {shown(words[3].decode('latin-1'))}.")
        name = plain_text(words[4], "NAME") if len(words) == 5 else None
        named = self.decider.limits.find(None, plain_text(words[2], "limit"), name)
        self.calls += 1
        plan = (Check(named.name, encode(text_of(words[1])), named.limit, 1),)
        return self.ask_all("reset", plan, lambda _: OK)

    def throttled(self, word: bytes, command: str) -> tuple[Check, ...]:
        """A check of a key for each of its states: of the limits that CL.THROTTLE was called with since the start."""
        if self.decider.options.workers > 1:
            raise InvalidInput(
                f"{command}: expected a service with one worker, as each knows only the limits of its own callers. "
                f"Use {'RK.RESET key limit' if command == 'DEL' else 'RK.CHECK key limit PEEK'}."
            )
        key = encode(text_of(word))
        # Limits of one layout share the state of a key, as all limits of redis-cell do.
        named = [named.limit for (rule, _, _), named in self.decider.limits.by_name.items() if rule == SPACE]
        return tuple([Check(SPACE, key, limit, 1) for limit in {limit.layout: limit for limit in named}.values()])

    def delete(self, words: Words) -> AnyReply:
        """DEL: how many of the keys had used anything, before they were forgotten."""
        if len(words) < 2:
            return wrong_number(words)
        plans = [self.throttled(word, "DEL") for word in dict.fromkeys(words[1:])]
        whole = tuple([check for plan in plans for check in plan])
        self.calls += 1
        if not whole:
            return b":0\r\n"

        def reply(decisions: tuple[Decision, ...]) -> bytes:
            each = len(plans[0])
            parts = [decisions[at : at + each] for at in range(0, len(decisions), each)]
            return b":%d\r\n" % sum([any(decision.reset_after for decision in part) for part in parts])

        found = self.decider.ask("peek", whole)
        if not hasattr(found, "__await__"):  # at once, as a command of the same pipeline may count on it
            self.decider.ask("reset", whole)
            return reply(found)

        async def forget() -> tuple[Decision, ...]:
            decisions: tuple[Decision, ...] = await found
            await self.decider.ask("reset", whole)
            return decisions

        return PendingResponse(forget(), reply, self.error_reply)

    def time_to_live(self, words: Words) -> AnyReply:
        """TTL: seconds until the key has recovered, rounded up; -2 if it has."""
        if len(words) != 2:
            return wrong_number(words)
        plan = self.throttled(words[1], "TTL")
        self.calls += 1
        if not plan:
            return b":-2\r\n"

        def reply(decisions: tuple[Decision, ...]) -> bytes:
            return b":%d\r\n" % (ceil(max([decision.reset_after for decision in decisions])) or -2)

        return self.ask_all("peek", plan, reply)

    def counted_reply(self, named: NamedLimit, word: bytes, decision: Decision) -> bytes:
        """Count the decision on a cached RK.CHECK, and reply with it."""
        self.calls += 1
        named.uses += 1
        named.counts.count(decision.allowed, decision.remaining / decision.limit)
        if not decision.allowed:
            self.decider.note_refused(text_of(word))
        return check_reply(word, decision)

    def ask(self, operation: str, check: Check, encode_reply: Callable[[bytes, Decision], bytes]) -> AnyReply:
        def respond(decisions: tuple[Decision, ...]) -> bytes:
            (decision,) = decisions
            if operation == "check":
                self.decider.counters.count(check.space, decision)
                if not decision.allowed:
                    self.decider.note_refused(check.key)
            return encode_reply(b"", decision)

        outcome = self.decider.ask(operation, (check,))
        if hasattr(outcome, "__await__"):
            return PendingResponse(outcome, respond, self.error_reply)
        return respond(outcome)

    def ask_all(self, operation: str, plan: tuple[Check, ...], respond: Callable[[Any], bytes]) -> AnyReply:
        outcome = self.decider.ask(operation, plan)
        if hasattr(outcome, "__await__"):
            return PendingResponse(outcome, respond, self.error_reply)
        return respond(outcome)

    def error_reply(self, error: Exception) -> bytes:
        """The reply to a command that failed.  A mistake of ours is logged, and its text is nobody's business."""
        if isinstance(error, StoreUnavailable):
            return b"-TRYAGAIN the store does not answer\r\n"
        if isinstance(error, NoRoom):
            return b"-OOM %b\r\n" % one_line(str(error))
        if isinstance(error, RatekeeperError):
            return b"-ERR %b\r\n" % one_line(str(error))
        self.faults.note(self.name, error)
        return b"-ERR internal error\r\n"


def throttle_reply(word: bytes, decision: Decision) -> bytes:
    """Limited or not, limit, remaining, seconds to the next try (-1: none needed), seconds to full recovery."""
    if decision.allowed:
        return b"*5\r\n:0\r\n:%d\r\n:%d\r\n:-1\r\n:%d\r\n" % (
            decision.limit, decision.remaining, ceil(decision.reset_after),
        )  # fmt: skip
    retry = decision.retry_after
    return b"*5\r\n:1\r\n:%d\r\n:%d\r\n:%d\r\n:%d\r\n" % (
        decision.limit, decision.remaining, -1 if retry is None else ceil(retry), ceil(decision.reset_after),
    )  # fmt: skip


def peek_reply(word: bytes, decision: Decision) -> bytes:
    """The reply to CL.THROTTLE that is never "limited": nothing was taken, so nothing was refused."""
    return b"*5\r\n:0\r\n:%d\r\n:%d\r\n:-1\r\n:%d\r\n" % (
        decision.limit, decision.remaining, ceil(decision.reset_after),
    )  # fmt: skip


def check_reply(word: bytes, decision: Decision) -> bytes:
    """The reply to RK.CHECK, with times in microseconds."""
    retry = decision.retry_after
    return b"*6\r\n:%d\r\n:%d\r\n:%d\r\n:%d\r\n:%d\r\n:%d\r\n" % (
        decision.allowed, decision.limit, decision.remaining, -1 if retry is None else round(retry * SECOND),
        round(decision.reset_after * SECOND), round(decision.delay * SECOND),
    )  # fmt: skip


def whole_number(word: bytes) -> int:
    if not DIGITS.fullmatch(word):
        raise InvalidInput(f"expected a whole number, got {shown(word.decode('latin-1'))}.")
    return int(word)


def text_of(word: bytes) -> str | bytes:
    """A key as text, so that it is the same key on every listener; as bytes if it is not UTF-8."""
    try:
        return word.decode()
    except UnicodeDecodeError:
        return word


def plain_text(word: bytes, what: str) -> str:
    try:
        return word.decode()
    except UnicodeDecodeError:
        raise InvalidInput(f"{what}: expected UTF-8, got {shown(word.decode('latin-1'))}.") from None


def one_line(text: str) -> bytes:
    """Put a text on one line: an error reply ends at its first line break."""
    return " ".join(text.split()).encode("ascii", "replace")[:300]


def wrong_number(words: Words) -> bytes:
    return b"-ERR wrong number of arguments for '%b' command\r\n" % one_line(words[0].decode("latin-1")[:64].lower())


def encoded(value: Any) -> bytes:
    if isinstance(value, bytes):
        return b"$%d\r\n%b\r\n" % (len(value), value)
    if isinstance(value, int):
        return b":%d\r\n" % value
    return b"*%d\r\n" % len(value) + b"".join([encoded(item) for item in value])


LIMIT_COMMANDS: dict[bytes, Callable[[RespListener, Words], AnyReply]] = {
    b"CL.THROTTLE": RespListener.throttle,
    b"RK.CHECK": RespListener.check,
    b"RK.RESET": RespListener.reset,
    b"DEL": RespListener.delete,
    b"TTL": RespListener.time_to_live,
}
