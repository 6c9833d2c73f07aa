"""Several processes, each a loop with many tasks, on one store: what they do, and how they are started."""

import asyncio
import multiprocessing
import random
import time

from ratekeeper import Limit, StoreUnavailable
from ratekeeper.algorithms import ALGORITHMS
from ratekeeper.check import Check
from ratekeeper.limit import parse_limits
from ratekeeper.stores.redis.aio_store import AsyncRedisStore
from ratekeeper.stores.shared import SharedStore

PROCESSES = 4
TASKS = 64
PERIOD = "50 days"  # so long that nothing recovers meanwhile


def run_fleet(work, *arguments):
    """``work(number, *arguments)`` in each of the processes; their answers."""
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        return pool.starmap(work, [(number, *arguments) for number in range(PROCESSES)])


def plans(count):
    """Name, plan and how many it must admit: six algorithms, three limits on one key, and three keys."""
    found = {}
    for algorithm in ALGORITHMS:
        found[algorithm] = ((Check("one", algorithm, Limit(count, PERIOD, algorithm=algorithm), 1),), count)
    three = parse_limits([f"{2 * count}/hour", f"{count} per {PERIOD} fixed_window", f"{3 * count} per {PERIOD}"])
    found["three limits"] = ((Check("three", "k", three, 1),), count)
    for algorithm in ("gcra", "fixed_window", "sliding_log"):
        user, ip, everybody = (
            Limit(many, PERIOD, algorithm=algorithm) for many in (count, count * 3 // 4, count * 5 // 4)
        )
        plan = (Check("user", algorithm, user, 1), Check("ip", algorithm, ip, 1), Check("all", algorithm, everybody, 1))
        found[f"user, ip and all: {algorithm}"] = (plan, count * 3 // 4)
    return found


def open_store(url, prefix):
    # A busy machine must not become an outage here, and what is refused must be asked: this is about the script.
    return AsyncRedisStore(url, prefix=prefix, deadline=60, deny_cache=False, on_store_error="deny")


def admit(number, url, prefix, count, calls):
    """How many of each plan this process got admitted, with 64 tasks of ``calls`` calls each."""

    async def main():
        store = open_store(url, prefix)
        admitted = dict.fromkeys(plans(count), 0)

        async def task(name, plan):
            for _ in range(calls):
                if all(await store.check(plan)):
                    admitted[name] += 1

        for name, (plan, _) in plans(count).items():
            await asyncio.gather(*[task(name, plan) for _ in range(TASKS)])
        await store.close()
        return admitted

    return asyncio.run(main())


def record(number, url, prefix, texts, seconds, pause=0.01):
    """What each call of this process asked and was told: (limit, began, ended, cost, allowed, remaining, at).

    A call without an answer of the store, which may have counted, has None for ``allowed``, and the reason at the end.
    """
    chance = random.Random(number)

    async def main():
        store = SharedStore(url.partition("//")[2].partition("?")[0]) if url[:3] == "shm" else open_store(url, prefix)
        limits = [Limit.parse(text) for text in texts]
        until = time.monotonic() + seconds
        history = []

        async def task():
            while time.monotonic() < until:
                index = chance.randrange(len(limits))
                cost = chance.choice([1, 1, 1, 2, 5])
                began = time.monotonic_ns()
                try:
                    # Each limit in a space of its own: buckets of one period would share a state.
                    answer = store.check((Check(f"history {index}", prefix, limits[index], cost),))
                    (answer,) = answer if answer.__class__ is tuple else await answer
                except StoreUnavailable as error:
                    history.append((index, began, time.monotonic_ns(), cost, None, 0, error.why))
                    await asyncio.sleep(0.001)
                    continue
                ended = time.monotonic_ns()
                history.append((index, began, ended, cost, answer.allowed, answer.remaining, answer.at))
                await asyncio.sleep(chance.random() * pause)

        await asyncio.gather(*[task() for _ in range(16)])
        closing = store.close()
        if closing is not None:
            await closing
        return history

    return asyncio.run(main())
