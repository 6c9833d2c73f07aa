"""``ratekeeper serve``."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from ratekeeper.commands.output import err, mistakes


def serve(
    rules: Annotated[Path | None, typer.Argument(help="A rules file; without one, callers name their limits.")] = None,
    http: Annotated[
        str, typer.Option(help="HOST:PORT of the HTTP API and the dashboard; 'off' for none.")
    ] = "127.0.0.1:8080",
    grpc: Annotated[str | None, typer.Option(help="HOST:PORT of Envoy's rate limit service.")] = None,
    resp: Annotated[str | None, typer.Option(help="HOST:PORT for Redis clients.")] = None,
    workers: Annotated[int, typer.Option(min=1, max=256, help="Processes; they share exact limits.")] = 1,
    store: Annotated[
        str | None, typer.Option(help="In place of the rules' own: memory://, shm://NAME, redis://...")
    ] = None,
    envoy_config: Annotated[Path | None, typer.Option(help="A file of envoyproxy/ratelimit, taken as it is.")] = None,
    token: Annotated[str | None, typer.Option(envvar="RATEKEEPER_TOKEN", help="Asked of every caller.")] = None,
    admin_token: Annotated[str | None, typer.Option(envvar="RATEKEEPER_ADMIN_TOKEN", help="Asked for changes.")] = None,
    drain: Annotated[float, typer.Option(min=0, max=600, help="Seconds between 'not ready' and closing.")] = 0.0,
    state: Annotated[Path | None, typer.Option(help="A folder that keeps the switches over a restart.")] = None,
    log_format: Annotated[str, typer.Option(help="text or json")] = "text",
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing at the start.")] = False,
) -> None:
    """Answer HTTP, proxies, Envoy and Redis clients.

    \b
    ratekeeper serve rules.toml
    ratekeeper serve rules.toml --workers 4 --grpc 127.0.0.1:8081 --resp 127.0.0.1:6380
    ratekeeper serve --envoy-config ratelimit.yaml --http off --grpc 0.0.0.0:8081

    SIGHUP reads the rules again; SIGTERM finishes what is under way, and ends.
    """
    from ratekeeper.service.options import Options

    with mistakes():
        set_up_logs(log_format)
        options = Options(
            rules=rules, envoy_config=envoy_config, http=None if http == "off" else http, grpc=grpc, resp=resp,
            store=store, workers=workers, token=token, admin_token=admin_token, drain=drain, state=state,
            log_format=log_format,
        )  # fmt: skip
        from ratekeeper.service.start import start

        raise typer.Exit(start(options, (lambda addresses: None) if quiet else greeting(options)))


def greeting(options: Any) -> Any:
    """What to open, and what to type: said when the doors are open."""

    def say(addresses: dict[str, tuple[str, int]]) -> None:
        def place(name: str) -> str:
            host, port = addresses[name]
            host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)
            return f"{host}:{port}"

        lines = [f"ratekeeper is ready (process {os.getpid()})"]
        if "http" in addresses:
            url = f"http://{place('http')}"
            secret = ' -H "authorization: Bearer $RATEKEEPER_TOKEN"' if options.token else ""
            body = """'{"key":"me","limit":"3/minute"}'"""
            lines += [
                f"  dashboard  {url}/",
                f"  try it     curl -s{secret} {url}/v1/check -d {body}",
                f"  see 429    for i in 1 2 3 4 5; do curl -s -o /dev/null -w '%{{http_code}}\\n'{secret} "
                f"'{url}/v1/check?deny_status=429' -d {body}; done",
                f"  headers    curl -si{secret} {url}/v1/auth -H 'x-original-uri: /api/search'",
            ]
        if options.rules is not None:
            lines.append(f"  reload     change {options.rules}, then kill -HUP {os.getpid()}")
        if "resp" in addresses:
            host, port = addresses["resp"]
            lines.append(f"  Redis      redis-cli -h {host} -p {port} CL.THROTTLE me 2 3 60")
        if "grpc" in addresses:
            lines.append(f"  Envoy      envoy.service.ratelimit.v3.RateLimitService at {place('grpc')}")
        err.print("\n".join(lines), markup=False, soft_wrap=True)

    return say


def set_up_logs(form: str) -> None:
    from ratekeeper.errors import InvalidInput, shown
    from ratekeeper.service.json_logs import JsonLines

    if form not in ("text", "json"):
        raise InvalidInput(f"--log-format: expected text or json, got {shown(form)}.")
    lines = logging.StreamHandler()
    lines.setFormatter(JsonLines() if form == "json" else logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log = logging.getLogger("ratekeeper")
    log.handlers[:] = [lines]
    log.setLevel(logging.INFO)
    log.propagate = False
