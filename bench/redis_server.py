"""Claim: what a decision costs the server, by its own account (INFO commandstats), in one command each.

A decision at most 7 times ``EVALSHA 'return 1'``; three limits of one subject at most 1.35 times one, three subjects
at most 2.5 times; a refusal at most 0.75 times an admission, and no write; in a batch of 64 at most half of a single
one; a sliding log at most 1.7 times the bucket, and at most 10 bytes an entry from 100 entries on.

Beside these stands what no script can do without that reads the server's clock and a record and writes it back.

Interleaved rounds: the best of each, and the median of the ratios within each round, which a busy machine moves least.
32 commands are on their way at a time, so that the server works without pause.
Memory is the server's MEMORY USAGE of all keys that one caller has after so many checks, beside two peers.
"""

from __future__ import annotations

import os
import socket
import time
from operator import truediv
from statistics import median
from typing import Any

from hiredis import Reader, ReplyError

from bench.harness import conditions, table
from bench.peers import LIMITS_NAMES, THROTTLED_NAMES
from ratekeeper import Limit, Limiter
from ratekeeper.algorithms import ALGORITHMS
from ratekeeper.check import Check
from ratekeeper.limit import parse_limits
from ratekeeper.stores.redis.request import command
from ratekeeper.stores.redis.resp import encode_command
from ratekeeper.stores.redis.store import RedisStore
from tests.servers import Server

ROUNDS = 25
CALLS = 3_200
DEPTH = 32
PLENTY = 1_000_000
BATCH = 64
LOGS = {30: 64, 100: 400, 1_000: 4_000, 10_000: 40_000}  # entries, and a limit above them that is not met
Plan = tuple[Check, ...]
NAMES = ("redis-server", "valkey-server")
FLOOR = "no rule: clock, record, answer"
# A check without its rule: the same words, the clock, a record read, one as long written and answered.
NO_RULE = """
local call = redis.call
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local record = call('GET', KEYS[1])
call('SET', KEYS[1], '01234567890123456789', 'PX', ARGV[2])
return record
"""


