"""Decide the events of a log with a policy: which would have been refused, by which rule, for how long.

Most rules count by address or by user.  For those, the keys of a client and the rules of a request line are cached, and
events are decided in batches.  All other events go through ``Policy.check``.  Both paths give the same answers.
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
from ratekeeper.lab.decide_batch import batch_checker, longest_refusal, wait_micros

if TYPE_CHECKING:
    from ratekeeper.identity.address import Addresses
    from ratekeeper.lab.clock import VirtualClock
    from ratekeeper.lab.log_lines import Block, Facts
    from ratekeeper.rules.counter import TierLimit
    from ratekeeper.rules.policy import Policy
    from ratekeeper.rules.selection import PreparedChecks, Selection

    Sender = str | tuple[str, str]  # the client, or the client and its user
MOST_CACHED = 1 << 16
LONGEST_LABEL = 200
BY_SENDER = frozenset({"ip", "all", "user"})


class Refusals:
    """The refusals of a block in columns: the place of the event, the rule, and the wait.

    A wait is in microseconds, or FOREVER.  ``shadow`` names the rule of each refusal that is not enforced.
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


class SelectionPlan:
    """How requests that meet the same rules are decided."""

    __slots__ = ("is_fast", "keys", "plan", "rule_names")

    def __init__(self, decider: LogDecider, selection: Selection) -> None:
        self.rule_names = tuple([counter.name for counter in selection.counters])
        self.is_fast = not selection.counters or decider.is_by_sender(selection)
        prepared = selection.ready if self.is_fast else None
        self.plan = (
            prepared.plan if prepared is not None and prepared.entries else None
        )  # None: not limited, or not fast
        self.keys = ClientKeys(decider, prepared) if prepared is not None else None


class RequestLine:
    """One request line: what it requests, and how that is decided."""

    __slots__ = ("label", "method", "path", "rule_names", "selection_plan")

    def __init__(self, decider: LogDecider, text: str) -> None:
        self.method, self.path = split_request_line(text)
        self.label = self.path.partition("?")[0][:LONGEST_LABEL]
        selection = decider.policy.compiled.selection(Request(self.method, self.path))
        self.selection_plan = decider.selection_plan(selection)
        self.rule_names = self.selection_plan.rule_names


class RequestLineCache(dict[str, tuple[Any, Any, RequestLine]]):
    """By the text of a request line: its plan, the plan's keys of each client, and the parsed line."""

    def __init__(self, decider: LogDecider) -> None:
        self.decider = decider

    def __missing__(self, text: str) -> tuple[Any, Any, RequestLine]:
        if len(self) >= MOST_CACHED:
            self.clear()
        line = RequestLine(self.decider, text)
        self[text] = keyed_plan = line.selection_plan.plan, line.selection_plan.keys, line
        return keyed_plan


class ClientKeys(dict["Sender", tuple[str, ...]]):
    """By sender: its keys for one plan."""

    def __init__(self, decider: LogDecider, prepared: PreparedChecks) -> None:
        self.identity = decider.policy.compiled.identity
        self.addresses = decider.addresses
        self.key_readers = prepared.keys

    def __missing__(self, sender: Sender) -> tuple[str, ...]:
        client, user = (sender, None) if isinstance(sender, str) else sender
        request = new_request("GET", "/", self.addresses[client], (), b"")
        if user is not None:
            request.facts = {"user": user}
        caller = Caller(self.identity, request)
        if len(self) >= MOST_CACHED:
            self.clear()
        self[sender] = keys = tuple([read(caller) for read in self.key_readers])
        return keys


class ClientAddresses(dict[str, str]):
    """By client: its address.  A host name, as old logs have them, always gets the same made-up address."""

    def __init__(self, addresses: Addresses) -> None:
        self.addresses = addresses

    def __missing__(self, client: str) -> str:
        address = client
        if self.addresses.parse(client).address is None:
            # fd00::/8 is not routed on the Internet.  56 bits of a digest keep names apart under a prefix of 64 bits.
            digest = blake2b(client.encode("utf-8", "surrogatepass"), digest_size=7).digest()
            address = str(IPv6Address(b"\xfd" + digest + bytes(8)))
        if len(self) >= MOST_CACHED:
            self.clear()
        self[client] = address
        return address


