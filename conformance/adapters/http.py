"""HTTP: a request for each call; 429 is a refusal.

The usual form is that of an application behind a middleware: ``GET /COUNT/SECONDS/LIMITER`` with the key in
``X-Conformance-Key``.  A service that is told the limit in a body has its own ``form``.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from typing import Any

from conformance.adapters.server import ServerSession
from conformance.limits import NEVER, SECOND, Answer, Limit

LONGEST_PAUSE = 1.0  # seconds
Form = Callable[[str, list[Limit], str, int], tuple[str, str, str | None, dict[str, str]]]


def middleware_form(
    limiter: str, limits: list[Limit], key: str, cost: int
) -> tuple[str, str, str | None, dict[str, str]]:
    """Method, path, body and header fields of a call."""
    limit = limits[0]
    quoted = "".join(f"{byte:02x}" for byte in key.encode())
    return "GET", f"/{limit.count}/{limit.period // SECOND}/{limiter}", None, {"X-Conformance-Key": quoted}


class IdleAwareConnection(http.client.HTTPConnection):
    """Opens a new connection after a pause: a server may have closed the old one, and no call is sent twice."""

    used_at = 0.0

    def renew_if_idle(self) -> None:
        now = time.monotonic()
        if now - self.used_at > LONGEST_PAUSE:
            self.close()
        self.used_at = now


class HttpSession(ServerSession):
    """``form`` writes a request; ``reads`` says where the numbers of an answer stand: "fields" or "json"."""

    def __init__(self, *arguments: Any, form: Form = middleware_form, reads: str = "fields", **options: Any) -> None:
        self.form, self.reads = form, reads
        super().__init__(*arguments, **options)

    def connect(self) -> IdleAwareConnection:
        return IdleAwareConnection("127.0.0.1", self.port, timeout=30)

    def request(self, connection: Any, limiter: str, key: str, cost: int) -> tuple[int, dict[str, str], bytes]:
        method, path, body, fields = self.form(limiter, self.limits[limiter], key, cost)
        connection.renew_if_idle()
        try:
            connection.request(method, path, body, fields)
            answer = connection.getresponse()
            text = answer.read()
        except http.client.HTTPException as error:
            connection.close()
            raise ConnectionError(str(error)) from error
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, text

    def fields(self, limiter: str, key: str) -> dict[str, Any]:
        status, fields, _ = self.request(self.connection(), limiter, key, 1)
        return {**fields, "status": status}

    def call(self, connection: Any, limiter: str, key: str, cost: int) -> Answer:
        status, fields, text = self.request(connection, limiter, key, cost)
        if status >= 400 and status != 429:
            return Answer(False, error=f"status {status}")
        if self.reads == "json":
            found = json.loads(text)
            retry = found["retry_after"]
            return Answer(
                found["allowed"],
                found["remaining"],
                NEVER if retry is None else round(retry * SECOND),
                round(found["reset_after"] * SECOND),
            )
        left = fields.get("x-ratelimit-remaining") or fields.get("ratelimit-remaining")
        wait = fields.get("retry-after")
        return Answer(
            status != 429,
            int(left) if left and left.isdigit() else None,
            int(wait) * SECOND if status == 429 and wait and wait.isdigit() else None,
        )
