"""The targets that the suite knows by name, and how each is started.  ``conformance.install`` installs the peers."""

from __future__ import annotations

import atexit
import json
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from conformance.adapters.envoy import COUNTS, UNITS, EnvoySession, write_config
from conformance.adapters.http import HttpSession, middleware_form
from conformance.adapters.resp import RespSession
from conformance.limits import SECOND, Limit, Promises
from conformance.reference.broken import BUGS, BrokenTarget
from conformance.session import CallableSession, LineSession, Session, load

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "conformance"  # where the peers are installed
PEERS = Path(__file__).parent / "peers"


@dataclass(frozen=True)
class Target:
    name: str
    language: str
    family: str  # "ours", "reference" or "peer"
    start: Callable[[str | None], Session]
    uses_redis: bool = False
    start_real: Callable[[str | None], Session] | None = None  # on real time, if ``start`` is on virtual time
    needs: tuple[Path | str, ...] = ()  # files and modules without which it cannot start
    hint: str = ""

    def missing(self) -> str | None:
        for need in self.needs:
            if not (need.exists() if isinstance(need, Path) else find_spec(need)):
                shown = need.relative_to(ROOT) if isinstance(need, Path) else need
                return f"{shown} is not there. {self.hint or 'Run python -m conformance install.'}"
        return None


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


def line(*command: str | Path, **more: str) -> Callable[[str | None], Session]:
    """A program on the line protocol."""
    words = [str(word) for word in command]
    return lambda store: LineSession(words, store, env=environment(**more))


# Ours

SERVE = [sys.executable, "-m", "ratekeeper", "serve", "--quiet"]
OUR_FEATURES = (
    "cost",
    "positive_cost",
    "remaining",
    "retry_after",
    "reset_after",
    "keys",
    "refusal_free",
    "concurrent",
    "bounded_memory",
)


def ours_line(kind: str, clock: str) -> Callable[[str | None], Session]:
    return line(sys.executable, "-m", "conformance.peers.python.ratekeeper_library", kind, clock,
                CONFORMANCE_SEGMENT=segment())  # fmt: skip


@cache
def segment() -> str:
    """A folder for shared memory that all processes of this run share."""
    memory = Path("/dev/shm")
    folder = tempfile.mkdtemp(prefix="conformance-", dir=memory if memory.is_dir() else None)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def our_form(limiter: str, limits: list[Limit], key: str, cost: int) -> tuple[str, str, str | None, dict[str, str]]:
    """``POST /v1/check``; several limits are several checks, all or nothing."""

    def words(limit: Limit) -> str:
        burst = f" burst {limit.burst}" if limit.algorithm in ("gcra", "token_bucket", "leaky_bucket") else ""
        return f"{limit.count} per {limit.period // SECOND} seconds{burst} {limit.algorithm}"

    if len(limits) == 1:
        body: dict[str, Any] = {"key": f"{limiter}:{key}", "limit": words(limits[0]), "cost": cost}
    else:
        body = {"checks": [{"key": f"{limiter}:{key}", "limit": words(each), "cost": cost} for each in limits]}
    return "POST", "/v1/check?deny_status=429", json.dumps(body), {"Content-Type": "application/json"}


def our_http(store: str | None) -> Session:
    promises = Promises(
        ("fixed_window", "sliding_log", "sliding_window", "token_bucket", "gcra"),
        frozenset(OUR_FEATURES) | {"several", "http"},
    )
    command = [*SERVE, "--http", "127.0.0.1:{port}"]
    return HttpSession("ratekeeper serve, HTTP", our_version(), promises, command, form=our_form, reads="json")


def our_resp(store: str | None) -> Session:
    promises = Promises(("gcra",), frozenset(OUR_FEATURES), resolution=SECOND)
    command = [*SERVE, "--http", "off", "--resp", "127.0.0.1:{port}"]
    return RespSession("ratekeeper serve, CL.THROTTLE", our_version(), promises, command)


