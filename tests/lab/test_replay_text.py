"""The text of a replay says what matters first."""

from ratekeeper import lab
from tests.lab.samples import ONE, RULES, SAMPLE


def test_text_says_what_matters_first():
    text = str(lab.replay(SAMPLE, RULES, suggest=0.001, against=ONE))
    lines = text.splitlines()
    assert lines[0] == "400 requests by 45 clients, 1995-08-01T00:00:01Z to 1995-08-01T00:11:11Z"
    assert lines[1] == "6 would be refused (1.5 %), of 3 clients (6.7 %)"
    assert "time zones are ignored" in text
    assert "least limit that refuses" in text
    assert "at most 0.1 % of clients" in text
    assert "beside the rules before" in text
