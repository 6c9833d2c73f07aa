"""Files that the lab writes: what cannot be written is reported before the work starts."""

import pytest

from ratekeeper import InvalidInput
from ratekeeper.lab.files import check_writable, open_for_writing


def test_a_check_changes_no_file(tmp_path):
    old, new = tmp_path / "old.csv", tmp_path / "new.csv"
    old.write_text("kept")
    check_writable(old)
    check_writable(new)
    assert (old.read_text(), new.exists()) == ("kept", False)


def test_what_cannot_be_written_is_named(tmp_path):
    path = tmp_path / "none" / "x.csv"
    for act in (check_writable, lambda path: open_for_writing(path).__enter__()):
        with pytest.raises(InvalidInput) as caught:
            act(path)
        assert str(caught.value) == f"cannot write {path}: no such file or directory."


def test_a_log_is_never_written_over(tmp_path):
    log = tmp_path / "access.log"
    log.write_text("a line")
    (tmp_path / "link.csv").symlink_to(log)
    with pytest.raises(InvalidInput, match="got one of the logs"):
        check_writable(tmp_path / "link.csv", [tmp_path / "other.log", log])
