"""What a replay counts: clients, paths, rules and a timeline, in bounded memory.

The requests of each minute are counted by client in one C call; only refusals are counted one by one.  When there are
too many clients to remember, the calmer half of those never refused is merged into a histogram.  Shares of clients
stay correct, except that a merged client that comes back is counted as a second client.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from itertools import compress
from typing import TYPE_CHECKING

from ratekeeper.lab.decide_batch import FOREVER
from ratekeeper.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ratekeeper.lab.decide_log import LogDecider, Refusals
    from ratekeeper.lab.log_lines import Block

MINUTE = 60 * SECOND
MOST_CLIENTS = 200_000
MOST_PATHS = 50_000
MOST_BINS = 480
FEW = 50  # up to this many events a loop is faster than Counter.update
REFUSAL_GAP = 60 * SECOND  # refusals of a client further apart than this belong to two stretches


class ClientCounts:
    """The requests and refusals of one client.  Instants are microseconds since 1970."""

    __slots__ = (
        *("busiest_minute", "first_refused_at", "last_refused_at", "longest_stretch", "refused", "requests", "rules"),
        "stretch_at",
    )

    def __init__(self) -> None:
        self.requests = 0
        self.busiest_minute = 0  # requests in it
        self.refused = 0
        self.rules: dict[str, int] = {}  # refusals by rule
        self.first_refused_at = self.last_refused_at = -REFUSAL_GAP
        self.stretch_at = 0  # when the current stretch of refusals began
        self.longest_stretch = 0  # microseconds of the longest stretch, including the wait that ends it


class ReplayRuleCounts:
    """The requests and refusals of one rule."""

    __slots__ = ("clients", "first_refused_at", "last_refused_at", "longest_wait", "refused", "requests", "shadow")

    def __init__(self) -> None:
        self.requests = 0
        self.refused = 0
        self.shadow = 0  # refusals of a rule that is not enforced
        self.clients: set[str] = set()
        self.first_refused_at = self.last_refused_at = -1
        self.longest_wait: float | None = 0.0  # seconds; None: forever


class Timeline:
    """Requests and refusals over time, in at most ``MOST_BINS`` bins that widen as the log goes on."""

    def __init__(self) -> None:
        self.width = SECOND
        self.start = -1
        self.requests: list[int] = []
        self.refused: list[int] = []

    def add(self, times: list[int], refused_at: list[int]) -> None:
        if self.start < 0:
            self.start = times[0] // MINUTE * MINUTE
        while (times[-1] - self.start) // self.width >= MOST_BINS:
            self.widen()
        last = (times[-1] - self.start) // self.width
        missing = [0] * (last + 1 - len(self.requests))
        self.requests += missing
        self.refused += missing
        self.count(times, self.requests)
        if refused_at:
            self.count(refused_at, self.refused)

    def count(self, times: list[int], bins: list[int]) -> None:
        first, last = ((at - self.start) // self.width for at in (times[0], times[-1]))
        before = 0
        for number in range(first, last + 1):
            after = bisect_left(times, self.start + (number + 1) * self.width, before)
            bins[number] += after - before
            before = after

    def widen(self) -> None:
        self.width *= 2
        for bins in (self.requests, self.refused):
            bins[:] = [sum(bins[number : number + 2]) for number in range(0, len(bins), 2)]


class BusiestStretch:
    """The ``most`` consecutive events that took the least time: the sample of the interactive report."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.window: deque[Block] = deque()  # the latest blocks
        self.size = 0  # events in the window
        self.best: list[Block] = []
        self.best_rate = -1.0

    def add(self, block: Block) -> None:
        step = self.most // 2  # so that two blocks fit into the window
        for start in range(0, len(block), step):
            self.slide(block.part(start, start + step) if len(block) > step else block)

    def slide(self, block: Block) -> None:
        self.window.append(block)
        self.size += len(block)
        while self.size > self.most:
            self.size -= len(self.window.popleft())
        span = self.window[-1].times[-1] - self.window[0].times[0] + SECOND
        # A window that is less than half full loses to every fuller one.
        rate = self.size / span if self.size > self.most // 2 else self.size / 10**18
        if rate > self.best_rate:
            self.best_rate = rate
            self.best = list(self.window)


