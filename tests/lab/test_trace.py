"""Recorded calls from a file."""

import pytest

from ratekeeper import InvalidInput
from ratekeeper.lab import load_trace
from tests.lab.samples import SAMPLE


def test_rows_of_seconds_client_and_cost(tmp_path):
    path = tmp_path / "calls.csv"
    path.write_text("12.5,ann\n\n12.75, bob, 3\n")
    traffic = load_trace(path)
    assert traffic.name == str(path)
    assert (len(traffic.times), sorted(traffic.clients), sum(traffic.costs)) == (2, ["ann", "bob"], 4)


def test_an_access_log():
    assert len(load_trace(SAMPLE).times) == 400


@pytest.mark.parametrize("row", ["1,", "x,ann", "-1,ann", "1,ann,0", "1,ann,many", "1,ann,1,1", "inf,ann", "nan,ann"])
def test_a_wrong_row_is_named(tmp_path, row):
    path = tmp_path / "calls.csv"
    path.write_text(f"0,ann\n{row}\n")
    with pytest.raises(InvalidInput) as caught:
        load_trace(path)
    assert str(caught.value) == f"{path}, line 2: expected seconds, client and cost, got {row!r}."


def test_a_file_of_something_else_is_refused(tmp_path):
    path = tmp_path / "poem.txt"
    path.write_text("roses are red\n")
    with pytest.raises(InvalidInput, match="expected an access log or lines of seconds, client and cost, got neither"):
        load_trace(path)
