"""Marks and curves of the report's pictures."""

import re
from datetime import datetime

import pytest

from ratekeeper.lab.svg import curve, time_ticks


@pytest.mark.parametrize(
    ("seconds", "start", "words"),
    [
        (720, None, ["0", "2 min", "4 min", "6 min", "8 min", "10 min"]),
        (0.05, None, ["0", "10 ms", "20 ms", "30 ms", "40 ms"]),
        (13_480, "1995-08-01T00:00:00Z", ["Aug 01", "01:00", "02:00", "03:00"]),
        (40, "2026-03-01T11:59:50Z", ["11:59:50", "12:00:00", "12:00:10", "12:00:20"]),
        (3 * 86_400, "2026-02-28T06:00:00Z", ["12:00", "Mar 01", "12:00", "Mar 02", "12:00", "Mar 03"]),
        (4 * 365 * 86_400, None, ["0", "365 d", "730 d", "1,095 d"]),
    ],
)
def test_ticks_are_at_round_times(seconds, start, words):
    began = datetime.fromisoformat(start) if start else None
    marks = time_ticks(seconds, began)
    assert [word for _, word in marks] == words
    places = [place for place, _ in marks]
    assert places == sorted(places)
    assert places[0] >= 0
    assert places[-1] <= 0.93


def test_the_share_of_refused_clients_falls_in_steps():
    drawn = curve([(1, 10), (5, 5), (10, 0)], clients=10, now=5, then=10)
    path = re.search(r'd="([^"]*)"', drawn)[1]
    assert re.fullmatch(r"M0\.0 0\.0 H[\d.]+ V65\.0 H940\.8 V130\.0", path)