def our_envoy(store: str | None) -> Session:
    promises = Promises(
        ("fixed_window",),
        frozenset({"cost", "positive_cost", "remaining", "keys", "refusal_free", "concurrent", "bounded_memory"}),
        units=tuple(UNITS),
        counts=COUNTS,
    )
    config = Path(tempfile.mkdtemp(prefix="conformance-")) / "ratelimit.yaml"
    write_config(config)
    command = [*SERVE, "--http", "off", "--grpc", "127.0.0.1:{port}", "--envoy-config", str(config)]
    return EnvoySession("ratekeeper serve, Envoy RLS", our_version(), promises, command)


def our_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("ratekeeper")
    except PackageNotFoundError:
        return "?"


def ours() -> list[Target]:
    has = ("ratekeeper",)
    hint = "Install ratekeeper."
    return [
        Target("ratekeeper-memory", "Python", "ours", ours_line("memory", "virtual"), needs=has, hint=hint),
        Target("ratekeeper-pure", "Python", "ours", line(
            sys.executable, "-m", "conformance.peers.python.ratekeeper_library", "memory", "virtual",
            RATEKEEPER_PURE="1"), needs=has, hint=hint),
        Target("ratekeeper-shm", "Python", "ours", ours_line("shm", "virtual"), needs=has, hint=hint),
        Target("ratekeeper-redis", "Python", "ours", ours_line("redis", "virtual"), True,
               start_real=ours_line("redis", "real"), needs=has, hint=hint),
        Target("ratekeeper-http", "any", "ours", our_http, needs=has, hint=hint),
        Target("ratekeeper-resp", "any", "ours", our_resp, needs=has, hint=hint),
        Target("ratekeeper-envoy", "any", "ours", our_envoy, needs=(*has, "grpc"), hint=hint),
    ]  # fmt: skip


# Peers

PYTHON = BUILD / "python" / "bin" / "python"
NODE = BUILD / "node" / "node_modules"


def python_peer(name: str, module: str, *, redis: bool = False, real: bool = False) -> Target:
    command = (PYTHON, "-m", f"conformance.peers.python.{module}")
    return Target(name, "Python", "peer", line(*command), redis, needs=(PYTHON,))


def http_peer(name: str, package: str, promises: Promises, command: list[str | Path], language: str,
              *needs: Path | str) -> Target:  # fmt: skip
    """An application behind a middleware: its program is told its port."""

    def start(store: str | None) -> Session:
        words = [str(word) for word in command]
        return HttpSession(package, version_of(language, package), promises, [*words, "{port}"], form=middleware_form,
                           env=environment())  # fmt: skip

    return Target(name, language, "peer", start, needs=needs)


def version_of(language: str, package: str) -> str:
    """The installed version of a Python or Node package."""
    import subprocess

    if language == "Node":
        return str(json.loads((NODE / package / "package.json").read_text())["version"])
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    return subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def http_promises(algorithm: str, *more: str, resolution: int = SECOND, units: tuple[int, ...] = (1, 60, 3600),
                  has: tuple[str, ...] = ("keys", "concurrent", "http")) -> Promises:  # fmt: skip
    return Promises((algorithm,), frozenset((*has, *more)), resolution=resolution, units=units, has_burst=False)


# One bucket for each key is the application's own work: no promise about memory or threads.
LOG_PROMISES = http_promises("sliding_log", "refusal_free", has=("keys", "http"))


def node_peer(name: str, file: str, *, redis: bool = False) -> Target:
    return Target(
        name,
        "Node",
        "peer",
        line("node", "--expose-gc", PEERS / "node" / file, NODE_PEERS=str(NODE)),
        redis,
        needs=(NODE,),
    )


