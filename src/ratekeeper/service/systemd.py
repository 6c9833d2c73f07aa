"""Messages to systemd: ready, reloading, stopping, alive.  Does nothing if systemd did not start the service."""

from __future__ import annotations

import os
import socket
import time


def notify(*lines: str) -> bool:
    """Send lines such as ``READY=1`` to the service manager; says whether there is one."""
    path = os.environ.get("NOTIFY_SOCKET")
    if not path:
        return False
    address = "\0" + path[1:] if path.startswith("@") else path
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.sendto("\n".join(lines).encode(), address)
    except OSError:
        return False
    return True


def notify_reloading() -> bool:
    """Announce that a reload has begun; ``READY=1`` announces its end."""
    return notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")


def watchdog() -> float | None:
    """Seconds within which systemd expects a ``WATCHDOG=1``; None if it expects none."""
    text = os.environ.get("WATCHDOG_USEC", "")
    return int(text) / 1e6 if text.isdecimal() and int(text) else None