class LogDecider:
    """Decides events with a policy, in the order of time."""

    def __init__(self, policy: Policy, clock: VirtualClock) -> None:
        self.policy = policy
        self.clock = clock
        self.addresses = ClientAddresses(policy.compiled.identity.addresses)
        self.request_lines = RequestLineCache(self)
        self.selection_plans: dict[Selection, SelectionPlan] = {}
        self.has_hosts = policy.compiled.requests.by_host
        self.counts_users = any("user" in rule.by for rule in policy.rules)
        self.counts_addresses = any(not {"user", "all"}.issuperset(rule.by) for rule in policy.rules)
        user_sources = [source for source, _ in policy.compiled.identity.user_sources] if self.counts_users else []
        # A log may have headers that name the user; it never has a token.
        self.user_headers = {source[7:].lower() for source in user_sources if source.startswith("header:")}
        self.reads_users = all(source.startswith(("app:user", "header:", "jwt:")) for source in user_sources)
        self.is_fast = True  # until a request needs Policy.check
        self.check_each = batch_checker(clock, policy.compiled.fleet, policy.compiled.instance)
        everything = policy.compiled.everything
        self.everything = self.selection_plan(everything) if everything is not None else None

    def is_by_sender(self, selection: Selection) -> bool:
        return (
            selection.ready is not None
            and not self.has_hosts
            and self.reads_users
            and all(BY_SENDER.issuperset(counter.rule.by) for counter in selection.counters)
            and all(limits_rate(counter.default) for counter in selection.counters)
        )

    def selection_plan(self, selection: Selection) -> SelectionPlan:
        plan = self.selection_plans.get(selection)
        if plan is None:
            plan = self.selection_plans[selection] = SelectionPlan(self, selection)
            self.is_fast = self.is_fast and plan.is_fast
        return plan

    def request_line(self, text: str) -> RequestLine:
        return self.request_lines[text][2]

    def request(self, line: RequestLine, client: str, facts: Facts) -> Request:
        """Build the request that an adapter would have built."""
        headers = [(name, value) for name, value in facts.items() if name not in ("user", "host")]
        app_facts = {"user": facts["user"]} if "user" in facts else None
        return Request(line.method, line.path, self.addresses[client], headers, host=facts.get("host"), facts=app_facts)

    def decide(self, block: Block) -> Refusals:
        """Decide the events of a block, and return the refusals."""
        refusals = Refusals()
        senders = self.senders(block) if self.is_fast else None
        plans: list[tuple[Any, Any, Any]]
        if self.everything is not None and senders is not None:
            plans = [(self.everything.plan, self.everything.keys, self.everything)] * len(block)
        else:
            plans = list(map(self.request_lines.__getitem__, block.request_lines))
        if senders is None or not self.is_fast:  # a request line that was not seen before may need Policy.check
            self.decide_one_by_one(block, plans, refusals)
        else:
            refused = array("q", self.check_each(plans, senders, block.times)[2])
            refusals.places, refusals.waits = list(refused[::3]), list(refused[2::3])
            refusals.rules = [
                plans[place][2].rule_names[row] for place, row in zip(refused[::3], refused[1::3], strict=True)
            ]
        return refusals

    def senders(self, block: Block) -> list[Any] | None:
        """Who sent each event, as far as the rules ask; None: a header must be looked at."""
        if not block.facts or not self.counts_users:
            return block.clients
        senders: list[Sender] = list(block.clients)
        for place, facts in block.facts.items():
            if not self.user_headers.isdisjoint(facts):
                return None
            if "user" in facts:
                senders[place] = block.clients[place] if self.counts_addresses else "", facts["user"]
        return senders

    def decide_one_by_one(self, block: Block, plans: list[tuple[Any, Any, RequestLine]], refusals: Refusals) -> None:
        """Decide a block in which some events need ``Policy.check``."""
        hand, facts = self.clock.hand, block.facts
        nanos = map(mul, block.times, repeat(1000))
        events = zip(range(len(block)), nanos, block.clients, plans, strict=True)
        # `for ..., hand[0], ...` moves the clock to each event before it is decided.
        for place, hand[0], client, (plan, keys, line) in events:
            if place in facts or not line.selection_plan.is_fast:
                self.decide_with_policy(place, line, client, facts.get(place, {}), refusals)
            elif plan is not None:
                allowed, decisions = plan.check(keys[client])
                if not allowed:
                    row, wait = longest_refusal(decisions)
                    refusals.add(place, line.rule_names[row], wait)

    def decide_with_policy(self, place: int, line: RequestLine, client: str, facts: Facts, refusals: Refusals) -> None:
        """Decide one request as an adapter does."""
        verdict = self.policy.check(self.request(line, client, facts))
        if self.policy.leases and verdict.allowed:
            self.policy.release(verdict)  # a log does not say how long a request took
        if not verdict.allowed:
            refusals.add(place, verdict.rule or "", wait_micros(verdict.retry_after))
        else:
            refusals.shadow.extend(verdict.notes.shadow)


def limits_rate(tier_limit: TierLimit | None) -> bool:
    """Whether this is a limit per time, rather than unlimited or a limit on concurrency."""
    return tier_limit is not None and not tier_limit.is_unlimited and not tier_limit.limit.is_leased


def split_request_line(text: str) -> tuple[str, str]:
    """``GET /x HTTP/1.1`` -> its method and target; anything else counts as a request for ``/``."""
    words = text.split(" ")
    if len(words) >= 2 and words[0].isalpha():
        return words[0], " ".join(words[1:-1]) if len(words) > 2 and words[-1].startswith("HTTP/") else words[1]
    return "-", "/"