def peers() -> list[Target]:
    django: list[str | Path] = [PYTHON, "-m", "conformance.peers.python.django_http"]
    return [
        python_peer("limits", "limits_peer"),
        python_peer("limits-redis", "limits_peer", redis=True),
        python_peer("throttled-py", "throttled_peer"),
        python_peer("throttled-py-redis", "throttled_peer", redis=True),
        python_peer("pyrate-limiter", "pyrate_peer"),
        python_peer("pyrate-limiter-redis", "pyrate_peer", redis=True),
        python_peer("aiolimiter", "aiolimiter_peer"),
        python_peer("token-bucket", "token_bucket_peer"),
        http_peer("traffik", "traffik", http_promises("fixed_window", "retry_after"),
                  [PYTHON, "-m", "conformance.peers.python.traffik_http"], "Python", PYTHON),
        http_peer("slowapi", "slowapi", http_promises("fixed_window", "retry_after"),
                  [PYTHON, "-m", "conformance.peers.python.slowapi_http"], "Python", PYTHON),
        http_peer("flask-limiter", "flask-limiter", http_promises("fixed_window", "retry_after"),
                  [PYTHON, "-m", "conformance.peers.python.flask_http"], "Python", PYTHON),
        http_peer("fastapi-limiter", "fastapi-limiter", LOG_PROMISES,
                  [PYTHON, "-m", "conformance.peers.python.fastapi_http"], "Python", PYTHON),
        http_peer("drf", "djangorestframework",
                  http_promises("sliding_log", "retry_after", "refusal_free", has=("keys", "http")),
                  [*django, "drf"], "Python", PYTHON),
        http_peer("django-ratelimit", "django-ratelimit", http_promises("fixed_window", has=("keys", "concurrent")),
                  [*django, "ratelimit"], "Python", PYTHON),
        node_peer("rate-limiter-flexible", "flexible.mjs"),
        node_peer("rate-limiter-flexible-redis", "flexible.mjs", redis=True),
        node_peer("bottleneck", "bottleneck.mjs"),
        node_peer("limiter", "limiter.mjs"),
        http_peer("express-rate-limit", "express-rate-limit", http_promises("first_use_window", "retry_after"),
                  ["node", PEERS / "node" / "express.mjs"], "Node", NODE),
        *(Target(name, "Go", "peer", line(BUILD / "go" / "peers", which), redis, needs=(BUILD / "go" / "peers",))
          for name, which, redis in (("x-time-rate", "xtime", False), ("throttled-go", "throttled", False),
                                     ("ulule-limiter", "ulule", False), ("redis-rate", "redis_rate", True))),
        Target("governor", "Rust", "peer", line(BUILD / "rust" / "release" / "governor-peer"),
               needs=(BUILD / "rust" / "release" / "governor-peer",)),
        *(Target(name, "Java", "peer", line("java", "-cp", f"{BUILD / 'java' / 'classes'}:{BUILD / 'java' / 'lib'}/*",
                                            "Peers", which), needs=(BUILD / "java" / "classes" / "Peers.class",))
          for name, which in (("bucket4j", "bucket4j"), ("resilience4j", "resilience4j"), ("guava", "guava"))),
    ]  # fmt: skip


def reference() -> list[Target]:
    return [Target("tiny", "Python", "reference", line(sys.executable, "-m", "conformance.reference.tiny"))]


def all_targets() -> dict[str, Target]:
    return {target.name: target for target in (*reference(), *ours(), *peers())}


def find(text: str) -> Target:
    """A known target by its name, or one that ``text`` describes: see the README."""
    known = all_targets()
    if text in known:
        return known[text]
    kind, _, rest = text.partition(":")
    if kind == "broken":
        if rest not in BUGS:
            raise ValueError(f"broken: expected one of {', '.join(BUGS)}, got {rest!r}.")
        return Target(text, "Python", "reference", lambda store: CallableSession(BrokenTarget, rest))
    if kind in ("python", "python+redis"):
        made = load(rest)
        return Target(text, "Python", "peer", lambda store: CallableSession(made, store), kind.endswith("redis"))
    if kind in ("line", "line+redis"):
        return Target(text, "any", "peer", line(*shlex.split(rest)), kind.endswith("redis"))
    if kind in ("http", "resp", "envoy"):
        port, _, file = rest.partition("?")
        if not port.isdigit() or not file:
            raise ValueError(f"target: expected {kind}:PORT?PROMISES.json, got {kind}:{rest}.")
        promises = Promises.from_json(json.loads(Path(file).read_text("utf-8")))
        make = {"http": HttpSession, "resp": RespSession, "envoy": EnvoySession}[kind]
        name = f"{kind} server on port {port}"
        return Target(text, "any", "peer", lambda store: make(name, "?", promises, None, port=int(port)))
    raise ValueError(
        f"target: expected a name from `python -m conformance list`, or python:, line:, http:, resp: or envoy: with an "
        f"address, got {text!r}."
    )
