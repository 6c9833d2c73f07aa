"""From options to a running service: one process, or a supervisor with several workers."""

from __future__ import annotations

import logging
import os
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ratekeeper.errors import InvalidInput
from ratekeeper.identity.address import parse_address as parse_ip
from ratekeeper.service.options import Options, parse_address
from ratekeeper.service.retired_limits import collect
from ratekeeper.service.systemd import notify
from ratekeeper.service.table_budget import share_of_rules
from ratekeeper.service.tls import certificates_of
from ratekeeper.service.worker import Worker, policy_for, run, try_addresses

if TYPE_CHECKING:
    from collections.abc import Callable

    OnReady = Callable[[dict[str, tuple[str, int]]], object]

log = logging.getLogger("ratekeeper")
SEGMENT_PREFIX = "ratekeeper-"  # and a process id: the shared memory that a service names itself


def start(options: Options, on_ready: OnReady) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code."""
    if options.http is options.grpc is options.resp is None:
        raise InvalidInput("serve: expected at least one of --http, --grpc and --resp.")
    if options.envoy_config is not None and options.grpc is None:
        raise InvalidInput(
            "serve: expected --grpc HOST:PORT beside --envoy-config, got none. Only Envoy uses that file."
        )
    try_addresses(options)
    certificates_of(options)
    warn_of_exposure(options)
    if options.state is not None:
        make_folder(options.state)
    if options.workers == 1:
        try_rules(options)

        def announce(worker: Worker) -> None:
            on_ready(worker.addresses)
            notify("READY=1")

        run(options, 0, os.urandom(32), announce)
        return 0
    from ratekeeper.service.supervisor import Supervisor

    with tempfile.TemporaryDirectory(prefix="ratekeeper-") as folder:
        options, segment = share_store(options, Path(folder))
        try:
            try_rules(options)
            return Supervisor(options, on_ready).run()
        finally:
            if segment:
                remove_segment(segment)


def warn_of_exposure(options: Options) -> None:
    """Say it loudly if other hosts can reach a listener that asks for no token, or that speaks in clear text."""
    exposed = [
        f"--{name} {address}"
        for name in ("http", "grpc", "resp")
        if (address := getattr(options, name)) is not None and not is_loopback(parse_address(address, f"--{name}")[0])
    ]
    if not exposed:
        return
    listeners = ", ".join(exposed)
    if options.token is None and options.tls_client_ca is None:
        log.warning(
            "EXPOSED: %s can be reached from other hosts, and every caller may use up limits, reset them and read the "
            "dashboard. Set --token (or RATEKEEPER_TOKEN), or listen on 127.0.0.1.", listeners,
        )  # fmt: skip
    if options.tls_cert is None:
        log.warning(
            "EXPOSED: %s can be reached from other hosts without TLS, so tokens and keys cross the network in clear "
            "text. Set --tls-cert and --tls-key, or listen on 127.0.0.1.", listeners,
        )  # fmt: skip


def is_loopback(host: str) -> bool:
    address = parse_ip(host)
    return host == "localhost" if address is None else address.is_loopback


def try_rules(options: Options) -> None:
    """Raise for a mistake in the rules before any address is opened; keep nothing that workers would inherit."""
    policy_for(options).close()
    collect()


def make_folder(state: Path) -> None:
    try:
        state.mkdir(parents=True, exist_ok=True)
        (state / f".{os.getpid()}").touch()
        (state / f".{os.getpid()}").unlink()
    except OSError as error:
        raise InvalidInput(
            f"--state: expected a folder to write in, got {str(state)!r} ({error.strerror or error})."
        ) from error


def share_store(options: Options, folder: Path) -> tuple[Options, str]:
    """Options whose workers share their limits, and the name of the shared memory if it was chosen here.

    Workers use shared memory in place of ``memory://``.  Every other store is shared already.
    """
    from ratekeeper.rules.files import read

    state = options.state or folder
    for path in state.glob("worker-*"):  # counters of a service that has ended
        path.unlink()
    url = options.store
    if url is None:
        url = read(options.rules).get("store", "memory://") if options.rules is not None else "memory://"
    segment = ""
    if isinstance(url, str) and url.startswith("memory://"):
        segment = f"{SEGMENT_PREFIX}{os.getpid()}"
        most = options.bounds.rule_tables + options.bounds.tables
        url = f"shm://{segment}?max_bytes={most}&table_bytes={share_of_tables(options)}"
        remove_abandoned_segments()
    return replace(options, state=state, store=url), segment


def share_of_tables(options: Options) -> int:
    """The bytes that the table of each configured limit may take in shared memory; raises if they cannot fit."""
    policy = policy_for(replace(options, store="memory://"))
    places = list(policy.compiled.places())
    policy.close()
    if options.envoy_config is not None:
        from ratekeeper.service.envoy.config import load

        places += [(rate.path, rate.limit) for rate in load(options.envoy_config).rates if rate.limit is not None]
    return share_of_rules(places, options.bounds.rule_tables)


def remove_abandoned_segments() -> None:
    """Remove the shared memory of services that were killed before they could remove it."""
    try:
        from ratekeeper.stores.shared import segments
    except InvalidInput:  # no shared memory on this platform: opening the store will say so
        return
    for segment in segments():
        number = segment.name.removeprefix(SEGMENT_PREFIX)
        if segment.name.startswith(SEGMENT_PREFIX) and number.isdecimal() and not segment.in_use:
            remove_segment(segment.name)


def remove_segment(name: str) -> None:
    """Remove the shared memory of a service that has ended: no other process knows its name."""
    from ratekeeper.stores.shared import remove

    with suppress(InvalidInput):  # it was never created, or a worker is still ending
        remove(name)
