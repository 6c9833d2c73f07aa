"""What a reload leaves behind is kept until it has recovered, and then let go of."""

import os
from contextlib import contextmanager

import pytest

from ratekeeper.native import core
from ratekeeper.service import retired_limits
from ratekeeper.service.named_limits import NamedLimits
from ratekeeper.stores.shared import SharedStore, remove
from tests.service.running import ANY, running

RULES = '[[rules]]\nname = "per-ip"\nby = "ip"\nlimit = "{}/day"\n'
pytestmark = pytest.mark.skipif(core is None, reason="shared memory needs the native core")


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "segment"
    yield place
    remove(str(place), force=True)


@contextmanager
def serving(tmp_path, folder, **options):
    with running(tmp_path, RULES.format(600), store=f"shm://{folder}?max_keys=1000", **options) as service:
        yield service


def reload(service, limit):
    service.worker.options.rules.write_text(RULES.format(limit))

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
        for limit in range(601, 604):
            reload(service, limit)
            assert ask(service) == limit - 1
        assert tables(folder) == 4  # they may come back
        tidy(service, monkeypatch, 86_000)
        assert tables(folder) == 4
        tidy(service, monkeypatch, 87_000)
        assert tables(folder) == 1
        assert ask(service) == 601  # the one in force is untouched
        assert service.worker.decider.retired.kept == {}


def test_a_limit_that_comes_back_in_time_goes_on(tmp_path, folder, monkeypatch):
    with serving(tmp_path, folder) as service:
        assert [ask(service) for _ in range(3)] == [599, 598, 597]
        reload(service, 601)
        reload(service, 600)
        tidy(service, monkeypatch, 87_000)
        assert ask(service) == 596
        assert tables(folder) == 1


def test_limits_of_callers_stay_until_they_have_recovered(tmp_path, folder, monkeypatch):
    with serving(tmp_path, folder) as service:
        assert [ask(service, limit) for limit in ("20/day", "30/day")] == [19, 29]
        reload(service, 600)
        tidy(service, monkeypatch, 86_000)
        assert tables(folder) == 3
        tidy(service, monkeypatch, 87_000)
        assert tables(folder) == 1
        assert service.worker.decider.limits.budget.total == 0


def test_of_many_the_oldest_go_at_once(tmp_path, folder, monkeypatch):
    with serving(tmp_path, folder) as service:
        for limit in range(601, 605):
            reload(service, limit)
        monkeypatch.setattr(retired_limits, "MOST_RETIRED", 2)
        tidy(service, monkeypatch, 0)
        assert tables(folder) == 3
        reload(service, 600)
        assert ask(service) == 599


def test_another_worker_keeps_what_it_uses(tmp_path, folder, monkeypatch):
    other = SharedStore(str(folder))
    with serving(tmp_path, folder) as service:
        limit = service.worker.decider.policy.rules[0].limits[""]
        table = other.table("per-ip", limit)
        assert ask(service) == 599
        reload(service, 601)
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
    rate = "{{unit: minute, requests_per_unit: {}, algorithm: gcra}}"
    text = f"domain: edge\ndescriptors:\n  - {{{{key: user, rate_limit: {rate}}}}}\n"
    config = tmp_path / "limits.yaml"
    config.write_text(text.format(7))
    with running(envoy_config=config, grpc=ANY, store=f"shm://{folder}?max_keys=1000") as service:
        decider = service.worker.decider
        for count in (8, 9):
            (((path, _), limit),) = decider.retired.users[1]().items()
            assert limit.count == count - 1
            decider.policy.store.table(path, limit)
            config.write_text(text.format(count))

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
