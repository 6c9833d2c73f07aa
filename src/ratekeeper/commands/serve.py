"""``ratekeeper serve``: run the service."""

from __future__ import annotations

import logging
import os
import secrets
from pathlib import Path
from typing import Annotated, Any

import typer

from ratekeeper.commands.output import err, report_errors

DEFAULT_HTTP = "127.0.0.1:8080"


def serve(
    rules: Annotated[
        Path | None, typer.Argument(help="The rules file; without one, callers name their own limits.")
    ] = None,
    host: Annotated[
        str | None, typer.Option(metavar="HOST", help="Address of the HTTP API and the dashboard; 0.0.0.0 for all.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(metavar="PORT", min=0, max=65_535, help="Port of the HTTP API and the dashboard.")
    ] = None,
    http: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Both in one, or 'off' for no HTTP listener.")
    ] = DEFAULT_HTTP,
    grpc: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The Envoy rate limit service (RLS v3).")
    ] = None,
    resp: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="For Redis clients (CL.THROTTLE).")] = None,
    workers: Annotated[
        int, typer.Option(min=1, max=256, help="Number of processes; together they keep each limit exactly.")
    ] = 1,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar="RATEKEEPER_STORE",
            help="Store URL, overrides the rules file: memory://, shm://NAME, redis://...",
        ),
    ] = None,
    envoy_config: Annotated[
        Path | None, typer.Option(help="Limits from an envoyproxy/ratelimit file, or a folder of them.")
    ] = None,
    envoy_compat: Annotated[
        bool, typer.Option("--envoy-compat", help="Count refused requests too, exactly as envoyproxy/ratelimit.")
    ] = False,
    envoy_shadow: Annotated[
        bool, typer.Option("--envoy-shadow", help="Refuse nothing; statuses say what would be refused.")
    ] = False,
    envoy_quota: Annotated[bool, typer.Option("--envoy-quota", help="Put every limit in quota mode.")] = False,
    envoy_metadata: Annotated[
        bool, typer.Option("--envoy-metadata", help="Add dynamic metadata to responses.")
    ] = False,
    envoy_headers: Annotated[
        str | None,
        typer.Option(
            metavar="STYLE",
            help="Headers for clients: x-ratelimit (the usual), ratelimit, or off if Envoy adds its own.",
        ),
    ] = None,
    token: Annotated[
        str | None, typer.Option(envvar="RATEKEEPER_TOKEN", help="Bearer token every caller must send.")
    ] = None,
    admin_token: Annotated[
        str | None, typer.Option(envvar="RATEKEEPER_ADMIN_TOKEN", help="Token required for admin changes.")
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Name by which browsers may call the service; may be repeated."),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(help="Certificate chain (PEM): every listener then speaks TLS only.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Private key of the certificate (PEM).")] = None,
    tls_client_ca: Annotated[
        Path | None, typer.Option(help="Authorities (PEM) that must have signed the certificates of clients.")
    ] = None,
    drain: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, max=600, help="Time to stay open after reporting 'not ready'.")
    ] = 0.0,
    state: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Directory that keeps overrides across restarts.")
    ] = None,
    log_format: Annotated[str, typer.Option(metavar="text|json", help="Format of log lines.")] = "text",
    resp_idle: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0, help="Time after which an idle connection of a Redis client is closed; 0: never."
        ),
    ] = 900.0,
    max_limits: Annotated[
        int, typer.Option(min=1, max=65_536, help="Number of different limits that callers may name.")
    ] = 1024,
    table_memory: Annotated[
        int,
        typer.Option(
            metavar="MEGABYTES", min=1, max=1_000_000, help="Memory that the limits named by callers may take in all."
        ),
    ] = 256,
    rule_memory: Annotated[
        int,
        typer.Option(
            metavar="MEGABYTES",
            min=1,
            max=1_000_000,
            help="Shared memory for the tables of the rules, with several workers.",
        ),
    ] = 256,
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not print the start-up message.")] = False,
) -> None:
    """Run the rate limit service for HTTP clients, proxies, Envoy and Redis clients.

    \b
    ratekeeper serve rules.toml
    ratekeeper serve rules.toml --workers 4 --grpc 127.0.0.1:8081 --resp 127.0.0.1:6380
    ratekeeper serve rules.toml --host 0.0.0.0 --port 9000
    ratekeeper serve --envoy-config ratelimit.yaml --http off --grpc 0.0.0.0:8081

    SIGHUP reloads the rules and the certificates.  SIGTERM finishes the requests in progress, then exits.
    """
    from ratekeeper.service.options import Bounds, EnvoyOptions, Options, check_token

    with report_errors():
        set_up_logs(log_format)
        for name in ("RATEKEEPER_TOKEN", "RATEKEEPER_ADMIN_TOKEN"):
            check_token(os.environ.get(name), name)
        http = address_of(host, port, http)
        link_token = ""
        if admin_token is None and http != "off":
            link_token = admin_token = secrets.token_urlsafe(24)
        options = Options(
            rules=rules, envoy_config=envoy_config, http=None if http == "off" else http, grpc=grpc, resp=resp,
            store=store, workers=workers, token=token, admin_token=admin_token, drain=drain, state=state,
            log_format=log_format, allowed_hosts=tuple(allowed_host or ()),
            tls_cert=tls_cert, tls_key=tls_key, tls_client_ca=tls_client_ca,
            envoy=EnvoyOptions(envoy_compat, envoy_shadow, envoy_quota, envoy_metadata, envoy_headers),
            bounds=Bounds(
                resp_idle_for=resp_idle, names=max_limits, tables=table_memory * 1_048_576,
                rule_tables=rule_memory * 1_048_576,
            ),
        )  # fmt: skip
        from ratekeeper.service.start import start

        raise typer.Exit(start(options, (lambda addresses: None) if quiet else greeting(options, link_token)))


