"""The least set of rights, as the documentation states it: enough for all that a store does, and nothing in it idle."""

import asyncio
import contextlib
import itertools
import re
from pathlib import Path

import pytest

from ratekeeper import AsyncLimiter, Limit, Limiter, StoreUnavailable
from ratekeeper.check import Check
from ratekeeper.limit import parse_limits
from ratekeeper.stores.redis.aio_store import AsyncRedisStore
from ratekeeper.stores.redis.store import RedisStore
from ratekeeper.testing import FakeClock
from ratekeeper.testing.contract import walk_limits

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "redis.md"
OPERATIONS = ("check", "peek", "take", "refund", "states", "reset")
LIMITS = [*walk_limits(), Limit.parse("300/minute sliding_log"), Limit.parse("3 concurrent")]
users = itertools.count()


def documented():
    """The words behind ``ACL SETUSER keeper``, and those that the page adds for a cluster."""
    page = PAGE.read_text()
    (line,) = re.findall(r"^ACL SETUSER keeper (.+)$", page, re.MULTILINE)
    (more,) = re.findall(r"on a cluster `([^`]+)`", page)
    return line.split(), more.split()


def user_on(server, words):
    """A user with these rights; the part of a URL that names it."""
    name = f"keeper{next(users)}"
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", name, *words)
    return f"{name}:password@"


def all_operations(url):
    """Whatever a store can be asked for, so that every command of the script is called."""
    with contextlib.closing(RedisStore(url, prefix="rk", deadline=10)) as store:
        ask_all(store)
    clock = FakeClock()
    with contextlib.closing(RedisStore(url, prefix="rk", deadline=10, clock=clock)) as store:
        for _ in range(20):  # a long log is told anew how long to live
            store.check((Check("acl", "long", Limit.parse("300/minute sliding_log"), 1),))
            clock.advance(600)

    asyncio.run(many_at_once(url))


async def many_at_once(url):
    store = AsyncRedisStore(url, prefix="rk", deadline=10)
    try:
        await asyncio.gather(*[store.check((Check("acl", key, Limit.parse("5/minute"), 1),)) for key in "ab"])
    finally:
        await store.close()


def ask_all(store):
    for limit in [*LIMITS, parse_limits(["5/minute", "300/hour sliding_log"])]:
        plan = (Check("acl", "k", limit, 1),)
        for operation in OPERATIONS:
            getattr(store, operation)(plan)
        store.check((plan[0], Check("acl", "another", limit, 1)))


@pytest.fixture(scope="module")
def server(redis_server):
    yield redis_server
    client = redis_server.client()
    for user in client.acl_users():
        if user.startswith("keeper"):
            client.acl_deluser(user)


def test_the_documented_rights_are_enough(server):
    words, _ = documented()
    url = server.url.replace("://", "://" + user_on(server, words)) + "?deadline=10"
    all_operations(url)

    async def main():
        async with AsyncLimiter("5/minute", store=url, name="loop") as limiter:
            assert (await limiter.check("k")).reason == ""

    asyncio.run(main())


def test_a_flushed_script_can_be_sent_again_with_them(server):
    words, _ = documented()
    url = server.url.replace("://", "://" + user_on(server, words))
    plan = (Check("acl", "flushed", Limit.parse("5/minute"), 1),)
    with contextlib.closing(RedisStore(url, deadline=10)) as store:
        store.check(plan)
        with server.client() as client:
            client.script_flush()
        assert store.check(plan)[0].remaining == 3


@pytest.mark.parametrize("right", [word for word in documented()[0] if word.startswith("+")])
def test_none_of_them_is_idle(server, right):
    words, _ = documented()
    words = [word for word in words if word != right]
    client = server.client()
    client.script_flush()
    if right == "+eval":
        words.remove("+script|load")
    url = server.url.replace("://", "://" + user_on(server, words))
    if right == "+script|load":  # without it a connection sends the whole text once: it still works, and shows
        client.config_resetstat()
        all_operations(url)
        assert client.info("commandstats")["cmdstat_eval"]["calls"] > 0
    else:
        with pytest.raises(StoreUnavailable, match=r"NOPERM|can't run this command"):
            all_operations(url)
    client.close()


def test_keys_of_others_are_out_of_reach(server):
    words, _ = documented()
    url = server.url.replace("://", "://" + user_on(server, words)) + "?deadline=10&prefix=others"
    with contextlib.closing(Limiter("5/minute", store=url, on_store_error="deny")) as limiter:
        refused = limiter.check("k")
    assert refused.reason.startswith("deny: ")
    assert "NOPERM" in refused.reason


def test_a_cluster_needs_two_more(redis_cluster):
    words, more = documented()
    name = f"keeper{next(users)}"
    for node in redis_cluster.servers:
        node.client().execute_command("ACL", "SETUSER", name, *words, *more)
    url = redis_cluster.url.replace("://", f"://{name}:password@")
    all_operations(url)
    for node in redis_cluster.servers:
        node.client().execute_command("ACL", "SETUSER", name, "-cluster|slots")
    with pytest.raises(StoreUnavailable, match="NOPERM"):
        all_operations(url)
    for node in redis_cluster.servers:
        node.client().acl_deluser(name)


def test_a_sentinel_asks_for_one(redis_sentinel, redis_server):
    page = PAGE.read_text()
    (right,) = re.findall(r"A user of sentinels needs `(.+?)`", page)
    watcher, words = redis_sentinel.client(), documented()[0]
    watcher.execute_command("ACL", "SETUSER", "watcher", "on", ">password", "-@all", right)
    url = redis_sentinel.url.replace("://", "://" + user_on(redis_server, words))
    url += "?deadline=10&sentinel_username=watcher&sentinel_password=password"
    try:
        all_operations(url)
        watcher.execute_command("ACL", "SETUSER", "watcher", "-" + right[1:])
        with pytest.raises(StoreUnavailable, match="NOPERM"):
            all_operations(url)
    finally:
        watcher.acl_deluser("watcher")
