"""What a replay leaves: CSV, JSON and frames, without harm and, if so wished, without names."""

import csv
import json

import pytest

from ratekeeper import lab
from ratekeeper.lab.outcome import escape_formula
from ratekeeper.lab.text import printable
from tests.lab.samples import ONE, RULES, SAMPLE


def test_csv_json_and_frames(tmp_path):
    found = lab.replay(SAMPLE, RULES)
    found.write_csv(tmp_path / "clients.csv")
    rows = list(csv.DictReader((tmp_path / "clients.csv").read_text().splitlines()))
    assert len(rows) == found.clients
    assert rows[0]["client"] == found.everyone[0].client
    assert int(rows[0]["refused"]) == found.everyone[0].refused > 0
    plain = json.loads(json.dumps(found.to_json()))
    assert plain["refused"] == found.refused
    assert "everyone" not in plain
    for library in ("pandas", "polars"):
        pytest.importorskip(library)
        assert len(found.frame(library)) == found.clients


def test_what_clients_write_does_no_harm():
    assert escape_formula("=1+1") == "'=1+1"
    assert escape_formula("@x") == "'@x"
    assert escape_formula("1.2.3.4") == "1.2.3.4"
    assert escape_formula(-5) == -5
    assert printable("a\x1b[2Jb\nc") == "a·[2Jb·c"
    assert printable("x" * 100) == "x" * 59 + "…"


def test_nobody_is_named_if_so_wished():
    named = lab.replay(SAMPLE, RULES, against=ONE)
    hidden = lab.replay(SAMPLE, RULES, against=ONE, anonymous=True)
    text = json.dumps(hidden.to_json()) + str(hidden) + json.dumps(hidden.rows()) + json.dumps(hidden.played)
    assert not any(client.client in text for client in named.everyone)
    assert hidden.everyone[0].client == "client 1"
    assert hidden.everyone[0].refused == named.everyone[0].refused
