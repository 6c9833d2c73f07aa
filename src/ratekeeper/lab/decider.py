"""A policy over the events of a log: who would have been refused, by which rule, for how long.

Most rules count addresses.  For those the key of a client and the rules of a request line are looked up, not worked
out again for each line; all others go the whole way through ``Policy.check``.  Both ways give the same answers.
"""

from __future__ import annotations

from hashlib import blake2b
from ipaddress import IPv6Address
from itertools import repeat
from operator import mul
from typing import TYPE_CHECKING, Any

from ratekeeper.identity import Caller
from ratekeeper.request import Request, new_request

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratekeeper.address import Addresses
    from ratekeeper.lab.clock import VirtualClock
    from ratekeeper.lab.logs import Block, Facts
    from ratekeeper.model import Decision
    from ratekeeper.plan import Entry, Ready, Selection
    from ratekeeper.policy import Policy

MOST_KNOWN = 1 << 16
LONGEST_LABEL = 200
BY_ADDRESS = frozenset({"ip", "all"})


class Refusals:
    """What would have been refused of a block, in columns: the places of the events, the rules, and the waits.

    A wait is in seconds, None where time does not help.  ``shadow`` are refusals by rules that are not enforced.
    """

    __slots__ = ("places", "rules", "shadow", "waits")

    def __init__(self) -> None:
        self.places: list[int] = []
        self.rules: list[str] = []
        self.waits: list[float | None] = []
        self.shadow: list[str] = []

    def add(self, place: int, rule: str, wait: float | None) -> None:
        self.places.append(place)
        self.rules.append(rule)
        self.waits.append(wait)


class Course:
    """How requests that meet the same rules are decided."""

    __slots__ = ("check", "cost", "keys", "names")

    def __init__(self, decider: Decider, selection: Selection) -> None:
        self.names = tuple([counter.name for counter in selection.counters])
        self.check: Callable[..., Any] | None = None  # of the only limit by key and cost, or of several by their keys
        self.cost = 0  # of the only limit
        self.keys: Keys | None = None
        ready = selection.ready
        if ready is None or not selection.counters or not decider.is_by_address(selection):
            return
        if selection.only is not None:
            self.check = selection.only.default.check  # type: ignore[union-attr]
            self.cost = selection.only.constant
        else:
            self.check = ready.check
        self.keys = Keys(decider, ready, is_alone=self.cost > 0)


class Way:
    """One request line: what it asks for, and how it is decided."""

    __slots__ = ("course", "label", "method", "names", "path")

    def __init__(self, decider: Decider, text: str) -> None:
        self.method, self.path = parted(text)
        self.label = self.path.partition("?")[0][:LONGEST_LABEL]
        self.course = decider.course(decider.policy.program.selection(Request(self.method, self.path)))
        self.names = self.course.names


class Ways(dict[str, tuple[Any, int, Any, Way]]):
    """By request line: the check, the cost where there is but one limit, the keys, and the whole way."""

    def __init__(self, decider: Decider) -> None:
        self.decider = decider

    def __missing__(self, text: str) -> tuple[Any, int, Any, Way]:
        if len(self) >= MOST_KNOWN:
            self.clear()
        way = Way(self.decider, text)
        course = way.course
        self[text] = found = course.check, course.cost, course.keys, way
        return found


class Keys(dict[str, Any]):
    """By client: its key for the only limit of a selection, or its keys for several."""

    def __init__(self, decider: Decider, ready: Ready, is_alone: bool) -> None:
        self.identity = decider.policy.program.identity
        self.peers = decider.peers
        self.readers = ready.keys
        self.is_alone = is_alone

    def __missing__(self, client: str) -> Any:
        caller = Caller(self.identity, new_request("GET", "/", self.peers[client], (), b""))
        found: Any = tuple([read(caller) for read in self.readers])
        if self.is_alone:
            (found,) = found
        if len(self) >= MOST_KNOWN:
            self.clear()
        self[client] = found
        return found


class Peers(dict[str, str]):
    """By client: its address.  A name, as old logs have them, gets an address of its own, always the same."""

    def __init__(self, addresses: Addresses) -> None:
        self.addresses = addresses

    def __missing__(self, client: str) -> str:
        found = client
        if self.addresses.learn(client).address is None:
            # fd00::/8 is nobody's on the Internet; 56 bits of a digest keep names apart under the usual prefix of 64.
            digest = blake2b(client.encode("utf-8", "surrogatepass"), digest_size=7).digest()
            found = str(IPv6Address(b"\xfd" + digest + bytes(8)))
        if len(self) >= MOST_KNOWN:
            self.clear()
        self[client] = found
        return found


