"""URLs and options of a Redis store: what they mean, and what is said about mistakes."""

from pathlib import Path

import pytest

from ratekeeper import InvalidStore, Limiter
from ratekeeper.stores.redis.url import OPTIONS, RedisSettings

URLS = [
    ("redis://localhost", [("localhost", 6379)], 0, "", ""),
    ("redis://cache:7000/3", [("cache", 7000)], 3, "", ""),
    ("redis://:pa%40ss@cache", [("cache", 6379)], 0, "", "pa@ss"),
    ("redis://me:pass@[::1]:7000", [("::1", 7000)], 0, "me", "pass"),
    ("redis://[::1]", [("::1", 6379)], 0, "", ""),
    ("unix:///run/redis.sock?db=2", [("/run/redis.sock", 0)], 2, "", ""),
    ("unix://me:pass@/run/redis.sock", [("/run/redis.sock", 0)], 0, "me", "pass"),
    ("redis+sentinel://a,b:26380/mymaster/1", [("a", 26379), ("b", 26380)], 1, "", ""),
    ("redis+cluster://me:pass@a:7000,b:7001", [("a", 7000), ("b", 7001)], 0, "me", "pass"),
]


@pytest.mark.parametrize(("url", "addresses", "db", "username", "password"), URLS)
def test_urls(url, addresses, db, username, password):
    settings = RedisSettings(url)
    assert (settings.addresses, settings.db) == (addresses, db)
    assert (settings.username, settings.password) == (username, password)
    assert not password or password not in settings.shown


def test_options_in_the_url_and_beside_it():
    settings = RedisSettings(
        "redis://h?deadline=20ms&prefix=app&deny_cache=off&local_share=0.1&prefetch=auto", prefix="other"
    )
    assert (settings.deadline, settings.deny_cache, settings.local_share) == (0.02, False, 0.1)
    assert settings.prefetch == "auto"
    assert settings.prefix == "other"
    assert RedisSettings("redis://h", deadline=None).deadline == 0.05
    assert [RedisSettings("redis://h", deadline=given).connects_for for given in (None, 1.0, 10.0)] == [1.0, 1.0, 10.0]
    assert RedisSettings("rediss://h").tls is not None
    assert RedisSettings("redis+cluster://h?tls=on&tls_verify=off").tls is not None
    assert RedisSettings("redis://h").tls is None


def test_every_option_is_told():
    page = Path(__file__).parents[3].joinpath("docs", "howto", "redis.md").read_text("utf-8")
    assert [
        name for name in OPTIONS if f"`{name}=" not in page and f"?{name}=" not in page and f"`{name}`" not in page
    ] == []


MISTAKES = [
    ("redis://h:port", "store redis://: expected host or host:port, got another port than 1 to 65535."),
    ("redis://h/zero", "store redis://: expected the number of a database, got 'zero'."),
    ("redis://secret@h", "store redis://: expected user:password@ or :password@ before the host, got no password."),
    ("redis://a,b", "store redis://: expected one host, got 2. Use redis+cluster:// or redis+sentinel://."),
    ("redis://h?prefiks=x", "store redis://: expected a known option, got 'prefiks'. Did you mean 'prefix'?"),
    (
        "redis://h?deadline=soon",
        "store redis://: expected deadline to be seconds, or milliseconds such as 50ms, got 'soon'.",
    ),
    ("redis://h?deadline=0", "store redis://: expected a deadline from 0.001 to 60 seconds, got 0.0."),
    (
        "redis://h?on_store_error=open",
        "store redis://: expected on_store_error to be local, allow or deny, got 'open'.",
    ),
    ("redis://h?local_share=2", "store redis://: expected local_share above 0 and at most 1, got 2.0."),
    ("redis://h?deny_cache=maybe", "store redis://: expected deny_cache to be on or off, got 'maybe'."),
    ("redis://h?prefetch=1", "store redis://: expected prefetch to be 'auto' or a whole number above 1, got 1."),
    ("redis://h?prefix=a%20b", "store redis://: expected prefix and client_name of visible ASCII letters."),
    ("redis://h?secret=" + "x" * 65, "store redis://: expected a secret of at most 64 bytes, got 65."),
    ("unix://", "store unix://: expected the path of a socket, got nothing."),
    ("redis+sentinel://h", "store redis+sentinel://: expected the name of the service after the hosts, got nothing."),
    ("redis+cluster://h/1", "store redis+cluster://: expected no database, as a cluster has one only, got 1."),
    (
        "redis+cluster://h?prefix=a{}b",
        "store redis+cluster://: expected a prefix without {}, got 'a{}b'. An empty tag spreads the keys of one caller "
        "over several slots.",
    ),
    ("redis://[::1", "store: expected a URL such as 'redis://localhost:6379/0', got 'redis://[::1'."),
]


@pytest.mark.parametrize(("url", "message"), MISTAKES)
def test_mistakes_are_told(url, message):
    with pytest.raises(InvalidStore) as caught:
        RedisSettings(url)
    assert str(caught.value) == message


def test_an_unknown_keyword_is_a_mistake_too():
    with pytest.raises(InvalidStore) as caught:
        RedisSettings("redis://h", dedline=1)
    assert str(caught.value) == "store redis://: expected a known option, got 'dedline'. Did you mean 'deadline'?"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("", "on_store_error=local (50 % of each limit, per process)"),
        ("?local_share=0.125", "on_store_error=local (12.5 % of each limit, per process)"),
        ("?on_store_error=deny&local_share=0.125", "on_store_error=deny"),
    ],
)
def test_the_log_says_what_is_used_while_the_store_is_away(options, text, caplog):
    assert RedisSettings(f"redis://127.0.0.1:1{options}").fallback == text
    limiter = Limiter("5/minute", store=f"redis://127.0.0.1:1{options}", deadline=5)
    with caplog.at_level("WARNING", "ratekeeper.store"):
        limiter.check("k")
    limiter.close()
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("redis://127.0.0.1:1: could not be reached (")
    assert line.endswith(f"). Using {text} until it recovers")
