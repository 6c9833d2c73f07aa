"""replay: run a rules file over an access log, with the production code, on the time of the log."""

from __future__ import annotations

import gc
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratekeeper.errors import InvalidInput
from ratekeeper.identity.identity import Caller
from ratekeeper.lab.clock import VirtualClock, open_in_virtual_time
from ratekeeper.lab.compare import ComparisonCounts
from ratekeeper.lab.counts import BusiestStretch, ReplayCounts
from ratekeeper.lab.decide_log import LogDecider, limits_rate
from ratekeeper.lab.log_lines import LineReader
from ratekeeper.lab.log_stream import LogSource, merge_by_time
from ratekeeper.lab.outcome import RANKS, ClientOutcome, PathOutcome, PlayedStretch, RankOutcome, Replay, RuleOutcome
from ratekeeper.lab.suggest import Arrivals
from ratekeeper.rules.policy import Policy
from ratekeeper.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ratekeeper.lab.counts import ClientCounts

    Progress = Callable[[str, int, int, int], object]
    Rules = str | Path | Mapping[str, Any]

MOST_PLAYED = 20_000  # events in the sample of the interactive report
IN_EVERY_LOG = ("ip", "all", "method", "route")  # sources of keys


def replay(
    logs: str | Path | Sequence[str | Path],
    rules: Rules,
    *,
    against: Rules | None = None,
    format: str = "auto",
    fields: Mapping[str, str] | None = None,
    zone: str = "auto",
    suggest: float | None = None,
    sort: bool = False,
    top: int = 20,
    anonymous: bool = False,
    store: str = "memory://",
    functions: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Replay:
    """Run rules over access logs: ``replay("access.log", "rules.toml")``; ``-`` is the standard input.

    ``against`` are the current rules: ``comparison`` then says what ``rules`` would change.  ``suggest=0.001`` finds,
    for each rule, the lowest limit that refuses at most that share of its clients.  ``zone="ignored"`` reads all
    timestamps as UTC.  ``sort`` reads all lines first, and sorts them by time; otherwise a line that is more than 10 s
    late counts at the time of its neighbours.  ``anonymous`` replaces the names of clients by numbers.
    """
    paths = [str(logs)] if isinstance(logs, (str, Path)) else [str(log) for log in logs]
    if not paths:
        raise InvalidInput("replay: expected at least one log file, got none.")
    if suggest is not None and not 0 <= suggest < 1:
        raise InvalidInput(f"suggest: expected a share from 0 to 1, such as 0.001, got {suggest!r}.")
    with ExitStack() as closing:
        closing.enter_context(rare_garbage_collection())
        clock = VirtualClock()
        policy = open_policy(rules, store, clock, functions, closing)
        decider = LogDecider(policy, clock)
        comparison = None
        if against is not None:
            comparison = ComparisonCounts(LogDecider(open_policy(against, store, clock, functions, closing), clock))
        wants_facts = wants_more_than_users(policy)
        sources = []
        for path in paths:
            source = LogSource(path, LineReader(path, format, fields or {}, zone, wants_facts), sort)
            closing.callback(source.close)
            sources.append(source)
        arrivals = Arrivals(policy) if suggest is not None else None
        counts = ReplayCounts([rule.name for rule in policy.rules])
        busiest = BusiestStretch(MOST_PLAYED)
        by_user = decider.counts_users or (comparison is not None and comparison.old_rules.counts_users)
        total = sum(source.size for source in sources)
        for block in merge_by_time(sources):
            refusals = decider.decide(block)
            busiest.add(block)
            if arrivals is not None:
                arrivals.add(block, decider)
            named = block.named_by_user() if by_user else block
            counts.add(named, refusals, decider)
            if comparison is not None:
                comparison.add(block, named.clients, refusals, decider)
            if progress is not None:
                lines = sum(source.reader.lines for source in sources)
                progress("reading", sum(source.position for source in sources), total, lines)
        counts.finish(decider)
        fact_names = {name for source in sources for name in source.reader.fact_names}
        result = Replay(
            **figures(sources, policy, counts, top),
            played=sample(busiest, decider),
            suggestions=arrivals.suggestions(suggest or 0.0, progress) if arrivals is not None else (),
            comparison=comparison.comparison(top) if comparison is not None else None,
            warnings=(*policy.warnings, *log_warnings(policy, fact_names)),
        )
        return anonymised(result) if anonymous else result


@contextmanager
def rare_garbage_collection() -> Iterator[None]:
    """Collect cyclic garbage less often: a replay makes none, and looking for it took a fifth of the time."""
    before = gc.get_threshold()
    gc.set_threshold(200_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def wants_more_than_users(policy: Policy) -> bool:
    """Whether the rules look at headers or virtual hosts, which most lines need not be searched for."""
    sources = {str(source) for rule in policy.rules for source in rule.by}
    if "user" in sources:
        sources |= {source for source, _ in policy.compiled.identity.user_sources}
    headers = {"header:referer", "header:user-agent"}  # all that an access log has
    return (
        policy.compiled.requests.by_host
        or any(source.lower() in headers for source in sources)
        or any(source not in ("ip", "all", "user") and ":" not in source for source in sources)
        or any(callable(source) for rule in policy.rules for source in rule.by)
    )


def log_warnings(policy: Policy, fact_names: set[str]) -> list[str]:
    """Name the rules that need something that the log does not have; ``fact_names`` are the facts that it has."""
    leased = [rule.name for rule in policy.rules if any(limit.is_leased for limit in rule.limits.values())]
    lines = [f"{name} limits concurrency; a log has no durations, so this rule refused nothing." for name in leased]
    lines += [
        f"{rule.name} counts when {rule.count_when.text}; replay does not read responses, so each request counted."
        for rule in policy.rules
        if rule.count_when is not None
    ]
    for rule in policy.rules:
        for part in rule.by:
            sources = (
                [str(name) for name, _ in policy.compiled.identity.user_sources] if part == "user" else [str(part)]
            )
            names = {source.partition(":")[2].lower() if ":" in source else source for source in sources}
            if part not in IN_EVERY_LOG and names.isdisjoint(fact_names):
                lines.append(
                    f"{rule.name} counts by {part}; the log has no {part} field, so this rule counted by address."
                )
    return lines


def open_policy(
    rules: Rules, store: str, clock: VirtualClock, functions: Mapping[str, Any] | None, closing: ExitStack
) -> Policy:
    """Open the policy of a file or a dictionary, on a store of the lab and on its clock."""
    opened_store = open_in_virtual_time(store, clock)
    closing.callback(opened_store.close)
    if isinstance(rules, (str, Path)):
        policy = Policy.load(rules, store=opened_store, clock=clock, functions=functions)
    else:
        policy = Policy.parse(dict(rules), store=opened_store, clock=clock, functions=functions)
    closing.callback(policy.close)
    # A log has the user, but not the token or the key that the user was read from.
    policy.compiled.identity.add_user_source("app:user")
    return policy


def figures(sources: list[LogSource], policy: Policy, counts: ReplayCounts, top: int) -> dict[str, Any]:
    clients = [(name, client) for name, client in counts.clients.items() if client.requests]
    merged = sum(counts.merged_clients.values())
    ranks = rank_clients(clients, counts)
    refused = [client_outcome(name, client) for name, client in clients if client.refused]
    refused.sort(key=lambda client: (-client.refused, client.client))
    everyone = refused + sorted(
        [client_outcome(name, client) for name, client in clients if not client.refused], key=most_requests_first
    )
    calm = ranks[2:]
    return {
        "logs": tuple([source.path for source in sources]),
        "rules": tuple([rule_outcome(policy, counts, name) for name in counts.rules]),
        "lines": sum(source.reader.lines for source in sources),
        "bad_lines": sum(source.reader.bad for source in sources),
        "bad_shown": tuple([line for source in sources for line in source.reader.bad_examples]),
        "late_lines": sum(source.late for source in sources),
        "set_back": sum(source.clock_resets for source in sources),
        "broken": tuple([source.damage for source in sources if source.error]),
        "zones": tuple([source.reader.zone for source in sources]),
        "requests": counts.requests,
        "refused": counts.refused,
        "refused_in_shadow": counts.shadow,
        "clients": len(clients) + merged,
        "clients_refused": len(refused),
        "first_at": (utc_text(counts.first_at) or "") if counts.requests else "",
        "last_at": (utc_text(counts.last_at) or "") if counts.requests else "",
        "seconds": (counts.last_at - counts.first_at) / SECOND,
        "calm_clients": sum(rank.clients for rank in calm),
        "calm_clients_refused": sum(rank.clients_refused for rank in calm),
        "ranks": tuple(ranks),
        "top_clients": tuple(sorted(everyone, key=most_requests_first)[:top]),
        "top_refused": tuple(refused[:top]),
        "top_paths": tuple(
            [PathOutcome(path, count, counts.refused_paths[path]) for path, count in counts.paths.most_common(top)]
        ),
        "top_refused_paths": tuple(
            [PathOutcome(path, counts.paths[path], count) for path, count in counts.refused_paths.most_common(top)]
        ),
        "bin_seconds": counts.timeline.width / SECOND,
        "bins_at": utc_text(max(0, counts.timeline.start)) or "",
        "asked_in_bin": counts.timeline.requests,
        "refused_in_bin": counts.timeline.refused,
        "exact": not merged and counts.paths_are_exact,
        "everyone": everyone,
    }


def most_requests_first(client: ClientOutcome) -> tuple[int, str]:
    return -client.requests, client.client


def rule_outcome(policy: Policy, counts: ReplayCounts, name: str) -> RuleOutcome:
    rule_counts = counts.rules[name]
    rule = next((rule for rule in policy.rules if rule.name == name), None)
    limits = [f"{tier}: {limit}" if tier else limit for tier, limit in rule.limit_texts.items()] if rule else []
    return RuleOutcome(
        rule=name,
        limit="; ".join(limits) or "none",
        mode=rule.mode if rule else "enforce",
        asked=rule_counts.requests,
        refused=rule_counts.refused,
        refused_in_shadow=rule_counts.shadow,
        clients_refused=len(rule_counts.clients),
        first_refused_at=utc_text(rule_counts.first_refused_at),
        last_refused_at=utc_text(rule_counts.last_refused_at),
        longest_wait=rule_counts.longest_wait,
    )


def client_outcome(name: str, client: ClientCounts) -> ClientOutcome:
    return ClientOutcome(
        client=name,
        requests=client.requests,
        busiest_minute=client.busiest_minute,
        refused=client.refused,
        rules=dict(client.rules),
        first_refused_at=utc_text(client.first_refused_at),
        last_refused_at=utc_text(client.last_refused_at),
        longest_refused=client.longest_stretch / SECOND,
    )


def rank_clients(clients: list[tuple[str, ClientCounts]], counts: ReplayCounts) -> list[RankOutcome]:
    """Rank clients by their busiest minute: do the rules refuse the few busy ones or the many calm ones?"""
    # Busiest minute, requests, refusals, and how many clients had just these.
    rows = [(client.busiest_minute, client.requests, client.refused, 1) for _, client in clients]
    rows += [(minute, requests, 0, number) for (minute, requests), number in counts.merged_clients.items()]
    rows.sort(reverse=True)
    total = sum(row[3] for row in rows)
    ranks = []
    ranked, index = 0, 0
    for _, upper, name in RANKS:
        until = -(-total * round(upper * 1000) // 1000)  # rounded up: the busiest rank is never empty
        members: list[tuple[int, int, int, int]] = []
        while index < len(rows) and ranked < until:
            minute, requests, refused, number = rows[index]
            taken = min(number, until - ranked)
            members.append((minute, requests, refused, taken))
            ranked += taken
            if taken < number:
                rows[index] = (minute, requests, refused, number - taken)
            else:
                index += 1
        ranks.append(
            RankOutcome(
                rank=name,
                clients=sum(taken for *_, taken in members),
                clients_refused=sum(1 for _, _, refused, _ in members if refused),
                requests=sum(requests * taken for _, requests, _, taken in members),
                refused=sum(refused for _, _, refused, _ in members),
                least_per_minute=min((minute for minute, *_ in members), default=0),
            )
        )
    return ranks


def sample(busiest: BusiestStretch, decider: LogDecider) -> PlayedStretch:
    """The requests of the busiest stretch that meet the first rule with a limit, as that rule counts them."""
    counters = [
        counter for counter in decider.policy.compiled.counters if counter.constant and limits_rate(counter.default)
    ]
    if not counters or not busiest.best:
        return PlayedStretch()
    counter = counters[0]
    times: list[int] = []
    who: list[int] = []
    numbers: dict[str, int] = {}
    for block in busiest.best:
        for place, (at, client, text) in enumerate(zip(block.times, block.clients, block.request_lines, strict=True)):
            line = decider.request_line(text)
            if counter.name in line.rule_names:
                key = counter.key(Caller(counter.identity, decider.request(line, client, block.facts.get(place, {}))))
                times.append(at)
                who.append(numbers.setdefault(key, len(numbers)))
    limit = counter.default.limit.parts[0]  # type: ignore[union-attr]
    return PlayedStretch(counter.name, str(limit), times, who, counter.constant, counter.rule.max_delay)


def utc_text(at: int) -> str | None:
    """``1995-08-01T04:00:01Z``; None for a negative instant, which stands for "never"."""
    if at < 0:
        return None
    return datetime.fromtimestamp(at // SECOND, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def anonymised(result: Replay) -> Replay:
    numbers = {client.client: f"client {number}" for number, client in enumerate(result.everyone, 1)}

    def renamed(clients: Iterable[ClientOutcome]) -> list[ClientOutcome]:
        return [replace(client, client=numbers[client.client]) for client in clients]

    return replace(
        result,
        top_clients=tuple(renamed(result.top_clients)),
        top_refused=tuple(renamed(result.top_refused)),
        everyone=renamed(result.everyone),
        bad_shown=tuple([replace(line, text="") for line in result.bad_shown]),
        comparison=result.comparison.anonymised(numbers) if result.comparison else None,
    )
