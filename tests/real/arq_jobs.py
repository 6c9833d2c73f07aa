"""Run by test_arq.py with arq on the path: a worker whose jobs are limited, until nothing is left to do.

Prints a line for each job that ran: its number and the milliseconds since the first one.
"""

import asyncio
import sys
import time

from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker

from examples.workers import arq_limited
from ratekeeper import AsyncLimiter

JOBS = 6
limiter = AsyncLimiter("2/second burst 1")
began: list[float] = []


@arq_limited(limiter, key=lambda number: "all")
async def job(context, number):
    now = time.monotonic()
    began.append(now)
    print(number, round((now - began[0]) * 1000), flush=True)


async def main(port: int) -> None:
    settings = RedisSettings(port=port)
    pool = await create_pool(settings)
    for number in range(JOBS):
        await pool.enqueue_job("job", number)
    worker = Worker([job], redis_settings=settings, burst=True, max_tries=50, poll_delay=0.02, handle_signals=False)
    await worker.main()
    await worker.close()
    await pool.aclose()


asyncio.run(main(int(sys.argv[1])))
