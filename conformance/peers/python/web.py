"""What the applications behind a middleware share: the path GET /COUNT/SECONDS/LIMITER, and the key in a field."""

from __future__ import annotations

UNITS = {1: "second", 60: "minute", 3600: "hour", 86_400: "day"}
KEY = "X-Conformance-Key"


def limit_of(path: str) -> tuple[int, int, str]:
    """Count, seconds and the name of the limiter."""
    count, seconds, name = path.strip("/").split("/")
    return int(count), int(seconds), name
