"""Small requests that would make the service keep much."""

import sys

import pytest
import redis

from ratekeeper.native import core
from ratekeeper.service.options import Bounds
from ratekeeper.stores.shared import remove
from tests.service.running import ANY, running


def size_of(value):
    """Bytes of a cache, with what it holds."""
    if isinstance(value, dict):
        return sys.getsizeof(value) + sum(size_of(key) + size_of(each) for key, each in value.items())
    if isinstance(value, (list, tuple)):
        return sys.getsizeof(value) + sum(map(size_of, value))
    return sys.getsizeof(value)


@pytest.mark.skipif(core is None, reason="shared memory needs the native core")
def test_a_limit_of_a_caller_reserves_little_shared_memory(tmp_path):
    """45 bytes reserved 1.57 GB."""
    folder = tmp_path / "segment"
    with running(store=f"shm://{folder}", workers=2) as service:
        asked = {"key": "a", "limit": "1024/day sliding_log"}
        assert service.post("/v1/check", asked)[0] == 200
        taken = sum(path.stat().st_blocks * 512 for path in folder.iterdir())
        assert taken < 20_000_000
    remove(str(folder), force=True)


@pytest.mark.skipif(core is None, reason="shared memory needs the native core")
def test_many_limits_of_callers_stay_within_the_budget(tmp_path):
    folder = tmp_path / "segment"
    with running(store=f"shm://{folder}", bounds=Bounds(tables=8_000_000)) as service:
        statuses = [
            service.post("/v1/check", {"key": "a", "limit": f"{count}/day sliding_log"})[0]
            for count in range(1000, 1020)
        ]
        assert statuses == [200] + [507] * 19
        taken = sum(path.stat().st_blocks * 512 for path in folder.iterdir())
        assert taken < 8_000_000
        status, _, problem = service.post("/v1/check", {"key": "a", "limit": "1024/day sliding_log"})
        assert status == 507
        assert "Raise --table-memory, or name fewer limits." in problem["detail"]
    remove(str(folder), force=True)


def test_a_long_log_is_for_the_rules_file():
    with running(resp=ANY) as service:
        asked = {"key": "a", "limit": "1048576/day sliding_log", "cost": 1048576}
        status, _, problem = service.post("/v1/check", asked)
        assert (status, problem["title"]) == (507, "Insufficient Storage")
        wanted = "expected a sliding_log of at most 1,024"
        client = redis.Redis(port=service.addresses["resp"][1], socket_timeout=60)
        with client, pytest.raises(redis.exceptions.ResponseError, match=wanted):
            client.execute_command("RK.CHECK", "a", "1048576/day sliding_log")
        assert service.worker.decider.policy.async_store.size() == 0


def test_a_limit_of_many_parts_is_refused():
    with running() as service:
        limits = [f"{count}/day" for count in range(1, 1000)]
        assert service.post("/v1/check", {"key": "a", "limit": limits})[0] == 400
        assert service.post("/v1/check", {"key": "a", "limit": "1/day" + " " * 100_000})[0] == 400


def test_refused_keys_are_not_kept_raw():
    """250 kB keys, refused, were kept whole in a cache of 4096."""
    with running(resp=ANY, still=True) as service:
        decider = service.worker.decider
        for number in range(40):
            asked = {"key": f"{number}" + "x" * 200_000, "limit": "1/day", "cost": 2}
            assert service.post("/v1/check", asked)[2]["allowed"] is False
            asked["key"] = [asked["key"], number]
            assert service.post("/v1/check", asked)[2]["allowed"] is False
        with redis.Redis(port=service.addresses["resp"][1], socket_timeout=60) as client:
            for number in range(40):
                assert client.execute_command("CL.THROTTLE", f"{number}" + "x" * 200_000, 0, 1, 60, 2)[0] == 1
        caches = [*decider.caches, decider.limits.questions, service.worker.listeners[1].refused]
        assert sum(map(size_of, caches)) < 200_000


def test_a_second_of_refused_keys_is_bounded():
    with running(resp=ANY, still=True) as service:
        with redis.Redis(port=service.addresses["resp"][1], socket_timeout=60) as client:
            pipe = client.pipeline(transaction=False)
            for number in range(20_000):
                pipe.execute_command("CL.THROTTLE", f"flood-{number}", 0, 1, 60, 2)
            assert all(answer[0] == 1 for answer in pipe.execute())
        assert len(service.worker.listeners[1].refused) <= 4096 + 200


def test_methods_and_paths_are_not_kept_raw(tmp_path):
    rules = '[[rules]]\nname = "a"\nmatch = "GET /a"\nlimit = "9/day"\n'
    with running(tmp_path, rules) as service:
        for number in range(30):
            for fields in ({"method": "M" * 200_000 + str(number)}, {"path": "/" + "p" * 200_000 + str(number)}):
                assert service.post("/v1/check", {"request": fields})[0] in (200, 400)
        compiled = service.worker.decider.policy.compiled
        assert size_of(compiled.requests.cache) < 200_000