def address_of(host: str | None, port: int | None, http: str) -> str:
    """The address of the HTTP listener, from ``--host`` and ``--port`` or from ``--http``."""
    if host is None and port is None:
        return http
    from ratekeeper.errors import InvalidInput, shown

    if http != DEFAULT_HTTP:
        raise InvalidInput("serve: expected --http, or --host and --port, got both. Leave one of them out.")
    usual_host, _, usual_port = DEFAULT_HTTP.rpartition(":")
    host = usual_host if host is None else host.strip("[]")
    if host.count(":") == 1:
        raise InvalidInput(
            f"--host: expected an address such as 0.0.0.0, got {shown(host)}. Give the port with --port."
        )
    return f"{f'[{host}]' if ':' in host else host}:{usual_port if port is None else port}"


def greeting(options: Any, link_token: str = "") -> Any:
    """Return the function that prints what to open and what to type, once the service listens.

    ``link_token`` is the admin token if it was made up for this run: the link to the dashboard carries it.  It is not
    printed among JSON lines, because those are kept.
    """

    def print_greeting(addresses: dict[str, tuple[str, int]]) -> None:
        def address(name: str) -> str:
            host, port = addresses[name]
            host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)
            return f"{host}:{port}"

        lines = [f"ratekeeper is ready (process {os.getpid()})"]
        if "http" in addresses:
            scheme, curl = ("http", "curl") if options.tls_cert is None else ("https", "curl --cacert CA.pem")
            if options.tls_client_ca is not None:
                curl += " --cert CLIENT.pem"
            url = f"{scheme}://{address('http')}"
            fragment = f"#admin={link_token}" if link_token and options.log_format != "json" else ""
            auth = ' -H "authorization: Bearer $RATEKEEPER_TOKEN"' if options.token else ""
            body = """'{"key":"me","limit":"3/minute"}'"""
            lines += [
                f"  dashboard  {url}/{fragment}",
                f"  try it     {curl} -s{auth} {url}/v1/check -d {body}",
                f"  see 429    for i in 1 2 3 4 5; do {curl} -s -o /dev/null -w '%{{http_code}}\\n'{auth} "
                f"'{url}/v1/check?deny_status=429' -d {body}; done",
                f"  headers    {curl} -si{auth} {url}/v1/auth/path/api/search",
            ]
        if options.rules is not None:
            lines.append(f"  reload     edit {options.rules}, then kill -HUP {os.getpid()}")
        if "resp" in addresses:
            host, port = addresses["resp"]
            tls = "" if options.tls_cert is None else " --tls --cacert CA.pem"
            lines.append(f"  Redis      redis-cli{tls} -h {host} -p {port} CL.THROTTLE me 2 3 60")
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
