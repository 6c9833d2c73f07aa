"""Who answers which path of the HTTP door."""

from __future__ import annotations

import asyncio
import resource
from base64 import b64encode
from collections import deque
from functools import cache
from hashlib import sha256
from hmac import compare_digest
from importlib.resources import files
from time import perf_counter, time
from typing import TYPE_CHECKING, Any

from ratekeeper.errors import InvalidInput, InvalidRules, shown
from ratekeeper.service.http.api import Api, body_of, unknown
from ratekeeper.service.http.forward_auth import PREFIX, Auth
from ratekeeper.service.http.metrics import MEDIA, exposition
from ratekeeper.service.http.response import TEXT, answer, as_json, problem
from ratekeeper.service.http.server import Stream

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ratekeeper.rules.rule import Rule
    from ratekeeper.service.decider import Decider
    from ratekeeper.service.http.reservation_token import Seal
    from ratekeeper.service.http.server import Call, HttpConnection
    from ratekeeper.service.worker_counters import WorkerCounters

    Answer = bytes | Awaitable[bytes] | Stream

HTML = b"text/html; charset=utf-8"
HISTORY = 300  # seconds that the dashboard remembers
AT_ONCE = 200  # lines of metrics: about a millisecond
HELD = (("allowed",), ("refused", "blocked", "forbidden"), ("shadow_refused", "graced"))  # the last two passed


