"""From options to a running service: one process, or a master with workers that meet in a folder."""

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

    Opened = Callable[[dict[str, tuple[str, int]]], object]

OWN = "ratekeeper-"  # and a process: what memory is called that serve made up a name for


def start(options: Options, opened: Opened) -> int:
    """Serve until told to end; returns the exit code."""
    if options.http is options.grpc is options.resp is None:
        raise InvalidInput("serve: expected at least one of --http, --grpc and --resp.")
    if options.envoy_config is not None and options.grpc is None:
        raise InvalidInput(
            "serve: expected --grpc HOST:PORT beside --envoy-config, got none: only Envoy is asked by it."
        )
    try_addresses(options)
    if options.state is not None:
        make_folder(options.state)
    if options.workers == 1:
        try_rules(options)

        def say(worker: Worker) -> None:
            opened(worker.addresses)
            notify("READY=1")

        run(options, 0, os.urandom(32), say)
        return 0
    from ratekeeper.service.supervisor import Supervisor

    with tempfile.TemporaryDirectory(prefix="ratekeeper-") as folder:
        options, segment = shared(options, Path(folder))
        try:
            try_rules(options)
            return Supervisor(options, opened).run()
        finally:
            if segment:
                let_go(segment)


def try_rules(options: Options) -> None:
    """Tell of a mistake in the rules before anything is opened; keep nothing of them, for workers would inherit it."""
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


def shared(options: Options, folder: Path) -> tuple[Options, str]:
    """Options whose workers count together: through shared memory, unless the store is shared already.

    The name of that memory, if it was made up here, stands beside them.
    """
    from ratekeeper.rules.files import read

    state = options.state or folder
    for left in state.glob("worker-*"):  # of a service that ended
        left.unlink()
    url = options.store
    if url is None:
        url = read(options.rules).get("store", "memory://") if options.rules is not None else "memory://"
    segment = ""
    if isinstance(url, str) and url.startswith("memory://"):
        segment = f"{OWN}{os.getpid()}"
        url = f"shm://{segment}"
        remove_ended()
    return replace(options, state=state, store=url), segment


def remove_ended() -> None:
    """Remove the memory of services that were killed before they could."""
    try:
        from ratekeeper.stores.shared import segments
    except InvalidInput:  # no shared memory here: opening the store will say so
        return
    for found in segments():
        if found.name.startswith(OWN) and found.name.removeprefix(OWN).isdecimal() and not found.in_use:
            let_go(found.name)


def let_go(segment: str) -> None:
    """Remove the memory of a service that has ended: nobody knows its name."""
    from ratekeeper.stores.shared import remove

    with suppress(InvalidInput):  # never made, or a worker that was told to end lives on
        remove(segment)
