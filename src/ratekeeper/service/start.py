"""From options to a running service: one process, or a supervisor with several workers."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ratekeeper.errors import InvalidInput
from ratekeeper.service.options import Options
from ratekeeper.service.retired_limits import collect
from ratekeeper.service.systemd import notify
from ratekeeper.service.worker import Worker, policy_for, run, try_addresses

if TYPE_CHECKING:
    from collections.abc import Callable

    OnReady = Callable[[dict[str, tuple[str, int]]], object]

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
        url = f"shm://{segment}"
        remove_abandoned_segments()
    return replace(options, state=state, store=url), segment


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
