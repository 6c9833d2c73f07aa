"""Redis clients: ``CL.THROTTLE key max_burst count period quantity``, as redis-cell has it.

Its max_burst is the capacity less one.
"""

from __future__ import annotations

from conformance.adapters.server import ServerSession
from conformance.limits import NEVER, SECOND, Answer
from conformance.redis_server import RedisClient, RedisError


class RespSession(ServerSession):
    def connect(self) -> RedisClient:
        return RedisClient(self.port)

    def call(self, connection: RedisClient, limiter: str, key: str, cost: int) -> Answer:
        limit = self.limits[limiter][0]
        words = (f"{limiter}:{key}", limit.burst - 1, limit.count, limit.period // SECOND, cost)
        try:
            limited, _, remaining, retry, reset = connection.command("CL.THROTTLE", *words)
        except RedisError as error:
            return Answer(False, error=str(error))
        wait: int | str = retry * SECOND
        if limited and retry < 0:
            wait = NEVER
        return Answer(not limited, remaining, wait if limited else 0, reset * SECOND)
