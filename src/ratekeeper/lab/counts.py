"""What a replay counts: clients, paths, rules and the course of time, in bounded memory.

Requests of a minute are counted by client in one go, in C; only refusals are looked at one by one.  When there are
too many clients to remember, the calm half of those never refused is folded into a histogram: shares of clients
stay true, unless somebody comes back after being folded and is then counted as two.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from itertools import compress
from typing import TYPE_CHECKING

from ratekeeper.lab.decide_batch import FOR_EVER
from ratekeeper.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ratekeeper.lab.decide_log import LogDecider, Refusals
    from ratekeeper.lab.log_lines import Block

MINUTE = 60 * SECOND
MOST_CLIENTS = 200_000
MOST_PATHS = 50_000
MOST_BINS = 480
FEW = 50  # events for which a loop is faster than a call
APART = 60 * SECOND  # refusals of a client that are further apart belong to two stretches


class Client:
    """What one client did, and what was done to it.  Instants are microseconds since 1970."""

    __slots__ = ("asked", "first_at", "last_at", "longest", "peak", "refused", "rules", "since")

    def __init__(self) -> None:
        self.asked = 0
        self.peak = 0  # requests in its busiest minute
        self.refused = 0
        self.rules: dict[str, int] = {}
        self.first_at = self.last_at = -APART  # of its refusals
        self.since = 0  # the beginning of the present stretch of refusals
        self.longest = 0  # microseconds of the longest such stretch with the wait that ends it


class RuleCount:
    """What one rule did."""

    __slots__ = ("asked", "clients", "first_at", "last_at", "longest_wait", "refused", "shadow")

    def __init__(self) -> None:
        self.asked = 0
        self.refused = 0
        self.shadow = 0  # would have been refused, were the rule enforced
        self.clients: set[str] = set()
        self.first_at = self.last_at = -1
        self.longest_wait: float | None = 0.0


class Timeline:
    """Requests and refusals over time, in at most ``MOST_BINS`` bins that widen as the time goes on."""

    def __init__(self) -> None:
        self.width = SECOND
        self.start = -1
        self.asked: list[int] = []
        self.refused: list[int] = []

    def add(self, times: list[int], refused: list[int]) -> None:
        if self.start < 0:
            self.start = times[0] // MINUTE * MINUTE
        while (times[-1] - self.start) // self.width >= MOST_BINS:
            self.widen()
        last = (times[-1] - self.start) // self.width
        missing = [0] * (last + 1 - len(self.asked))
        self.asked += missing
        self.refused += missing
        self.count(times, self.asked)
        if refused:
            self.count(refused, self.refused)

    def count(self, times: list[int], counts: list[int]) -> None:
        first, last = ((at - self.start) // self.width for at in (times[0], times[-1]))
        before = 0
        for place in range(first, last + 1):
            after = bisect_left(times, self.start + (place + 1) * self.width, before)
            counts[place] += after - before
            before = after

    def widen(self) -> None:
        self.width *= 2
        for counts in (self.asked, self.refused):
            counts[:] = [sum(counts[place : place + 2]) for place in range(0, len(counts), 2)]


class Busiest:
    """The stretch of so many events that took the least time: what the interactive page plays with."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.blocks: deque[Block] = deque()
        self.held = 0
        self.best: list[Block] = []
        self.rate = -1.0

    def add(self, block: Block) -> None:
        step = self.most // 2  # two of them fit
        for start in range(0, len(block), step):
            self.add_some(block.part(start, start + step) if len(block) > step else block)

    def add_some(self, block: Block) -> None:
        self.blocks.append(block)
        self.held += len(block)
        while self.held > self.most:
            self.held -= len(self.blocks.popleft())
        span = self.blocks[-1].times[-1] - self.blocks[0].times[0] + SECOND
        rate = self.held / span if self.held > self.most // 2 else self.held / 10**18
        if rate > self.rate:
            self.rate = rate
            self.best = list(self.blocks)


