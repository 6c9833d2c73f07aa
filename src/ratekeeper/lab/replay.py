"""replay: a rules file over yesterday's access log, by the rules and stores of production, on the log's own time."""

from __future__ import annotations

import gc
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratekeeper.errors import InvalidInput
from ratekeeper.lab.clock import VirtualClock, open_in_virtual_time
from ratekeeper.lab.compare import Difference
from ratekeeper.lab.counts import MINUTE, Busiest, ReplayCounts
from ratekeeper.lab.decide_log import LogDecider
from ratekeeper.lab.log_lines import LineReader
from ratekeeper.lab.log_stream import Source, merged
from ratekeeper.lab.outcome import RANKS, ClientOutcome, PathOutcome, RankOutcome, Replay, RuleOutcome
from ratekeeper.lab.suggest import Arrivals
from ratekeeper.rules.policy import Policy
from ratekeeper.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ratekeeper.lab.counts import Client

    Progress = Callable[[str, int, int], object]
    Rules = str | Path | Mapping[str, Any]

PLAYED = 20_000  # events that the interactive page gets
IN_EVERY_LINE = ("ip", "all", "method", "route")


def replay(
    logs: str | Path | Sequence[str | Path],
    rules: Rules,
    *,
    against: Rules | None = None,
    format: str = "auto",
    fields: Mapping[str, str] | None = None,
    zone: str = "auto",
    suggest: float | None = None,
    top: int = 20,
    anonymous: bool = False,
    store: str = "memory://",
    functions: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Replay:
    """Run rules over access logs: ``replay("access.log", "rules.toml")``; ``-`` is the standard input.

    ``against`` are the rules in force now: what ``rules`` would change is in ``comparison``.  ``suggest=0.001`` looks
    for the least limit of each rule that refuses at most that share of its clients.  ``zone="ignored"`` reads all
    stamps as UTC.  ``anonymous`` numbers the clients.
    """
    paths = [str(logs)] if isinstance(logs, (str, Path)) else [str(log) for log in logs]
    if not paths:
        raise InvalidInput("replay: expected at least one log file, got none.")
    if suggest is not None and not 0 <= suggest < 1:
        raise InvalidInput(f"suggest: expected a share from 0 to 1, such as 0.001, got {suggest!r}.")
    with ExitStack() as closing:
        closing.enter_context(seldom_collecting())
        clock = VirtualClock()
        policy = opened(rules, store, clock, functions, closing)
        decider = LogDecider(policy, clock)
        other = None
        if against is not None:
            before = opened(against, store, clock, functions, closing)
            other = Difference(LogDecider(before, clock))
        sources = []
        for path in paths:
            wants = any(name not in ("ip", "all") for rule in policy.rules for name in rule.by)
            reader = LineReader(path, format, fields or {}, zone, wants_facts=wants)
            source = Source(path, reader)
            closing.callback(source.close)
            sources.append(source)
        arrivals = Arrivals(policy) if suggest is not None else None
        tally = ReplayCounts([rule.name for rule in policy.rules])
        busiest = Busiest(PLAYED)
        total = sum(source.size for source in sources)
        for block in merged(sources):
            refusals = decider.decide(block)
            tally.add(block, refusals, decider)
            busiest.add(block)
            if arrivals is not None:
                arrivals.add(block, decider)
            if other is not None:
                other.add(block, refusals, decider)
            if progress is not None:
                progress("reading", sum(source.position for source in sources), total)
        tally.finish(decider)
        found = outcome(sources, policy, tally, busiest, top)
        suggestions = arrivals.suggestions(suggest or 0.0, progress) if arrivals is not None else ()
        made = Replay(
            **found,
            suggestions=suggestions,
            comparison=other.comparison(top) if other is not None else None,
            warnings=(*policy.warnings, *untold(policy, {name for source in sources for name in source.reader.told})),
        )
        return anonymised(made) if anonymous else made


@contextmanager
def seldom_collecting() -> Iterator[None]:
    """Let Python look for circular garbage less often: here is none, and the looking took a fifth of the time."""
    before = gc.get_threshold()
    gc.set_threshold(200_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def untold(policy: Policy, told: set[str]) -> list[str]:
    """What these rules ask and the log does not say; ``told`` are the facts that it has beside the request."""
    leased = [rule.name for rule in policy.rules if any(limit.is_leased for limit in rule.limits.values())]
    found = [f"{name} limits what is in flight, which a log does not tell: here it refuses nobody." for name in leased]
    for rule in policy.rules:
        for part in rule.by:
            own = [name for name, _ in policy.program.identity.user_sources] if part == "user" else [part]
            names = {str(name).partition(":")[2].lower() if ":" in str(name) else str(name) for name in own}
            if part not in IN_EVERY_LINE and names.isdisjoint(told):
                found.append(f"{rule.name} counts by {part}, which this log does not tell: here everybody lacks it.")
    return found


def opened(
    rules: Rules, store: str, clock: VirtualClock, functions: Mapping[str, Any] | None, closing: ExitStack
) -> Policy:
    """The policy of a file or a dictionary, on the lab's own store and clock."""
    place = open_in_virtual_time(store, clock)
    closing.callback(place.close)
    if isinstance(rules, (str, Path)):
        policy = Policy.load(rules, store=place, clock=clock, functions=functions)
    else:
        policy = Policy.parse(dict(rules), store=place, clock=clock, functions=functions)
    closing.callback(policy.close)
    identity = policy.program.identity
    identity.add_user_source("app:user")  # as the log says, whatever token told it
    return policy


def outcome(sources: list[Source], policy: Policy, tally: ReplayCounts, busiest: Busiest, top: int) -> dict[str, Any]:
    known = [(name, client) for name, client in tally.clients.items() if client.asked]
    folded = sum(tally.folded.values())
    ranks = ranked(known, tally)
    refused = [client_outcome(name, client) for name, client in known if client.refused]
    refused.sort(key=lambda one: (-one.refused, one.client))
    everyone = refused + sorted(
        [client_outcome(name, client) for name, client in known if not client.refused],
        key=lambda one: (-one.requests, one.client),
    )
    calm = ranks[2:]
    return {
        "logs": tuple([source.path for source in sources]),
        "rules": tuple([rule_outcome(policy, tally, name) for name in tally.rules]),
        "lines": sum(source.reader.lines for source in sources),
        "bad_lines": sum(source.reader.bad for source in sources),
        "bad_shown": tuple([line for source in sources for line in source.reader.shown]),
        "late_lines": sum(source.late for source in sources),
        "set_back": sum(source.set_back for source in sources),
        "broken": tuple([f"{source.path}: {source.broken}" for source in sources if source.broken]),
        "zones": tuple([source.reader.zone for source in sources]),
        "requests": tally.requests,
        "refused": tally.refused,
        "refused_in_shadow": tally.shadow,
        "clients": len(known) + folded,
        "clients_refused": len(refused),
        "first_at": (told(tally.first_at) or "") if tally.requests else "",
        "last_at": (told(tally.last_at) or "") if tally.requests else "",
        "seconds": (tally.last_at - tally.first_at) / SECOND,
        "calm_clients": sum(rank.clients for rank in calm),
        "calm_clients_refused": sum(rank.clients_refused for rank in calm),
        "ranks": tuple(ranks),
        "top_clients": tuple(sorted(everyone, key=lambda one: (-one.requests, one.client))[:top]),
        "top_refused": tuple(refused[:top]),
        "top_paths": tuple(
            [PathOutcome(path, count, tally.refused_paths[path]) for path, count in tally.paths.most_common(top)]
        ),
        "top_refused_paths": tuple(
            [PathOutcome(path, tally.paths[path], count) for path, count in tally.refused_paths.most_common(top)]
        ),
        "bin_seconds": tally.timeline.width / SECOND,
        "bins_at": told(max(0, tally.timeline.start)) or "",
        "asked_in_bin": tally.timeline.asked,
        "refused_in_bin": tally.timeline.refused,
        "exact": not folded and tally.paths_are_exact,
        "played": played(busiest),
        "everyone": everyone,
    }


def rule_outcome(policy: Policy, tally: ReplayCounts, name: str) -> RuleOutcome:
    count = tally.rules[name]
    rule = next((rule for rule in policy.rules if rule.name == name), None)
    limits = [f"{tier}: {limit}" if tier else str(limit) for tier, limit in rule.limits.items()] if rule else []
    return RuleOutcome(
        rule=name,
        limit="; ".join(limits) or "none",
        mode=rule.mode if rule else "enforce",
        asked=count.asked,
        refused=count.refused,
        refused_in_shadow=count.shadow,
        clients_refused=len(count.clients),
        first_refused_at=told(count.first_at),
        last_refused_at=told(count.last_at),
        longest_wait=count.longest_wait,
    )


def client_outcome(name: str, client: Client) -> ClientOutcome:
    return ClientOutcome(
        client=name,
        requests=client.asked,
        busiest_minute=client.peak,
        refused=client.refused,
        rules=dict(client.rules),
        first_refused_at=told(client.first_at),
        last_refused_at=told(client.last_at),
        longest_refused=client.longest / SECOND,
    )


def ranked(known: list[tuple[str, Client]], tally: ReplayCounts) -> list[RankOutcome]:
    """Clients by their busiest minute: who is hit, the few that call most or the many that do not?"""
    rows = [(client.peak, client.asked, client.refused, 1) for _, client in known]
    rows += [(peak, asked, 0, count) for (peak, asked), count in tally.folded.items()]
    rows.sort(reverse=True)
    total = sum(row[3] for row in rows)
    found = []
    place, index = 0, 0
    for _, upper, name in RANKS:
        until = -(-total * round(upper * 1000) // 1000)  # the busiest rank has somebody in it, if anybody is there
        members: list[tuple[int, int, int, int]] = []
        while index < len(rows) and place < until:
            peak, asked, refused, count = rows[index]
            taken = min(count, until - place)
            members.append((peak, asked, refused, taken))
            place += taken
            if taken < count:
                rows[index] = (peak, asked, refused, count - taken)
            else:
                index += 1
        found.append(
            RankOutcome(
                rank=name,
                clients=sum(taken for *_, taken in members),
                clients_refused=sum(1 for _, _, refused, _ in members if refused),
                requests=sum(asked * taken for _, asked, _, taken in members),
                refused=sum(refused for _, _, refused, _ in members),
                least_per_minute=min((peak for peak, *_ in members), default=0),
            )
        )
    return found


def played(busiest: Busiest) -> tuple[list[int], list[int], list[str]]:
    """Times from the beginning of a minute, and the number of the client, of the busiest stretch."""
    start = busiest.best[0].times[0] // MINUTE * MINUTE if busiest.best else 0
    numbers: dict[str, int] = {}
    who = [numbers.setdefault(client, len(numbers)) for block in busiest.best for client in block.clients]
    return [at - start for block in busiest.best for at in block.times], who, list(numbers)


def told(at: int) -> str | None:
    """``1995-08-01T04:00:01Z``; None for an instant that never came."""
    if at < 0:
        return None
    stamp = datetime.fromtimestamp(at // SECOND, tz=UTC)
    return stamp.strftime("%Y-%m-%dT%H:%M:%SZ")


def anonymised(made: Replay) -> Replay:
    from dataclasses import replace

    numbers = {client.client: f"client {number}" for number, client in enumerate(made.everyone, 1)}

    def hidden(clients: Iterable[ClientOutcome]) -> list[ClientOutcome]:
        return [replace(client, client=numbers[client.client]) for client in clients]

    times, who, names = made.played
    return replace(
        made,
        top_clients=tuple(hidden(made.top_clients)),
        top_refused=tuple(hidden(made.top_refused)),
        everyone=hidden(made.everyone),
        bad_shown=tuple([replace(line, text="") for line in made.bad_shown]),
        comparison=made.comparison.anonymised(numbers) if made.comparison else None,
        played=(times, who, [numbers.get(name, "client") for name in names]),
    )