class ReplayCounts:
    """Everything that is counted while one policy runs over a log."""

    def __init__(self, rules: Iterable[str], most_clients: int = MOST_CLIENTS) -> None:
        self.clients: dict[str, ClientCounts] = {}
        self.most_clients = most_clients
        self.merged_clients: Counter[tuple[int, int]] = Counter()  # how many had (busiest minute, requests)
        self.request_lines: Counter[str] = Counter()  # not yet added to the paths
        self.refused_request_lines: Counter[str] = Counter()
        self.paths: Counter[str] = Counter()
        self.refused_paths: Counter[str] = Counter()
        self.paths_are_exact = True
        self.rules = {name: ReplayRuleCounts() for name in rules}
        self.timeline = Timeline()
        self.requests = 0
        self.refused = 0
        self.shadow = 0
        self.first_at = self.last_at = 0
        self.minute = -1
        self.in_minute: Counter[str] = Counter()  # requests of each client in the current minute

    def add(self, block: Block, refusals: Refusals, decider: LogDecider) -> None:
        """Count a block of events, which are in order, and their refusals."""
        times = block.times
        if not self.requests:
            self.first_at = times[0]
        self.last_at = times[-1]
        self.requests += len(block)
        self.count_clients(block.clients, times)
        self.request_lines.update(block.request_lines)
        if len(self.request_lines) > MOST_PATHS:
            self.count_paths(decider)
        refused_at = [times[place] for place in refusals.places]
        if refused_at:
            self.count_refusals(block, refusals, refused_at)
        self.shadow += len(refusals.shadow)
        for name, count in Counter(refusals.shadow).items():
            self.rules[name].shadow += count
        self.timeline.add(times, refused_at)

    def count_paths(self, decider: LogDecider) -> None:
        """Turn request lines into paths and rules.  This is rare, because most request lines repeat."""
        for text, count in self.request_lines.items():
            line = decider.request_line(text)
            self.paths[line.label] += count
            for name in line.rule_names:
                self.rules[name].requests += count
        for text, count in self.refused_request_lines.items():
            self.refused_paths[decider.request_line(text).label] += count
        self.request_lines.clear()
        self.refused_request_lines.clear()
        for paths in (self.paths, self.refused_paths):
            if len(paths) > MOST_PATHS:
                common = paths.most_common(MOST_PATHS // 2)
                paths.clear()
                paths.update(dict(common))
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
                    counts[client] = counts.get(client, 0) + 1  # `+=` would call Counter.__missing__
            place = until

    def end_minute(self) -> None:
        for name, count in self.in_minute.items():
            client = self.clients.get(name)
            if client is None:
                client = self.clients[name] = ClientCounts()
            client.requests += count
            if count > client.busiest_minute:
                client.busiest_minute = count
        self.in_minute.clear()
        if len(self.clients) > self.most_clients:
            self.merge_calm_clients()

    def merge_calm_clients(self) -> None:
        """Forget the calmer half of the clients that were never refused."""
        calm = sorted(
            (client.busiest_minute, client.requests, name)
            for name, client in self.clients.items()
            if not client.refused
        )  # fmt: skip
        for busiest_minute, requests, name in calm[: len(calm) // 2 + 1]:
            self.merged_clients[busiest_minute, requests] += 1
            del self.clients[name]

    def count_refusals(self, block: Block, refusals: Refusals, times: list[int]) -> None:
        """Count the refusals of a block, which happened at ``times``."""
        names = [block.clients[place] for place in refusals.places]
        self.refused += len(names)
        self.refused_request_lines.update([block.request_lines[place] for place in refusals.places])
        clients = self.clients
        pairs = Counter(zip(names, refusals.rules, strict=True))
        for (name, rule), count in pairs.items():
            client = clients.get(name)
            if client is None:
                client = clients[name] = ClientCounts()
            client.refused += count
            client.rules[rule] = client.rules.get(rule, 0) + count
        for at, name, wait in zip(times, names, refusals.waits, strict=True):
            client = clients[name]
            if at - client.last_refused_at > REFUSAL_GAP:
                client.stretch_at = at
                if client.first_refused_at < 0:
                    client.first_refused_at = at
            client.last_refused_at = at
            length = at - client.stretch_at + (wait if wait > 0 else 0)
            if length > client.longest_stretch:
                client.longest_stretch = length
        for rule in dict.fromkeys(refusals.rules):
            self.count_rule(rule, times, refusals)
            refused_clients = self.rules[rule].clients
            if len(refused_clients) < self.most_clients:
                refused_clients.update([name for name, refused_by in pairs if refused_by == rule])

    def count_rule(self, rule: str, times: list[int], refusals: Refusals) -> None:
        counts = self.rules.setdefault(rule, ReplayRuleCounts())
        waits = refusals.waits
        if refusals.rules.count(rule) < len(waits):  # mostly a single rule refuses, and nothing need be filtered
            chosen = [name == rule for name in refusals.rules]
            times, waits = list(compress(times, chosen)), list(compress(waits, chosen))
        counts.refused += len(times)
        if counts.first_refused_at < 0:
            counts.first_refused_at = times[0]
        counts.last_refused_at = times[-1]
        if counts.longest_wait is None or FOREVER in waits:
            counts.longest_wait = None
        else:
            counts.longest_wait = max(counts.longest_wait, max(waits) / SECOND)

    def finish(self, decider: LogDecider) -> None:
        self.end_minute()
        self.count_paths(decider)