class ReplayCounts:
    """All that is counted in one replay of one policy."""

    def __init__(self, rules: Iterable[str], most_clients: int = MOST_CLIENTS) -> None:
        self.clients: dict[str, Client] = {}
        self.most_clients = most_clients
        self.folded: Counter[tuple[int, int]] = Counter()  # (busiest minute, requests) of clients forgotten
        self.texts: Counter[str] = Counter()  # request lines that are not among the paths yet
        self.refused_texts: Counter[str] = Counter()
        self.paths: Counter[str] = Counter()
        self.refused_paths: Counter[str] = Counter()
        self.paths_are_exact = True
        self.rules = {name: RuleCount() for name in rules}
        self.timeline = Timeline()
        self.requests = 0
        self.refused = 0
        self.shadow = 0
        self.first_at = self.last_at = 0
        self.minute = -1
        self.in_minute: Counter[str] = Counter()

    def add(self, block: Block, refusals: Refusals, decider: LogDecider) -> None:
        """Count a block of events, in order, and the refusals among them."""
        times = block.times
        if not self.requests:
            self.first_at = times[0]
        self.last_at = times[-1]
        self.requests += len(block)
        self.count_clients(block.clients, times)
        self.texts.update(block.texts)
        if len(self.texts) > MOST_PATHS:
            self.count_paths(decider)
        refused = [times[place] for place in refusals.places]
        if refused:
            self.refuse(block, refusals, refused)
        self.shadow += len(refusals.shadow)
        for name, count in Counter(refusals.shadow).items():
            self.rules[name].shadow += count
        self.timeline.add(times, refused)

    def count_paths(self, decider: LogDecider) -> None:
        """Request lines become paths and rules: seldom, as the same ones come again and again."""
        for text, count in self.texts.items():
            way = decider.way(text)
            self.paths[way.label] += count
            for name in way.names:
                self.rules[name].asked += count
        for text, count in self.refused_texts.items():
            self.refused_paths[decider.way(text).label] += count
        self.texts.clear()
        self.refused_texts.clear()
        for paths in (self.paths, self.refused_paths):
            if len(paths) > MOST_PATHS:
                kept = paths.most_common(MOST_PATHS // 2)
                paths.clear()
                paths.update(dict(kept))
                self.paths_are_exact = False

    def count_clients(self, clients: list[str], times: list[int]) -> None:
        place = 0
        while place < len(times):
            minute = times[place] // MINUTE
            if minute != self.minute:
                self.end_minute()
                self.minute = minute
            until = len(times)
            if times[-1] >= (minute + 1) * MINUTE:
                until = bisect_left(times, (minute + 1) * MINUTE, place)
            counts = self.in_minute
            if until - place > FEW:
                counts.update(clients[place:until])
            else:
                for client in clients[place:until]:
                    counts[client] = counts.get(client, 0) + 1  # spares the call for one that is missing
            place = until

    def end_minute(self) -> None:
        for name, count in self.in_minute.items():
            client = self.clients.get(name)
            if client is None:
                client = self.clients[name] = Client()
            client.asked += count
            if count > client.peak:
                client.peak = count
        self.in_minute.clear()
        if len(self.clients) > self.most_clients:
            self.fold()

    def fold(self) -> None:
        """Forget the calm half of the clients that were never refused."""
        calm = sorted((client.peak, client.asked, name) for name, client in self.clients.items() if not client.refused)
        for peak, asked, name in calm[: len(calm) // 2 + 1]:
            self.folded[peak, asked] += 1
            del self.clients[name]

    def refuse(self, block: Block, refusals: Refusals, times: list[int]) -> None:
        """Count refusals, which came at ``times``."""
        names = [block.clients[place] for place in refusals.places]
        self.refused += len(names)
        self.refused_texts.update([block.texts[place] for place in refusals.places])
        known = self.clients
        pairs = Counter(zip(names, refusals.rules, strict=True))
        for (name, rule), count in pairs.items():
            client = known.get(name)
            if client is None:
                client = known[name] = Client()
            client.refused += count
            client.rules[rule] = client.rules.get(rule, 0) + count
        for at, name, wait in zip(times, names, refusals.waits, strict=True):
            client = known[name]
            if at - client.last_at > APART:
                client.since = at
                if client.first_at < 0:
                    client.first_at = at
            client.last_at = at
            length = at - client.since + (wait if wait > 0 else 0)
            if length > client.longest:
                client.longest = length
        for rule in dict.fromkeys(refusals.rules):
            self.count_rule(rule, times, refusals)
            clients = self.rules[rule].clients
            if len(clients) < self.most_clients:
                clients.update([name for name, own in pairs if own == rule])

    def count_rule(self, rule: str, times: list[int], refusals: Refusals) -> None:
        found = self.rules.setdefault(rule, RuleCount())
        waits = refusals.waits
        if refusals.rules.count(rule) < len(waits):  # else it is the only one, as mostly
            chosen = [own == rule for own in refusals.rules]
            times, waits = list(compress(times, chosen)), list(compress(waits, chosen))
        found.refused += len(times)
        if found.first_at < 0:
            found.first_at = times[0]
        found.last_at = times[-1]
        if found.longest_wait is None or FOR_EVER in waits:
            found.longest_wait = None
        else:
            found.longest_wait = max(found.longest_wait, max(waits) / SECOND)

    def finish(self, decider: LogDecider) -> None:
        self.end_minute()
        self.count_paths(decider)
