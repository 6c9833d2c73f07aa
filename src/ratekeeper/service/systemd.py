"""Tells systemd how we are: ready, reloading, stopping, alive.  Does nothing where nobody listens."""

from __future__ import annotations

import os
import socket
import time


def notify(*lines: str) -> bool:
    """Send ``READY=1`` and its like to the manager that started us; says whether there is one."""
    place = os.environ.get("NOTIFY_SOCKET")
    if not place:
        return False
    address = "\0" + place[1:] if place.startswith("@") else place
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as wire:
            wire.sendto("\n".join(lines).encode(), address)
    except OSError:
        return False
    return True


def reloading() -> bool:
    """That a reload began; followed by READY=1 when it is over."""
    return notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")


def watchdog() -> float | None:
    """Seconds within which the manager wants to hear from us; None if it does not care."""
    text = os.environ.get("WATCHDOG_USEC", "")
    return int(text) / 1e6 if text.isdecimal() and int(text) else None
