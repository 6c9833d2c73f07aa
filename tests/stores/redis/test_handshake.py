"""What a new connection finds out about its server: its name, rights, password and role."""

import asyncio

from ratekeeper import AsyncLimiter, Limiter
from tests.servers import Server


def test_the_connection_bears_its_name(redis_server):
    limiter = Limiter("5/minute", store=redis_server.url + "?client_name=shop&deadline=10")
    limiter.check("k")
    assert "shop" in [client["name"] for client in redis_server.client().client_list()]
    limiter.close()


def test_an_evicting_server_is_warned_about_once(caplog):
    server = Server(maxmemory="100mb", **{"maxmemory-policy": "allkeys-lru"})
    try:
        for _ in range(2):
            limiter = Limiter("5/minute", store=server.url + "?deadline=10")
            limiter.check("k")
            limiter.close()
        told = [record.getMessage() for record in caplog.records if "maxmemory" in record.getMessage()]
        assert told == [
            f"{server.url}: expected maxmemory-policy noeviction, got allkeys-lru. A full server will forget "
            "which clients are at the limit; set noeviction, or give limits a server of their own."
        ]
    finally:
        server.close()


def test_a_demoted_master_is_left_and_found_again():
    server = Server()
    try:
        client = server.client()
        limiter = Limiter("50 per 50 days", store=server.url + "?deadline=10", on_store_error="deny")

        async def from_a_loop(many):
            async with AsyncLimiter("50 per 50 days", store=server.url + "?deadline=10", on_store_error="deny") as own:
                await own.check("warm")
                client.execute_command("REPLICAOF", "127.0.0.1", "1")
                answers = await asyncio.gather(*[own.check("k") for _ in range(many)])
                client.execute_command("REPLICAOF", "NO", "ONE")
                return answers

        assert limiter.check("k").reason == ""
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
        assert "READONLY" in limiter.check("k").reason
        client.execute_command("REPLICAOF", "NO", "ONE")
        assert limiter.peek("k").remaining in (0, 49)  # refused by the breaker, or nothing was taken meanwhile
        for many in (1, 200):
            answers = asyncio.run(from_a_loop(many))
            assert len(answers) == many
            assert all("READONLY" in answer.reason for answer in answers)
        limiter.close()
    finally:
        server.close()


def reason_of(url):
    """What threads and loops are told by a limiter that cannot use its store; it must be the same."""

    async def from_a_loop():
        async with AsyncLimiter("5/minute", store=url, on_store_error="deny") as limiter:
            return (await limiter.check("k")).reason

    with Limiter("5/minute", store=url, on_store_error="deny") as limiter:
        reason = limiter.check("k").reason
    assert asyncio.run(from_a_loop()) == reason
    return reason


def test_a_missing_password_is_named():
    """The script is longer than what servers take of those who have not named themselves: they hang up on it."""
    server = Server(requirepass="secret")
    try:
        assert reason_of(server.url + "?deadline=10") == "deny: refused EVALSHA: NOAUTH Authentication required."
        with Limiter("5/minute", store=server.url.replace("://", "://:secret@") + "?deadline=10") as limiter:
            assert limiter.check("k").reason == ""
    finally:
        server.close()


def test_a_replica_is_known_when_it_is_connected_to():
    master = Server(**{"repl-diskless-sync-delay": 0})
    replica = Server(replicaof=f"127.0.0.1 {master.port}")
    try:
        while replica.client().info("replication")["master_link_status"] != "up":  # while it loads, it says only that
            pass
        expected = "deny: is a replica, and answers READONLY to what writes"
        assert reason_of(replica.url + "?deadline=10") == expected
        replica.client().config_set("replica-read-only", "no")
        with Limiter("5/minute", store=replica.url + "?deadline=10") as limiter:
            assert limiter.check("k").reason == ""
    finally:
        replica.close()
        master.close()
