"""What a reload leaves behind is kept until it has recovered, and then let go of."""

import os
from contextlib import contextmanager

import pytest

from ratekeeper.native import core
from ratekeeper.service import retired_limits
from ratekeeper.service.named_limits import NamedLimits
from ratekeeper.stores.shared import SharedStore, remove
from tests.service.running import ANY, running

RULES = '[[rules]]\nname = "per-ip"\nby = "ip"\nlimit = "600 per {} minutes"\n'
pytestmark = pytest.mark.skipif(core is None, reason="shared memory needs the native core")


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "segment"
    yield place
    remove(str(place), force=True)


@contextmanager
def serving(tmp_path, folder, **options):
    with running(tmp_path, RULES.format(1440), store=f"shm://{folder}?max_keys=1000", **options) as service:
        yield service


def reload(service, minutes):
    """Another period has states of its own; another count would share them."""
    service.worker.options.rules.write_text(RULES.format(minutes))

    async def now():
        service.worker.decider.reload()

    service.run(now())


def tidy(service, monkeypatch, seconds):
    """What the worker does every moment, so many seconds later."""
    began = retired_limits.monotonic
    monkeypatch.setattr(retired_limits, "monotonic", lambda: began() + seconds)
    clock = NamedLimits.now
    monkeypatch.setattr(NamedLimits, "now", lambda limits: clock(limits) + seconds)

    async def now():
        service.worker.decider.tick()

    service.run(now())
    monkeypatch.undo()


def tables(folder):
    return sum(name.endswith(".table") for name in os.listdir(folder))


def ask(service, limit=None):
    asked = {"request": {"ip": "198.51.100.1"}} if limit is None else {"key": "k", "limit": limit}
    return service.post("/v1/check", asked)[2]["remaining"]


def test_reloads_leave_no_tables(tmp_path, folder, monkeypatch):
    with serving(tmp_path, folder) as service:
        for minutes in range(1437, 1440):
            reload(service, minutes)
            assert ask(service) == 599
        assert tables(folder) == 4  # they may come back
        tidy(service, monkeypatch, 86_000)
        assert tables(folder) == 4
        tidy(service, monkeypatch, 87_000)
        assert tables(folder) == 1
        assert ask(service) == 598  # the one in force is untouched
        assert service.worker.decider.retired.kept == {}


def test_a_limit_that_comes_back_in_time_goes_on(tmp_path, folder, monkeypatch):
    with serving(tmp_path, folder) as service:
        assert [ask(service) for _ in range(3)] == [599, 598, 597]
        reload(service, 1439)
        reload(service, 1440)
        tidy(service, monkeypatch, 87_000)
        assert ask(service) == 596
        assert tables(folder) == 1


def test_limits_of_callers_stay_until_they_have_recovered(tmp_path, folder, monkeypatch):
    with serving(tmp_path, folder) as service:
        assert [ask(service, limit) for limit in ("20/day", "30/day")] == [19, 29]
        reload(service, 1440)
        tidy(service, monkeypatch, 86_000)
        assert tables(folder) == 3
        tidy(service, monkeypatch, 87_000)
        assert tables(folder) == 1
        assert service.worker.decider.limits.budget.total == 0


def test_of_many_the_oldest_go_at_once(tmp_path, folder, monkeypatch):
    with serving(tmp_path, folder) as service:
        for minutes in range(1436, 1440):
            reload(service, minutes)
        monkeypatch.setattr(retired_limits, "MOST_RETIRED", 2)
        tidy(service, monkeypatch, 0)
        assert tables(folder) == 3
        reload(service, 1440)
        assert ask(service) == 599


def test_another_worker_keeps_what_it_uses(tmp_path, folder, monkeypatch):
    other = SharedStore(str(folder))
    with serving(tmp_path, folder) as service:
        limit = service.worker.decider.policy.rules[0].limits[""]
        table = other.table("per-ip", limit)
        assert ask(service) == 599
        reload(service, 1439)
        tidy(service, monkeypatch, 87_000)
        assert tables(folder) == 2
        assert table.check("198.51.100.1").remaining == 598
        del table
        assert other.release("per-ip", limit)  # it has reloaded too: the last one removes it
        assert tables(folder) == 1
        tidy(service, monkeypatch, 87_000)
        assert service.worker.decider.retired.kept == {}
    other.close()


def test_limits_of_envoy_are_let_go_of_too(tmp_path, folder, monkeypatch):
    rate = "{{unit: {}, requests_per_unit: 7, algorithm: gcra}}"
    text = f"domain: edge\ndescriptors:\n  - {{{{key: user, rate_limit: {rate}}}}}\n"
    config = tmp_path / "limits.yaml"
    config.write_text(text.format("second"))
    with running(envoy_config=config, grpc=ANY, store=f"shm://{folder}?max_keys=1000") as service:
        decider = service.worker.decider
        for unit, seconds in (("minute", 1), ("hour", 60)):
            (((path, _), limit),) = decider.retired.users[1]().items()
            assert limit.period == seconds
            decider.policy.store.table(path, limit)
            config.write_text(text.format(unit))

            async def now():
                decider.reload()

            service.run(now())
        tidy(service, monkeypatch, 200)
        assert tables(folder) == 0


def test_garbage_is_collected_once_after_a_series_of_reloads(monkeypatch):
    """Each reload scanned all objects, 10 to 70 ms of callers' time."""
    collected, now = [], [100.0]
    monkeypatch.setattr(retired_limits, "collect", lambda: collected.append(now[0]))
    monkeypatch.setattr(retired_limits, "monotonic", lambda: now[0])
    retired = retired_limits.RetiredLimits(None)
    for _ in range(5):
        with retired.during_reload():
            pass
        retired.tidy()
        now[0] += 0.5
    assert collected == []
    now[0] += 2.0
    retired.tidy()
    retired.tidy()
    assert collected == [104.5]