class Decider:
    """Decides events with a policy, in the order of time."""

    def __init__(self, policy: Policy, clock: VirtualClock) -> None:
        self.policy = policy
        self.clock = clock
        self.peers = Peers(policy.program.identity.addresses)
        self.ways = Ways(self)
        self.courses: dict[Selection, Course] = {}
        self.has_hosts = policy.program.requests.by_host
        everything = policy.program.everything
        course = self.course(everything) if everything is not None else None
        self.only = course if course is not None and course.cost else None

    def is_by_address(self, selection: Selection) -> bool:
        return (
            not self.has_hosts
            and all(BY_ADDRESS.issuperset(counter.rule.by) and not counter.by_tier for counter in selection.counters)
            and all(is_over_time(counter.default) for counter in selection.counters)
        )

    def course(self, selection: Selection) -> Course:
        found = self.courses.get(selection)
        if found is None:
            found = self.courses[selection] = Course(self, selection)
        return found

    def way(self, text: str) -> Way:
        return self.ways[text][3]

    def request(self, way: Way, client: str, facts: Facts) -> Request:
        """The request as an adapter would have it."""
        headers = [(name, value) for name, value in facts.items() if name not in ("user", "host")]
        known = {"user": facts["user"]} if "user" in facts else None
        return Request(way.method, way.path, self.peers[client], headers, host=facts.get("host"), facts=known)

    def decide(self, block: Block) -> Refusals:
        """Decide events, and say which were refused."""
        if self.only is not None and not block.facts:
            return self.decide_alike(block, self.only)
        refusals = Refusals()
        add = refusals.add
        hand, facts = self.clock.hand, block.facts
        nanos, ways = map(mul, block.times, repeat(1000)), map(self.ways.__getitem__, block.texts)
        events = zip(range(len(block)), nanos, block.clients, ways, strict=True)
        # `for ..., hand[0], ...` moves the clock to each event before it is decided.
        for place, hand[0], client, (check, cost, keys, way) in events:
            if facts and place in facts:
                self.decide_whole(place, way, client, facts[place], refusals)
            elif cost:
                decision = check(keys[client], cost)
                if not decision.allowed:
                    add(place, way.names[0], decision.retry_after)
            elif check is not None:
                allowed, decisions = check(keys[client])
                if not allowed:
                    add(place, *worst(way.names, decisions))
            elif way.names:
                self.decide_whole(place, way, client, {}, refusals)
        return refusals

    def decide_alike(self, block: Block, course: Course) -> Refusals:
        """The same where one limit holds for every request, whatever it asks for."""
        refusals = Refusals()
        check, cost, keys, hand = course.check, course.cost, course.keys, self.clock.hand
        nanos = map(mul, block.times, repeat(1000))
        subjects = map(keys.__getitem__, block.clients)  # type: ignore[index]
        refused = [
            (place, decision)
            for place, hand[0], key in zip(range(len(block)), nanos, subjects, strict=True)
            if not (decision := check(key, cost)).allowed  # type: ignore[misc]
        ]
        for place, decision in refused:
            refusals.add(place, course.names[0], decision.retry_after)
        return refusals

    def decide_whole(self, place: int, way: Way, client: str, facts: Facts, refusals: Refusals) -> None:
        """Decide one request as an adapter would have it decided."""
        verdict = self.policy.check(self.request(way, client, facts))
        if self.policy.leases and verdict.allowed:
            self.policy.release(verdict)  # a log does not tell how long a place was held
        if not verdict.allowed:
            refusals.add(place, verdict.rule or "", verdict.retry_after)
        else:
            refusals.shadow.extend(verdict.notes.shadow)


def is_over_time(entry: Entry | None) -> bool:
    return entry is not None and not entry.is_unlimited and not entry.limit.is_leased


def worst(names: tuple[str, ...], decisions: tuple[Decision, ...]) -> tuple[str, float | None]:
    """The rule that refuses for longest, and for how long."""
    rule, longest = "", -1.0
    for name, decision in zip(names, decisions, strict=True):
        if not decision.allowed:
            wait = decision.retry_after
            if wait is None:
                return name, None
            if wait > longest:
                rule, longest = name, wait
    return rule, longest


def parted(text: str) -> tuple[str, str]:
    """``GET /x HTTP/1.1`` -> its method and target; what is no request line asks for ``/``."""
    words = text.split(" ")
    if len(words) >= 2 and words[0].isalpha():
        return words[0], " ".join(words[1:-1]) if len(words) > 2 and words[-1].startswith("HTTP/") else words[1]
    return "-", "/"
