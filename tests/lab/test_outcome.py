"""What a replay leaves: CSV, JSON and frames, without harm and, if so wished, without names."""

import csv
import json

import pytest

from ratekeeper import lab
from ratekeeper.lab.outcome import escape_formula
from ratekeeper.lab.text import printable
from tests.lab.samples import ONE, RULES, SAMPLE


def test_csv_json_and_frames(tmp_path):
    result = lab.replay(SAMPLE, RULES)
    result.write_csv(tmp_path / "clients.csv")
    rows = list(csv.DictReader((tmp_path / "clients.csv").read_text().splitlines()))
    assert len(rows) == result.clients
    assert rows[0]["client"] == result.everyone[0].client
    assert int(rows[0]["refused"]) == result.everyone[0].refused > 0
    values = json.loads(json.dumps(result.to_json()))
    assert values["refused"] == result.refused
    assert "everyone" not in values
    for library in ("pandas", "polars"):
        pytest.importorskip(library)
        assert len(result.frame(library)) == result.clients


def test_formulas_and_control_characters_of_clients_are_escaped():
    assert escape_formula("=1+1") == "'=1+1"
    assert escape_formula("@x") == "'@x"
    assert escape_formula("1.2.3.4") == "1.2.3.4"
    assert escape_formula(-5) == -5
    assert printable("a\x1b[2Jb\nc") == "a·[2Jb·c"
    assert printable("x" * 100) == "x" * 59 + "…"


def test_anonymous_names_no_client():
    named = lab.replay(SAMPLE, RULES, against=ONE)
    hidden = lab.replay(SAMPLE, RULES, against=ONE, anonymous=True)
    text = json.dumps(hidden.to_json()) + str(hidden) + json.dumps(hidden.rows()) + str(hidden.played)
    assert not any(client.client in text for client in named.everyone)
    assert hidden.everyone[0].client == "client 1"
    assert hidden.everyone[0].refused == named.everyone[0].refused
