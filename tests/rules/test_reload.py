"""A rules file that changes is read again; one that is wrong changes nothing."""

import pytest

from ratekeeper import InvalidInput, InvalidRules, Policy
from ratekeeper.testing import FakeClock
from tests.rules.deciding import ask, count, make


def test_reload_is_whole_and_a_bad_file_changes_nothing(tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text('[[rules]]\nname = "r"\nlimit = "2/minute"\n')
    policy = Policy.load(path, clock=FakeClock(100.0))
    assert count(policy, 2) == 2
    for bad in ("", "rules = 1", '[[rules]]\nname = "r"\nlimit = "2/mintue"\n', "]["):
        path.write_text(bad)
        with pytest.raises(InvalidRules):
            policy.reload()
        assert not ask(policy).allowed
        assert ask(policy).retry_after == 30.0
    path.write_text('[[rules]]\nname = "r"\nlimit = "2/minute burst 4"\n')
    policy.reload()
    assert count(policy, 5) == 2


def test_the_watcher_reloads_what_changed_and_keeps_what_works(tmp_path, caplog):
    from ratekeeper.rules.reload import Watcher

    path = tmp_path / "rules.json"
    path.write_text('{"rules": [{"name": "r", "limit": "1/minute"}]}')
    policy = Policy.load(path)
    errors = []
    watcher = Watcher(policy, 3600.0, errors.append)
    try:
        assert watcher.look()
        path.write_text('{"rules": [{"name": "r", "limit": "1/minute"}, {"name": "s", "limit": "1/hour"}]}')
        assert watcher.look()
        assert [rule.name for rule in policy.rules] == ["r", "s"]
        path.write_text("{")
        assert watcher.look()
        assert watcher.look()  # told once
        assert [type(error) for error in errors] == [InvalidRules]
        path.unlink()
        assert watcher.look()
        assert len(policy.rules) == 2
        assert "the old ones stay" in caplog.text
    finally:
        watcher.stop()


def test_a_policy_that_is_gone_is_no_longer_watched(tmp_path):
    path = tmp_path / "rules.json"
    path.write_text('{"rules": [{"name": "r", "limit": "1/minute"}]}')
    policy = Policy.load(path, watch=3600.0)
    watcher = policy._watcher
    assert watcher.look()
    del policy
    assert not watcher.look()
    watcher.stop()


def test_watching_needs_a_file():
    policy, _ = make({"limit": "1/minute"})
    with pytest.raises(InvalidInput, match="expected a policy that was loaded from a file"):
        policy.watch()
    with pytest.raises(InvalidInput, match="expected a policy that was loaded from a file"):
        policy.reload()
