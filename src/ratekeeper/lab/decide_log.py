"""A policy over the events of a log: who would have been refused, by which rule, for how long.

Most rules count addresses.  For those the key of a client and the rules of a request line are looked up, not worked
out again for each line; all others go the whole way through ``Policy.check``.  Both ways give the same answers.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b
from ipaddress import IPv6Address
from itertools import repeat
from operator import mul
from typing import TYPE_CHECKING, Any

from ratekeeper.identity.identity import Caller
from ratekeeper.identity.request import Request, new_request
from ratekeeper.lab.decide_batch import each_of, micros_of, worst

if TYPE_CHECKING:
    from ratekeeper.identity.address import Addresses
    from ratekeeper.lab.clock import VirtualClock
    from ratekeeper.lab.log_lines import Block, Facts
    from ratekeeper.rules.counter import TierLimit
    from ratekeeper.rules.policy import Policy
    from ratekeeper.rules.selection import PreparedChecks, Selection

MOST_KNOWN = 1 << 16
LONGEST_LABEL = 200
BY_ADDRESS = frozenset({"ip", "all"})


class Refusals:
    """What would have been refused of a block, in columns: the places of the events, the rules, and the waits.

    A wait is in microseconds, or FOR_EVER.  ``shadow`` are refusals by rules that are not enforced.
    """

    __slots__ = ("places", "rules", "shadow", "waits")

    def __init__(self) -> None:
        self.places: list[int] = []
        self.rules: list[str] = []
        self.waits: list[int] = []
        self.shadow: list[str] = []

    def add(self, place: int, rule: str, wait: int) -> None:
        self.places.append(place)
        self.rules.append(rule)
        self.waits.append(wait)


class Course:
    """How requests that meet the same rules are decided."""

    __slots__ = ("is_quick", "keys", "names", "plan")

    def __init__(self, decider: LogDecider, selection: Selection) -> None:
        self.names = tuple([counter.name for counter in selection.counters])
        self.is_quick = not selection.counters or decider.is_by_address(selection)
        ready = selection.ready if self.is_quick else None
        self.plan = ready.plan if ready is not None and ready.entries else None  # None: not limited, or not so simple
        self.keys = Keys(decider, ready) if ready is not None else None


class Way:
    """One request line: what it asks for, and how it is decided."""

    __slots__ = ("course", "label", "method", "names", "path")

    def __init__(self, decider: LogDecider, text: str) -> None:
        self.method, self.path = parted(text)
        self.label = self.path.partition("?")[0][:LONGEST_LABEL]
        self.course = decider.course(decider.policy.program.selection(Request(self.method, self.path)))
        self.names = self.course.names


class Ways(dict[str, tuple[Any, Any, Way]]):
    """By request line: the plan, the keys of each client for it, and the whole way."""

    def __init__(self, decider: LogDecider) -> None:
        self.decider = decider

    def __missing__(self, text: str) -> tuple[Any, Any, Way]:
        if len(self) >= MOST_KNOWN:
            self.clear()
        way = Way(self.decider, text)
        self[text] = found = way.course.plan, way.course.keys, way
        return found


class Keys(dict[str, tuple[str, ...]]):
    """By client: its keys for a plan."""

    def __init__(self, decider: LogDecider, ready: PreparedChecks) -> None:
        self.identity = decider.policy.program.identity
        self.peers = decider.peers
        self.readers = ready.keys

    def __missing__(self, client: str) -> tuple[str, ...]:
        caller = Caller(self.identity, new_request("GET", "/", self.peers[client], (), b""))
        if len(self) >= MOST_KNOWN:
            self.clear()
        self[client] = found = tuple([read(caller) for read in self.readers])
        return found


class Peers(dict[str, str]):
    """By client: its address.  A name, as old logs have them, gets an address of its own, always the same."""

    def __init__(self, addresses: Addresses) -> None:
        self.addresses = addresses

    def __missing__(self, client: str) -> str:
        found = client
        if self.addresses.parse(client).address is None:
            # fd00::/8 is nobody's on the Internet; 56 bits of a digest keep names apart under the usual prefix of 64.
            digest = blake2b(client.encode("utf-8", "surrogatepass"), digest_size=7).digest()
            found = str(IPv6Address(b"\xfd" + digest + bytes(8)))
        if len(self) >= MOST_KNOWN:
            self.clear()
        self[client] = found
        return found


class LogDecider:
    """Decides events with a policy, in the order of time."""

    def __init__(self, policy: Policy, clock: VirtualClock) -> None:
        self.policy = policy
        self.clock = clock
        self.peers = Peers(policy.program.identity.addresses)
        self.ways = Ways(self)
        self.courses: dict[Selection, Course] = {}
        self.has_hosts = policy.program.requests.by_host
        self.is_quick = True  # so far no request was met that must go the whole way
        self.check_each = each_of(clock, policy.program.fleet, policy.program.instance)
        everything = policy.program.everything
        self.everything = self.course(everything) if everything is not None else None

    def is_by_address(self, selection: Selection) -> bool:
        return (
            selection.ready is not None
            and not self.has_hosts
            and all(BY_ADDRESS.issuperset(counter.rule.by) for counter in selection.counters)
            and all(is_over_time(counter.default) for counter in selection.counters)
        )

    def course(self, selection: Selection) -> Course:
        found = self.courses.get(selection)
        if found is None:
            found = self.courses[selection] = Course(self, selection)
            self.is_quick = self.is_quick and found.is_quick
        return found

    def way(self, text: str) -> Way:
        return self.ways[text][2]

    def request(self, way: Way, client: str, facts: Facts) -> Request:
        """The request as an adapter would have it."""
        headers = [(name, value) for name, value in facts.items() if name not in ("user", "host")]
        known = {"user": facts["user"]} if "user" in facts else None
        return Request(way.method, way.path, self.peers[client], headers, host=facts.get("host"), facts=known)

    def decide(self, block: Block) -> Refusals:
        """Decide events, and say which were refused."""
        refusals = Refusals()
        ways: list[tuple[Any, Any, Any]]
        if self.everything is not None and self.is_quick and not block.facts:
            ways = [(self.everything.plan, self.everything.keys, self.everything)] * len(block)
        else:
            ways = list(map(self.ways.__getitem__, block.texts))
        if block.facts or not self.is_quick:
            self.decide_singly(block, ways, refusals)
        else:
            refused = array("q", self.check_each(ways, block.clients, block.times)[2])
            refusals.places, refusals.waits = list(refused[::3]), list(refused[2::3])
            refusals.rules = [ways[place][2].names[row] for place, row in zip(refused[::3], refused[1::3], strict=True)]
        return refusals

    def decide_singly(self, block: Block, ways: list[tuple[Any, Any, Way]], refusals: Refusals) -> None:
        """The same where some go the whole way."""
        hand, facts = self.clock.hand, block.facts
        nanos = map(mul, block.times, repeat(1000))
        events = zip(range(len(block)), nanos, block.clients, ways, strict=True)
        # `for ..., hand[0], ...` moves the clock to each event before it is decided.
        for place, hand[0], client, (plan, keys, way) in events:
            if place in facts or not way.course.is_quick:
                self.decide_whole(place, way, client, facts.get(place, {}), refusals)
            elif plan is not None:
                allowed, decisions = plan.check(keys[client])
                if not allowed:
                    row, wait = worst(decisions)
                    refusals.add(place, way.names[row], wait)

    def decide_whole(self, place: int, way: Way, client: str, facts: Facts, refusals: Refusals) -> None:
        """Decide one request as an adapter would have it decided."""
        verdict = self.policy.check(self.request(way, client, facts))
        if self.policy.leases and verdict.allowed:
            self.policy.release(verdict)  # a log does not tell how long a place was held
        if not verdict.allowed:
            refusals.add(place, verdict.rule or "", micros_of(verdict.retry_after))
        else:
            refusals.shadow.extend(verdict.notes.shadow)


def is_over_time(entry: TierLimit | None) -> bool:
    return entry is not None and not entry.is_unlimited and not entry.limit.is_leased


def parted(text: str) -> tuple[str, str]:
    """``GET /x HTTP/1.1`` -> its method and target; what is no request line asks for ``/``."""
    words = text.split(" ")
    if len(words) >= 2 and words[0].isalpha():
        return words[0], " ".join(words[1:-1]) if len(words) > 2 and words[-1].startswith("HTTP/") else words[1]
    return "-", "/"