class HttpRoutes:
    """Routes calls; keeps what the dashboard shows."""

    def __init__(self, keeper: Decider, colleagues: WorkerCounters, seal: Seal) -> None:
        self.keeper = keeper
        self.colleagues = colleagues
        api, auth = Api(keeper, seal), Auth(keeper)
        self.auth = auth.serve
        guarded = self.guarded
        self.paths: dict[str, Callable[[Call], Answer]] = {path: guarded(api.serve) for path in api.calls}
        self.paths |= {
            PREFIX: auth.serve,
            "/": self.page,
            "/healthz": self.healthz,
            "/readyz": self.readyz,
            "/metrics": self.metrics,
            "/openapi.json": self.openapi,
            "/v1/live": guarded(self.live),
            "/v1/status": guarded(self.status),
            "/v1/admin/switch": self.switch,
            "/v1/admin/kill": self.kill,
            "/v1/admin/reload": self.reload,
        }
        self.history: deque[dict[str, Any]] = deque(maxlen=HISTORY)
        self.before: dict[str, dict[str, int]] = {}
        self.latest: dict[str, Any] = {}
        self.store_seconds = 0.0
        self.store_trouble = ""
        self.doors: list[Any] = []
        self.began_at = time()

    def route(self, call: Call) -> Answer:
        doors = self.keeper.tally.doors
        doors["http"] = doors.get("http", 0) + 1
        found = self.paths.get(call.path)
        if found is not None:
            return found(call)
        if call.path.startswith(PREFIX + "/"):
            return self.auth(call)
        return problem(404, f"{shown(call.path)}: expected one of {', '.join(self.paths)}.")

    def guarded(self, serve: Callable[[Call], Answer]) -> Callable[[Call], Answer]:
        """``serve``, for those who have the token, where there is one."""
        token = self.keeper.options.token
        if token is None:
            return serve
        return lambda call: serve(call) if has_token(call, token) else unauthorised()

    # Health.

    def healthz(self, call: Call) -> bytes:
        """Whether this process works at all."""
        return answer(200, b"ok\n", TEXT)

    async def readyz(self, call: Call) -> bytes:
        """Whether to send traffic here: not while closing, and not while decisions stand on nothing."""
        trouble = await self.keeper.probe() if self.keeper.is_ready else "closing"
        evicts = self.evicts() if not trouble else ""
        body = {
            "ready": self.keeper.is_ready,
            "store": trouble or "answers",
            "warnings": [*self.keeper.policy.warnings, *([evicts] if evicts else [])],
        }
        # A store that is away is no reason to take every instance out: on_store_error decides then.
        return answer(200 if self.keeper.is_ready else 503, as_json(body) + b"\n")

    def evicts(self) -> str:
        """What is wrong with a Redis that may throw our keys away."""
        settings = getattr(self.keeper.policy.async_store, "settings", None)
        if settings is None:
            return ""
        from ratekeeper.stores.redis.handshake import warned

        return "the store evicts keys: exhausted limits can be forgotten" if settings.shown in warned else ""

    async def metrics(self, call: Call) -> bytes:
        lines = []
        for line in exposition(self.colleagues.all(), self.keeper.policy.rules, self.gauges()):
            lines.append(line)
            if len(lines) % AT_ONCE == 0:
                await asyncio.sleep(0)  # with thousands of names it takes long, and nobody shall wait for all of it
        return answer(200, "\n".join([*lines, ""]).encode(), MEDIA)

    def gauges(self) -> dict[str, tuple[str, float]]:
        found = {
            "ratekeeper_store_up": ("Whether the store answers.", float(self.keeper.store_answers)),
            "ratekeeper_store_seconds": ("How long the store took to answer the last probe.", self.store_seconds),
            "ratekeeper_killed": ("Whether the kill switch is thrown.", float(self.keeper.switches.is_killed)),
            "ratekeeper_memory_bytes": ("The most memory that this worker has used.", memory()),
        }
        for door in self.doors:
            found[f"ratekeeper_{door.name}_connections"] = ("Open connections of this worker.", len(door.connections))
        return found

    def openapi(self, call: Call) -> bytes:
        return answer(200, files("ratekeeper.service.http").joinpath("openapi.json").read_bytes())

    # Dashboard.

    def page(self, call: Call) -> bytes:
        body, policy = page()
        fields = [
            (b"content-security-policy", policy),
            (b"referrer-policy", b"no-referrer"),
            (b"x-content-type-options", b"nosniff"),
            (b"cache-control", b"no-cache"),
        ]
        return answer(200, body, HTML, fields)

    def status(self, call: Call) -> bytes:
        """What the dashboard shows, once."""
        return answer(200, as_json(self.latest or self.tick()))

    def live(self, call: Call) -> Answer:
        """What the dashboard shows, every second, as server-sent events."""
        door = self.doors[0]
        if door.streams >= self.keeper.options.bounds.streams:
            return problem(503, "live: expected fewer dashboards at once. Close one.", [(b"retry-after", b"10")])
        fields = b"content-type: text/event-stream\r\ncache-control: no-store\r\nconnection: close\r\n"
        head = b"HTTP/1.1 200 OK\r\n%b\r\n" % fields

        async def run(connection: HttpConnection) -> None:
            connection.transport.write(b"event: history\ndata: %b\n\n" % as_json(list(self.history)))
            seen: Any = None
            while True:
                if self.latest is not seen and not connection.is_paused:  # a slow reader misses ticks
                    seen = self.latest
                    connection.transport.write(b"event: tick\ndata: %b\n\n" % as_json(seen))
                await asyncio.sleep(0.2)

        return Stream(head, run)

    def tick(self) -> dict[str, Any]:
        """Once a second: what has changed."""
        tally = self.colleagues.all()
        totals = tally.by_rule()
        point: dict[str, Any] = {"at": round(time(), 3), "rules": {}}
        for rule, results in totals.items():
            before = self.before.get(rule)
            if results != before:  # most names are quiet most of the time
                point["rules"][rule] = [
                    sum([results.get(name, 0) - (before or {}).get(name, 0) for name in names]) for names in HELD
                ]
        if self.before or not totals:
            self.history.append(point)
        self.before = totals
        switches, headroom = self.keeper.switches, tally.headroom
        own = {rule.name: rule.mode for rule in self.keeper.settings.rules}
        self.latest = {
            **point,
            "killed": switches.is_killed,
            "uptime": round(time() - self.began_at),
            "workers": self.keeper.options.workers,
            "store": {
                "kind": self.keeper.policy.store_url.partition("://")[0],
                "answers": self.keeper.store_answers,
                "trouble": self.store_trouble,
                "seconds": self.store_seconds,
            },
            "decision_seconds": quantiles(tally.seconds.bounds, tally.seconds.counts),
            "calls": tally.doors,
            "refused_clients": [list(one) for one in tally.most_refused()],
            "named": {
                rule: {"totals": results, "headroom": headroom.get(rule, 1.0)}
                for rule, results in totals.items() if rule not in own
            },
            "table": [
                {**described(rule), "file_mode": own.get(rule.name, rule.mode), "totals": totals.get(rule.name, {}),
                 "headroom": headroom.get(rule.name, 1.0)}
                for rule in self.keeper.policy.rules
            ],
            "can_admin": self.keeper.options.admin_token is not None,
        }  # fmt: skip
        return self.latest

    async def probe(self) -> None:
        began = perf_counter()
        self.store_trouble = await self.keeper.probe()
        self.store_seconds = perf_counter() - began

    # Changes, for whoever has the admin token.

    def admin(self, call: Call) -> bytes | None:
        """What to answer instead, if this caller may not."""
        token = self.keeper.options.admin_token
        if call.method != "POST":
            return problem(405, f"{call.path}: expected POST, got {call.method}.", [(b"allow", b"POST")])
        if token is None:
            return problem(403, "admin: expected a service that was started with --admin-token.")
        return None if has_token(call, token) else unauthorised()

    def switch(self, call: Call) -> bytes:
        """Set the mode of a rule; null gives it back to the file."""
        if (denied := self.admin(call)) is not None:
            return denied
        try:
            found = body_of(call)
            unknown(found, frozenset({"rule", "mode"}))
            rule, mode = found.get("rule"), found.get("mode")
            if rule not in [own.name for own in self.keeper.settings.rules]:
                raise InvalidInput(f"rule: expected the name of a rule, got {shown(rule)}.")
            self.keeper.switches.throw(str(rule), mode)
        except InvalidInput as error:
            return problem(400, str(error))
        self.keeper.apply_switches()
        return answer(200, as_json({"rule": rule, "mode": self.mode_of(str(rule))}))

    def mode_of(self, name: str) -> str:
        return next(rule.mode for rule in self.keeper.policy.rules if rule.name == name)

    def kill(self, call: Call) -> bytes:
        """Put all rules off at once, or back."""
        if (denied := self.admin(call)) is not None:
            return denied
        try:
            found = body_of(call)
            if not isinstance(found.get("killed"), bool):
                raise InvalidInput(f"killed: expected true or false, got {shown(found.get('killed'))}.")
        except InvalidInput as error:
            return problem(400, str(error))
        self.keeper.switches.kill(found["killed"])
        self.keeper.apply_switches()
        return answer(200, as_json({"killed": self.keeper.switches.is_killed}))

    def reload(self, call: Call) -> bytes:
        """Read the rules file again, in this worker; SIGHUP reaches all."""
        if (denied := self.admin(call)) is not None:
            return denied
        try:
            self.keeper.reload()
        except InvalidRules as error:
            return problem(422, str(error))
        return answer(200, as_json({"rules": len(self.keeper.policy.rules)}))


@cache
def page() -> tuple[bytes, bytes]:
    """The dashboard, and a policy under which nothing runs but its own script and style."""
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
        "limit": {tier or "everybody": str(limit) for tier, limit in rule.limits.items()},
        "on_store_error": rule.on_store_error,
        "enforce_percent": rule.enforce_percent,
    }


def quantiles(bounds: tuple[float, ...], counts: list[int]) -> dict[str, float]:
    """The bounds below which half and 99 % of all lie."""
    total, found = sum(counts), {}
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        below = 0
        for bound, count in zip([*bounds, bounds[-1] * 10], counts, strict=True):
            below += count
            if total and below >= share * total:
                found[name] = bound
                break
    return found


def has_token(call: Call, token: str) -> bool:
    scheme, _, given = (call.value(b"authorization") or "").partition(" ")
    return scheme.lower() == "bearer" and compare_digest(given.strip().encode(), token.encode())


def unauthorised() -> bytes:
    return problem(401, "expected 'Authorization: Bearer TOKEN' with the token.", [(b"www-authenticate", b"Bearer")])


def memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
