"""Storages by URI."""

import pytest

from ratekeeper.compat.limits import storage as module
from ratekeeper.compat.limits.errors import ConfigurationError, StorageError
from ratekeeper.compat.limits.items import parse
from ratekeeper.compat.limits.storage import MemoryStorage, storage_from_string
from ratekeeper.compat.limits.strategies import STRATEGIES, FixedWindowRateLimiter, MovingWindowRateLimiter
from ratekeeper.errors import StoreUnavailable
from tests.servers import closed_port

ITEM = parse("3/day")


@pytest.mark.parametrize(
    ("uri", "url"),
    [
        ("redis://h:1/2", "redis://h:1/2"),
        ("valkeys://u:p@h:1", "rediss://u:p@h:1"),
        ("redis+unix:///run/redis.sock", "unix:///run/redis.sock"),
        ("valkey+cluster://a:1,b:2", "redis+cluster://a:1,b:2"),
    ],
)
def test_a_uri_becomes_our_url(uri, url):
    assert module.STORAGES[uri.partition(":")[0]].store_url(None, uri) == url


def test_sentinels_have_credentials_of_their_own():
    storage = storage_from_string(
        "redis+sentinel://:pw@a:1,b:2/ignored", service_name="mymaster", sentinel_kwargs={"password": "p&w"}
    )
    settings = storage.store.settings
    assert (settings.service, settings.password, settings.sentinel_password) == ("mymaster", "pw", "p&w")
    with pytest.raises(ConfigurationError, match="expected username and password in sentinel_kwargs, got 'ssl'"):
        storage_from_string("redis+sentinel://a:1/s", sentinel_kwargs={"ssl": True})


@pytest.mark.parametrize(
    ("uri", "options", "message"),
    [
        ("mongodb://h", {}, "unknown storage scheme : mongodb://h"),
        ("redis://h", {"ssl": 1}, "RedisStorage: expected deadline, prefix, secret options, got 'ssl'."),
        ("memory://", {"deadline": 1}, "MemoryStorage: expected no options, got 'deadline'."),
        ("redis://h/x", {}, "store redis://: expected the number of a database, got 'x'."),
    ],
)  # fmt: skip
def test_a_mistake_is_told(uri, options, message):
    with pytest.raises(ConfigurationError) as caught:
        storage_from_string(uri, **options)
    assert str(caught.value) == message


def test_no_uri_is_a_mistake_except_in_memory():
    assert MemoryStorage().check()
    with pytest.raises(ConfigurationError, match="RedisStorage: expected a URI"):
        module.RedisStorage()


@pytest.mark.parametrize("wraps", [False, True])
def test_a_server_that_is_not_there_raises_as_it_did(wraps):
    with closed_port() as port:
        storage = storage_from_string(f"redis://127.0.0.1:{port}", wrap_exceptions=wraps)
        assert not storage.check()
        with pytest.raises(StorageError if wraps else storage.base_exceptions):
            FixedWindowRateLimiter(storage).hit(ITEM, "a")
        assert storage.base_exceptions is StoreUnavailable
        storage.store.close()


def test_keys_are_forgotten_one_by_one_or_all():
    storage = MemoryStorage()
    limiters = [strategy(storage) for strategy in STRATEGIES.values()]
    for limiter in limiters:
        assert [limiter.hit(ITEM, "a") for _ in range(4)] == [True] * 3 + [False]
        limiter.hit(ITEM, "b")
    storage.clear(ITEM.key_for("a"))
    assert [limiter.get_window_stats(ITEM, "a").remaining for limiter in limiters] == [3, 3, 3]
    assert [limiter.get_window_stats(ITEM, "b").remaining for limiter in limiters] == [2, 2, 2]
    storage.reset()
    assert [limiter.get_window_stats(ITEM, "b").remaining for limiter in limiters] == [3, 3, 3]
    with pytest.raises(ConfigurationError, match=r"expected a key that RateLimitItem\.key_for made, got 'a'"):
        storage.clear("a")


def test_only_memory_forgets_all_keys(tmp_path):
    storage = storage_from_string(f"sqlite:///{tmp_path}/limits.db", deadline=30)
    with pytest.raises(NotImplementedError, match="expected a storage in memory"):
        storage.reset()
    assert storage.storage == "sqlite://"
    storage.store.close()


@pytest.mark.parametrize("engine", ["redis_server", "memcached_server", "sqlite"])
def test_every_storage_counts_in_all_its_clients(engine, request, tmp_path):
    url = f"sqlite:///{tmp_path}/x.db" if engine == "sqlite" else request.getfixturevalue(engine).url
    options = {"deadline": 30, "key_prefix": f"compat{tmp_path.name}"}
    first, second = (storage_from_string(url, **options) for _ in range(2))
    for strategy in STRATEGIES.values():
        answers = [strategy(storage).hit(ITEM, "a") for storage in (first, second, first, second)]
        assert answers == [True, True, True, False]
        assert strategy(second).get_window_stats(ITEM, "a").remaining == 0
        strategy(first).clear(ITEM, "a")
        assert MovingWindowRateLimiter(second).test(ITEM, "a")
    first.store.close()
    second.store.close()
