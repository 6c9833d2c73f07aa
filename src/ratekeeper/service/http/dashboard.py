"""The dashboard: its page, its figures once a second as server-sent events, and the same figures once."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections import deque
from functools import cache
from hashlib import sha256
from importlib.resources import files
from time import perf_counter, time
from typing import TYPE_CHECKING, Any

from ratekeeper.service.http.response import as_json, problem, response
from ratekeeper.service.http.server import Stream

if TYPE_CHECKING:
    from ratekeeper.rules.rule import Rule
    from ratekeeper.service.decider import Decider
    from ratekeeper.service.http.server import Call, HttpConnection, HttpListener
    from ratekeeper.service.worker_counters import WorkerCounters

HTML = b"text/html; charset=utf-8"
HISTORY = 300  # seconds that the dashboard shows
GROUPS = (("allowed",), ("refused", "blocked", "forbidden"), ("shadow_refused", "graced"))  # the last two have passed


class Dashboard:
    """What the dashboard shows, kept up to date."""

    listener: HttpListener  # set when the listener opens

    def __init__(self, decider: Decider, worker_counters: WorkerCounters) -> None:
        self.decider = decider
        self.worker_counters = worker_counters
        self.history: deque[dict[str, Any]] = deque(maxlen=HISTORY)
        self.previous: dict[str, dict[str, int]] = {}  # results by rule at the previous tick
        self.counters = worker_counters.counters  # of all workers at the previous tick
        self.point: dict[str, Any] = {}  # of the history, at the previous tick
        self.shown_point: dict[str, Any] | None = None
        self.shown: dict[str, Any] = {}  # all figures at that point
        self.store_seconds = 0.0
        self.store_trouble = ""
        self.began_at = time()

    def page(self, call: Call) -> bytes:
        body, policy = page()
        fields = [
            (b"content-security-policy", policy),
            (b"referrer-policy", b"no-referrer"),
            (b"x-content-type-options", b"nosniff"),
            (b"cache-control", b"no-cache"),
        ]
        return response(200, body, HTML, fields)

    def status(self, call: Call) -> bytes:
        """The figures of the dashboard, once."""
        return response(200, as_json(self.figures()))

    def live(self, call: Call) -> bytes | Stream:
        """The figures of the dashboard, every second, as server-sent events."""
        if self.listener.streams >= self.decider.options.bounds.streams:
            return problem(503, "live: expected fewer dashboards at once. Close one.", [(b"retry-after", b"10")])
        fields = b"content-type: text/event-stream\r\ncache-control: no-store\r\nconnection: close\r\n"
        head = b"HTTP/1.1 200 OK\r\n%b\r\n" % fields

        async def run(connection: HttpConnection) -> None:
            connection.transport.write(b"event: history\ndata: %b\n\n" % as_json(list(self.history)))
            sent: Any = None
            while True:
                if self.point is not sent and not connection.is_write_paused:  # a slow reader misses ticks
                    sent = self.point
                    connection.transport.write(b"event: tick\ndata: %b\n\n" % as_json(self.figures()))
                await asyncio.sleep(0.2)

        return Stream(head, run)

    def tick(self) -> dict[str, Any]:
        """Once a second: collect what all workers have counted; returns what has changed."""
        counters = self.worker_counters.all()
        totals = counters.by_rule()
        point: dict[str, Any] = {"at": round(time(), 3), "rules": {}}
        for rule, results in totals.items():
            previous = self.previous.get(rule)
            if results != previous:  # most rules are quiet most of the time
                point["rules"][rule] = [
                    sum([results.get(name, 0) - (previous or {}).get(name, 0) for name in names]) for names in GROUPS
                ]
        if self.previous or not totals:
            self.history.append(point)
        self.previous, self.counters, self.point = totals, counters, point
        return point

    def figures(self) -> dict[str, Any]:
        """All that the page shows of the last tick: made when somebody looks, as thousands of rules take long."""
        point = self.point or self.tick()
        if self.shown_point is point:
            return self.shown
        decider, counters, totals = self.decider, self.counters, self.previous
        headroom = counters.headroom
        file_modes = decider.file_modes()
        self.shown_point = point
        self.shown = {
            **point,
            "killed": decider.overrides.is_killed,
            "uptime": round(time() - self.began_at),
            "workers": decider.options.workers,
            "store": {
                "kind": decider.policy.store_url.partition("://")[0],
                "answers": decider.store_answers,
                "trouble": self.store_trouble,
                "seconds": self.store_seconds,
            },
            "decision_seconds": quantiles(counters.seconds.bounds, counters.seconds.counts),
            "calls": counters.calls,
            "refused_clients": [list(client) for client in counters.most_refused()],
            "named": {
                rule: {"totals": results, "headroom": headroom.get(rule, 1.0)}
                for rule, results in totals.items() if rule not in file_modes
            },
            "table": [
                {**described(rule), "file_mode": file_modes.get(rule.name, rule.mode),
                 "totals": totals.get(rule.name, {}), "headroom": headroom.get(rule.name, 1.0)}
                for rule in decider.policy.rules
            ] + [
                {**listed(name, decider.overrides.mode(name, mode), limit), "file_mode": mode,
                 "totals": totals.get(name, {}), "headroom": headroom.get(name, 1.0)}
                for limits in decider.listed for name, mode, limit in limits()
            ],
            "can_admin": decider.options.admin_token is not None,
        }  # fmt: skip
        return self.shown

    async def probe(self) -> None:
        """Ask the store something, and time it."""
        began = perf_counter()
        self.store_trouble = await self.decider.probe()
        self.store_seconds = perf_counter() - began


@cache
def page() -> tuple[bytes, bytes]:
    """The page, and a content security policy that allows only its own script and style."""
    body = files("ratekeeper.service.http").joinpath("dashboard.html").read_bytes()
    sources = []
    for tag in (b"style", b"script"):
        text = body.partition(b"<%b>" % tag)[2].partition(b"</%b>" % tag)[0]
        sources.append(b"%b-src 'sha256-%b'" % (tag, b64encode(sha256(text).digest())))
    policy = (
        b"default-src 'none'; %b; connect-src 'self'; img-src data:; frame-ancestors 'none'; base-uri 'none'; "
        b"form-action 'none'" % b"; ".join(sources)
    )
    return body, policy


def described(rule: Rule) -> dict[str, Any]:
    return {
        "name": rule.name,
        "mode": rule.mode,
        "match": [pattern.text for pattern in rule.patterns],
        "by": [source if isinstance(source, str) else "function" for source in rule.by],
        "limit": {tier or "everybody": limit for tier, limit in rule.limit_texts.items()},
        "on_store_error": rule.on_store_error,
        "enforce_percent": rule.enforce_percent,
    }


def listed(name: str, mode: str, limit: str) -> dict[str, Any]:
    """A limit of a listener's own file, in the words of ``described``."""
    return {
        "name": name,
        "mode": mode,
        "match": [],
        "by": ["descriptor"],
        "limit": {"everybody": limit},
        "on_store_error": "",
        "enforce_percent": 100,
    }


def quantiles(bounds: tuple[float, ...], counts: list[int]) -> dict[str, float]:
    """The bucket bounds of p50 and p99."""
    total, result = sum(counts), {}
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        below = 0
        for bound, count in zip([*bounds, bounds[-1] * 10], counts, strict=True):
            below += count
            if total and below >= share * total:
                result[name] = bound
                break
    return result
