"""Names that lock out others, and reloads that stop the service."""

import threading

import pytest

from ratekeeper.limit import parse_limits
from ratekeeper.service.named_limits import NamedLimits
from ratekeeper.service.options import Bounds
from ratekeeper.stores.memory import MemoryStore
from ratekeeper.stores.native import NativeStore
from ratekeeper.testing import FakeClock
from tests.service.running import running


def check(service, limit, **more):
    return service.post("/v1/check", {"key": "k", "limit": limit, **more})


@pytest.fixture
def later(monkeypatch):
    """Move the clock by which limits recover, beside the clock of the service."""
    clock = FakeClock()
    monkeypatch.setattr(NamedLimits, "now", lambda limits: clock.nanos() / 1e9)
    return clock.advance


def test_names_that_have_recovered_give_way(later):
    """1,024 names locked the service for every new limit, for ever."""
    with running(bounds=Bounds(names=16)) as service:
        assert check(service, "5/hour", name="long")[0] == 200
        for number in range(15):
            assert check(service, "1/second", name=f"name-{number}")[0] == 200
        status, _, problem = check(service, "1/second", name="new")
        assert status == 507
        assert problem["detail"] == (
            "limit: expected at most 16 different ones. "
            "Give clients different keys, not different limits, or raise --max-limits."
        )
        later(4)
        for number in range(100):
            assert check(service, "1/second", name=f"new-{number}")[0] == 200
            later(4)
        assert len(service.worker.decider.limits.by_name) <= 16
        assert check(service, "5/hour", name="long")[2]["remaining"] == 3  # what has not recovered was kept


def test_the_least_recently_used_goes_first(later):
    with running(bounds=Bounds(names=3)) as service:
        limits = service.worker.decider.limits
        service.run(paused(service))
        for name in ("a", "b", "c"):
            check(service, "1/second", name=name)
            later(1)
        check(service, "1/second", name="a", cost=1)
        later(10)
        limits.most = 3
        check(service, "1/second", name="d")
        assert {name for _, _, name in limits.by_name} >= {"a", "d"}
        assert "b" not in {name for _, _, name in limits.by_name}


async def paused(service):
    """The periodic work would forget names by itself."""
    service.worker.periodic.cancel()


RULE = '[[rules]]\nname = "rule-{}"\nmatch = "/path-{}"\nlimit = "{}/hour"\n'


class NeverWalked(dict):
    """A dictionary that may be looked into, but not through."""

    def __iter__(self):
        raise AssertionError("this walks over all tables")

    keys = values = items = __iter__


@pytest.mark.parametrize("kind", [NativeStore, MemoryStore])
def test_a_removed_rule_does_not_look_through_the_others(kind):
    """6,000 removed rules stopped the service for 27 s: each looked through all tables."""
    store, limit = kind(clock=FakeClock()), parse_limits("5/hour")
    for number in range(10):
        assert store.table(f"rule-{number}", limit).check("k").remaining == 4
    store.tables, store.states_by_layout = NeverWalked(store.tables), NeverWalked(store.states_by_layout)
    for number in range(9):
        assert store.release(f"rule-{number}", limit)
    assert len(store.tables) == len(store.states_by_layout) == 1
    assert store.table("rule-9", limit).check("k").remaining == 3
    assert store.table("rule-1", limit).check("k").remaining == 4


def test_removed_rules_are_released_a_few_at_a_time(tmp_path):
    rules = "".join([RULE.format(number, number, 100) for number in range(200)])
    with running(tmp_path, rules) as service:
        service.run(paused(service))
        service.worker.options.rules.write_text(RULE.format("only", "only", 1))
        service.run(service.worker.reload())
        decider = service.worker.decider
        assert len(decider.retired.kept) == 200
        for left in (136, 72, 16, 16):
            decider.retired.tidy()
            assert len(decider.retired.kept) == left


def test_rules_are_read_and_compiled_beside_the_loop_that_decides(tmp_path, monkeypatch):
    with running(tmp_path, RULE.format(1, 1, 1)) as service:
        policy, threads = service.worker.decider.policy, []
        for name in ("read_again", "compile"):
            monkeypatch.setattr(policy, name, noting(threads, getattr(policy, name)))
        service.worker.options.rules.write_text(RULE.format(2, 2, 2))
        service.run(service.worker.reload())
        assert [rule.name for rule in policy.rules] == ["rule-2"]
        assert len(threads) == 2

        async def loop_thread():
            return threading.get_ident()

        assert service.run(loop_thread()) not in threads


def noting(threads, function):
    def noted(*arguments):
        threads.append(threading.get_ident())
        return function(*arguments)

    return noted
