"""Modes that an operator sets by hand: every worker of a folder follows them, and a damaged file changes nothing."""

import pytest

from ratekeeper import InvalidInput
from ratekeeper.service.overrides import Overrides


def test_workers_of_one_folder_follow_each_other(tmp_path):
    one, two = Overrides(tmp_path), Overrides(tmp_path)
    one.set("login", "shadow")
    assert two.mode("login", "enforce") == "enforce"
    assert two.refresh()
    assert not two.refresh()
    assert (two.mode("login", "enforce"), two.mode("search", "enforce")) == ("shadow", "enforce")
    two.kill(True)
    assert one.refresh()
    assert one.mode("search", "enforce") == "off"
    one.kill(False)
    one.set("login", None)
    assert Overrides(tmp_path).mode("login", "enforce") == "enforce"


@pytest.mark.parametrize("text", ["", "[]", '{"modes": 5}', '{"killed": true}', "\x00"])
def test_a_damaged_file_changes_nothing(tmp_path, text):
    overrides = Overrides(tmp_path)
    overrides.set("login", "off")
    (tmp_path / "switches.json").write_text(text + " " * 200)
    assert not overrides.refresh()
    assert overrides.mode("login", "enforce") == "off"


def test_an_unknown_mode_is_refused():
    overrides = Overrides(None)
    with pytest.raises(InvalidInput, match=r"^mode: expected enforce, shadow or off, got 'on'\.$"):
        overrides.set("login", "on")
    assert not overrides.refresh()
