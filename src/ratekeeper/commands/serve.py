"""``ratekeeper serve``: run the service."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from ratekeeper.commands.output import err, report_errors


def serve(
    rules: Annotated[
        Path | None, typer.Argument(help="The rules file; without one, callers name their own limits.")
    ] = None,
    http: Annotated[
        str, typer.Option(help="HOST:PORT of the HTTP API and the dashboard, or 'off'.")
    ] = "127.0.0.1:8080",
    grpc: Annotated[str | None, typer.Option(help="HOST:PORT of the Envoy rate limit service (RLS v3).")] = None,
    resp: Annotated[str | None, typer.Option(help="HOST:PORT for Redis clients (CL.THROTTLE).")] = None,
    workers: Annotated[
        int, typer.Option(min=1, max=256, help="Number of processes; together they keep each limit exactly.")
    ] = 1,
    store: Annotated[
        str | None, typer.Option(help="Store URL, overrides the rules file: memory://, shm://NAME, redis://...")
    ] = None,
    envoy_config: Annotated[Path | None, typer.Option(help="Limits from an envoyproxy/ratelimit file.")] = None,
    token: Annotated[
        str | None, typer.Option(envvar="RATEKEEPER_TOKEN", help="Bearer token every caller must send.")
    ] = None,
    admin_token: Annotated[
        str | None, typer.Option(envvar="RATEKEEPER_ADMIN_TOKEN", help="Token required for admin changes.")
    ] = None,
    drain: Annotated[
        float, typer.Option(min=0, max=600, help="Seconds to stay open after reporting 'not ready'.")
    ] = 0.0,
    state: Annotated[Path | None, typer.Option(help="Directory that keeps overrides across restarts.")] = None,
    log_format: Annotated[str, typer.Option(help="Format of log lines: text or json.")] = "text",
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not print the start-up message.")] = False,
) -> None:
    """Run the rate limit service for HTTP clients, proxies, Envoy and Redis clients.

    \b
    ratekeeper serve rules.toml
    ratekeeper serve rules.toml --workers 4 --grpc 127.0.0.1:8081 --resp 127.0.0.1:6380
    ratekeeper serve --envoy-config ratelimit.yaml --http off --grpc 0.0.0.0:8081

    SIGHUP reloads the rules.  SIGTERM finishes the requests in progress, then exits.
    """
    from ratekeeper.service.options import Options

    with report_errors():
        set_up_logs(log_format)
        options = Options(
            rules=rules, envoy_config=envoy_config, http=None if http == "off" else http, grpc=grpc, resp=resp,
            store=store, workers=workers, token=token, admin_token=admin_token, drain=drain, state=state,
            log_format=log_format,
        )  # fmt: skip
        from ratekeeper.service.start import start

        raise typer.Exit(start(options, (lambda addresses: None) if quiet else greeting(options)))


def greeting(options: Any) -> Any:
    """Return the function that prints what to open and what to type, once the service listens."""

    def print_greeting(addresses: dict[str, tuple[str, int]]) -> None:
        def address(name: str) -> str:
            host, port = addresses[name]
            host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)
            return f"{host}:{port}"

        lines = [f"ratekeeper is ready (process {os.getpid()})"]
        if "http" in addresses:
            url = f"http://{address('http')}"
            auth = ' -H "authorization: Bearer $RATEKEEPER_TOKEN"' if options.token else ""
            body = """'{"key":"me","limit":"3/minute"}'"""
            lines += [
                f"  dashboard  {url}/",
                f"  try it     curl -s{auth} {url}/v1/check -d {body}",
                f"  see 429    for i in 1 2 3 4 5; do curl -s -o /dev/null -w '%{{http_code}}\\n'{auth} "
                f"'{url}/v1/check?deny_status=429' -d {body}; done",
                f"  headers    curl -si{auth} {url}/v1/auth -H 'x-original-uri: /api/search'",
            ]
        if options.rules is not None:
            lines.append(f"  reload     edit {options.rules}, then kill -HUP {os.getpid()}")
        if "resp" in addresses:
            host, port = addresses["resp"]
            lines.append(f"  Redis      redis-cli -h {host} -p {port} CL.THROTTLE me 2 3 60")
        if "grpc" in addresses:
            lines.append(f"  Envoy      envoy.service.ratelimit.v3.RateLimitService at {address('grpc')}")
        err.print("\n".join(lines), markup=False, soft_wrap=True)

    return print_greeting


def set_up_logs(log_format: str) -> None:
    from ratekeeper.errors import InvalidInput, shown
    from ratekeeper.service.json_logs import JsonLines

    if log_format not in ("text", "json"):
        raise InvalidInput(f"--log-format: expected text or json, got {shown(log_format)}.")
    handler = logging.StreamHandler()
    handler.setFormatter(
        JsonLines() if log_format == "json" else logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    )
    log = logging.getLogger("ratekeeper")
    log.handlers[:] = [handler]
    log.setLevel(logging.INFO)
    log.propagate = False