class Pipe:
    """Commands to the server, 32 on their way at a time, so that it works without pause."""

    def __init__(self, server: Server, store: RedisStore) -> None:
        self.socket = socket.create_connection(("127.0.0.1", server.port))
        self.reader = Reader()
        self.store = store

    def checks(self, *plans: Plan) -> bytes:
        """One EVALSHA that decides these plans."""
        books = self.store.translator
        requests = [books.check_one(each) or next(books.flow("check", each))[0] for each in plans]
        return command(requests, b"EVALSHA", self.store.script.sha, None)

    def run(self, word: bytes, times: int) -> None:
        for _ in range(times // DEPTH):
            self.socket.sendall(word * DEPTH)
            replies = 0
            while replies < DEPTH:
                self.reader.feed(self.socket.recv(1 << 20))
                while (reply := self.reader.gets()) is not False:
                    if isinstance(reply, ReplyError):
                        raise reply
                    replies += 1


def one(limit: Any, key: str = "key") -> Plan:
    return (Check("bench", key, parse_limits(limit), 1),)


def plans() -> dict[str, Plan]:
    found = {name: one(Limit(PLENTY, "1 second", algorithm=name)) for name in ALGORITHMS if name != "sliding_log"}
    periods = ("1 second", "1 minute", "1 hour")
    found["three limits of one subject"] = one([Limit(PLENTY, period) for period in periods])
    mixed = zip(periods, ("gcra", "fixed_window", "sliding_window"), strict=True)
    found["three of three kinds"] = one([Limit(PLENTY, period, algorithm=name) for period, name in mixed])
    found["three subjects"] = tuple([Check(period, "key", Limit(PLENTY, period), 1) for period in periods])
    found["refused"] = one(Limit(1, "50 days"), "refused")
    found["three limits, refused"] = one([Limit(count, f"{50 - count} days") for count in (1, 2, 3)], "refused")
    scarce = [Check(f"refused {count}", "key", Limit(count, "50 days"), 1) for count in (2, 1, 3)]
    found["three subjects, refused"] = tuple(scarce)
    return found


def full_logs(pipe: Pipe, word: bytes) -> dict[str, Plan]:
    """Logs of which as many entries end as come: their periods are what so many calls take here."""
    took = []
    for _ in range(5):
        began = time.perf_counter()
        pipe.run(word, CALLS)
        took.append((time.perf_counter() - began) / CALLS * 1e6)
    micros = min(took)
    found = {}
    for entries, count in LOGS.items():
        limit = Limit(count, f"{round(entries * micros * 1.2)} microseconds", algorithm="sliding_log")
        found[f"log of {entries}"] = one(limit, f"log of {entries}")
    return found


def dirty(client: Any) -> int:
    return int(client.info("persistence")["rdb_changes_since_last_save"])


def measure(name: str) -> None:
    server = Server(name)
    client = server.client()
    store = RedisStore(server.url, deadline=10)
    pipe = Pipe(server, store)
    words = {"EVALSHA 'return 1'": encode_command(b"EVALSHA", client.script_load("return 1").encode(), b"1", b"key")}
    words[FLOOR] = encode_command(
        b"EVALSHA", client.script_load(NO_RULE).encode(), b"1", b"key", b"limits" * 4, b"2000"
    )
    all_plans = plans()
    for title, each in all_plans.items():
        for _ in range(3):  # loads the script, and takes the admissions of what is to be refused
            store.check(each)
        words[title] = pipe.checks(each)
    batch = f"in a batch of {BATCH}"
    bucket_limit = Limit(PLENTY, "1 second")
    words[batch] = pipe.checks(*[one(bucket_limit, f"key {number}") for number in range(BATCH)])
    logs = full_logs(pipe, words["gcra"])
    words.update({title: pipe.checks(each) for title, each in logs.items()})
    took: dict[str, list[float]] = {title: [] for title in words}
    called: dict[str, str] = {}
    writes: dict[str, str] = {}
    entries: dict[str, int] = {}
    for _ in range(ROUNDS):
        for title, word in words.items():
            many = BATCH if title == batch else 1
            if title in logs:  # what ended meanwhile
                pipe.run(word, 2 * int(title.rpartition(" ")[2]))
            before = dirty(client)
            client.config_resetstat()
            pipe.run(word, CALLS // many)
            if title in logs:
                (seen,) = store.peek(logs[title])
                entries[title] = seen.limit - seen.remaining
            stats = client.info("commandstats")
            evalsha = stats.pop("cmdstat_evalsha")
            writes[title] = f"{(dirty(client) - before) / evalsha['calls'] / many:.2g}"
            took[title].append(evalsha["usec"] / evalsha["calls"] / many)
            called[title] = " ".join(
                sorted(
                    f"{stat.removeprefix('cmdstat_')} {of['calls'] / evalsha['calls'] / many:.2g}"
                    for stat, of in stats.items()
                    if "resetstat" not in stat and "info" not in stat
                )
            )
    bucket, base = took["gcra"], took["EVALSHA 'return 1'"]
    rows = []
    for title, own in took.items():
        ratios = [
            f"{share:.2f}"
            for other in (base, bucket)
            for share in (min(own) / min(other), median(map(truediv, own, other)))
        ]
        rows.append([title, f"{min(own):.2f}", *ratios, writes[title], called[title]])
    version = client.info("server").get("valkey_version") or client.info("server")["redis_version"]
    table(
        f"Server time of a decision, {name} {version}",
        ["", "µs", "x return 1", "median", "x gcra", "median", "writes", "the script called"],
        rows,
    )
    for title, many in entries.items():
        print(f"{title}: {many} entries just after the last round")
    pipe.socket.close()
    client.flushdb()
    log_memory(client, store)
    caller_memory(server)
    store.close()
    server.close()


def log_memory(client: Any, store: RedisStore) -> None:
    rows = []
    for count in (10, 64, 100, 1000, 10_000):
        client.flushdb()
        for _ in range(count):
            store.check(one(Limit(count, "1 hour", algorithm="sliding_log")))
        used = usage(client)
        rows.append([f"{count}", used, f"{used / count:.1f}"])
    table("A full sliding log (MEMORY USAGE)", ["entries", "bytes", "bytes an entry"], rows)


def usage(client: Any) -> int:
    return sum(client.memory_usage(name, samples=0) for name in client.scan_iter("*"))


def caller_memory(server: Server) -> None:
    """Bytes of one caller after 60 checks of 100 a minute, in all its keys."""
    client = server.client()
    columns: dict[str, dict[str, str]] = {}
    for library, make in (("ratekeeper", ours), ("limits", limits_peer), ("throttled-py", throttled_peer)):
        for algorithm in ALGORITHMS:
            client.flushdb()
            call = make(algorithm, server)
            if call is None:
                continue
            for _ in range(60):
                call("user:42")
            without = "" if all(client.pttl(name) > 0 for name in client.scan_iter("*")) else ", no time to live"
            columns.setdefault(algorithm, {})[library] = f"{usage(client)} in {client.dbsize()}{without}"
    libraries = ("ratekeeper", "limits", "throttled-py")
    rows = [[name, *[found.get(library, "-") for library in libraries]] for name, found in columns.items()]
    table("Bytes (MEMORY USAGE) in keys of one caller after 60 checks of 100 a minute", ["", *libraries], rows)


def ours(algorithm: str, server: Server) -> Any:
    return Limiter(Limit(100, "1 minute", algorithm=algorithm), store=f"{server.url}?deadline=10", name="api").check


def limits_peer(algorithm: str, server: Server) -> Any:
    import limits

    if algorithm not in LIMITS_NAMES:
        return None
    hit = getattr(limits.strategies, LIMITS_NAMES[algorithm])(limits.storage.RedisStorage(server.url)).hit
    item = limits.RateLimitItemPerMinute(100, namespace="api")
    return lambda key: hit(item, key)


def throttled_peer(algorithm: str, server: Server) -> Any:
    import throttled

    using = THROTTLED_NAMES.get(algorithm)
    if using is None:
        return None
    store = throttled.RedisStore(server=server.url)
    return throttled.Throttled(using=using, quota=throttled.per_min(100), store=store).limit


def main() -> None:
    conditions()
    print(f"load of the machine at the start: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for name in NAMES:
        measure(name)


if __name__ == "__main__":
    main()
