"""Small requests that would make the service keep much."""

import os
import sys

import grpc
import pytest
import redis
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc
from hypothesis import given, settings
from hypothesis import strategies as st

from ratekeeper.errors import InvalidInput
from ratekeeper.limit import Limit, parse_limits
from ratekeeper.native import core
from ratekeeper.service.options import Bounds, Options
from ratekeeper.service.start import share_store
from ratekeeper.service.table_budget import share_of_rules
from ratekeeper.stores import open_store
from ratekeeper.stores.shared import MAX_KEYS, remove
from ratekeeper.stores.shared_files import keys_within, table_bytes
from tests import tier
from tests.service.running import ANY, running

MEGABYTE = 1_048_576


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


def test_a_calendar_of_a_caller_has_a_time_zone_of_the_rules(tmp_path):
    """Six hundred zones would take 240 MB, and stop the loop for a minute."""
    with running(tmp_path, '[[rules]]\nname = "a"\nlimit = "5/day calendar Asia/Tokyo"\n') as service:
        zones = ("Asia/Tokyo", "UTC", "Europe/Berlin")
        answers = [service.post("/v1/check", {"key": "a", "limit": f"9/day calendar {zone}"}) for zone in zones]
        assert [status for status, _, _ in answers] == [200, 200, 507]
        assert answers[2][2]["detail"] == (
            "limit: expected a calendar of UTC, or of a time zone that a rule has, got 'Europe/Berlin'. "
            "Add a rule with timezone = 'Europe/Berlin'."
        )
        assert service.post("/v1/check", {"key": "a", "limit": "9/month"})[0] == 200


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


RULE_LIMITS = st.sampled_from(
    ["5/minute", "9/day fixed_window", "7/hour sliding_window slices 9", "100/day sliding_log", "unlimited"]
).map(parse_limits)


def taken_by(places, share):
    return sum(
        table_bytes(limit, keys_within(limit, share, MAX_KEYS))
        for _, limit in places
        if not limit.parts[0].is_unlimited
    )


@settings(max_examples=tier.examples(100))
@given(st.lists(RULE_LIMITS, max_size=40), st.integers(1, 20))
def test_the_tables_of_the_rules_fit_into_their_memory(limits, megabytes):
    places = [(f"rule {number}", limit) for number, limit in enumerate(limits)]
    try:
        share = share_of_rules(places, megabytes * MEGABYTE)
    except InvalidInput:
        assert taken_by(places, 1) > megabytes * MEGABYTE
        return
    assert taken_by(places, share) <= megabytes * MEGABYTE


def test_ten_thousand_rules_of_two_workers_share_256_megabytes():
    """They filled the machine's memory."""
    places = [(f"rule {number}", Limit(1 + number % 50, "minute")) for number in range(10_000)]
    share = share_of_rules(places, 256 * MEGABYTE)
    assert keys_within(places[0][1], share, MAX_KEYS) >= 400
    assert 150 * MEGABYTE < taken_by(places[:1], share) * 10_000 <= 256 * MEGABYTE


@pytest.mark.skipif(core is None, reason="shared memory needs the native core")
def test_the_service_bounds_its_shared_memory_and_refuses_rules_that_cannot_fit(tmp_path):
    rules = tmp_path / "rules.toml"
    rules.write_text("".join(f'[[rules]]\nname = "{n}"\nmatch = "/{n}"\nlimit = "5/day"\n' for n in range(200)))
    options = Options(rules=rules, workers=2, bounds=Bounds(rule_tables=2 * MEGABYTE, tables=MEGABYTE))
    shared, segment = share_store(options, tmp_path)
    store = open_store(shared.store)
    try:
        for number in range(200):
            store.table(str(number), Limit(5, "day"))
        for number in range(40):  # limits of callers, whose budget says how many keys
            store.table(f"caller {number}", Limit(5, "day"), max_keys=256)
        folder = store.folder.path
        taken = sum(os.stat(f"{folder}/{name}").st_blocks * 512 for name in os.listdir(folder))
        assert taken <= 3 * MEGABYTE
    finally:
        store.close()
        remove(segment, force=True)
    with pytest.raises(InvalidInput) as caught:
        share_store(Options(rules=rules, workers=2, bounds=Bounds(rule_tables=MEGABYTE)), tmp_path)
    assert str(caught.value) == (
        "--rule-memory: expected at least 2 MB for the 200 limits of the rules, got 1. "
        "Raise it, use fewer rules or shorter logs, or a Redis store."
    )


def test_a_reload_that_cannot_fit_keeps_the_old_rules(tmp_path):
    rules = '[[rules]]\nname = "{0}"\nmatch = "/{0}"\nlimit = "5/day"\n'
    folder = tmp_path / "segment"
    store = f"shm://{folder}?max_bytes={3 * MEGABYTE}&table_bytes={MEGABYTE}"
    bounds = Bounds(rule_tables=MEGABYTE, tables=MEGABYTE)
    with running(tmp_path, rules.format(0), bounds, store=store, workers=2) as service:
        decider = service.worker.decider
        decider.options.rules.write_text("".join(rules.format(n) for n in range(200)))
        with pytest.raises(InvalidInput, match="--rule-memory: expected at least 2 MB"):
            service.run(decider.reload_aside())
        assert len(decider.policy.rules) == 1
        decider.options.rules.write_text("".join(rules.format(n) for n in range(20)))
        service.run(decider.reload_aside())
        assert len(decider.policy.rules) == 20
        assert decider.policy.async_store.table_bytes < MEGABYTE // 10
    remove(str(folder), force=True)


def test_limits_that_envoy_sends_are_within_the_bounds_of_callers(tmp_path):
    """Each different override made a table, and none was ever released."""
    (tmp_path / "limits.yaml").write_text("domain: d\n")
    options = {"envoy_config": tmp_path / "limits.yaml", "grpc": ANY, "http": None}
    with (
        running(bounds=Bounds(names=16), still=True, **options) as service,
        grpc.insecure_channel("{}:{}".format(*service.addresses["grpc"])) as channel,
    ):
        ask = rls_pb2_grpc.RateLimitServiceStub(channel).ShouldRateLimit

        def outcome(count, unit=4):
            request = rls_pb2.RateLimitRequest(domain="d")
            descriptor = request.descriptors.add(limit={"requests_per_unit": count, "unit": unit})
            descriptor.entries.add(key="k", value="v")
            try:
                return ask(request).overall_code
            except grpc.RpcError as error:
                return error.code()

        assert [outcome(count) for count in range(1, 17)] == [rls_pb2.RateLimitResponse.OK] * 16
        assert {outcome(count) for count in range(17, 60)} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert outcome(1) == rls_pb2.RateLimitResponse.OVER_LIMIT  # those that are there go on
        assert outcome(0) == rls_pb2.RateLimitResponse.OVER_LIMIT  # nothing passes: that needs no table
        assert len(service.worker.decider.limits.by_name) == 16
