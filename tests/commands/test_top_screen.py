"""The screen of ratekeeper top: rates, bounds of the window, and hostile names."""

import re

from hypothesis import given
from hypothesis import strategies as st

from ratekeeper.commands.top_screen import Rates, View, line, screen
from ratekeeper.lab.text import PLAIN, Style


def status(at=0.0, allowed=0, refused=0, **more):
    rule = {"name": "per-ip", "mode": "enforce", "limit": {"everybody": "2/hour"},
            "totals": {"allowed": allowed, "refused": refused}, "headroom": 0.5}  # fmt: skip
    return {
        "at": at, "uptime": at, "rules": {"per-ip": [1, 2, 3]}, "killed": False, "workers": 2, "named": {},
        "store": {"kind": "redis", "answers": True, "trouble": "", "seconds": 0.0004},
        "decision_seconds": {"p50": 2.5e-05, "p99": 1e-04}, "refused_clients": [["4267bb0c6f83", 3]],
        "table": [rule], **more,
    }  # fmt: skip


def test_the_first_rates_are_those_of_the_service():
    view = View()
    view.update(status(allowed=100, refused=100))
    assert view.total == Rates(4, 2)  # what was over a limit that did not refuse it has passed


def test_later_rates_are_differences():
    view = View()
    view.update(status(at=10, allowed=100, refused=10))
    view.update(status(at=12, allowed=150, refused=11))
    assert view.total == Rates(25, 0.5)
    view.update(status(at=12, allowed=999))  # no new second: nothing to divide by
    assert view.total == Rates(25, 0.5)
    view.update(status(at=3, uptime=1, allowed=5) | {"at": 13})  # it has started anew
    assert view.total == Rates(4, 2)
    assert len(view.history) == 3


def test_the_whole_picture():
    view = View()
    view.update(status(at=10, allowed=100, refused=10))
    view.update(status(at=12, allowed=150, refused=11))
    assert screen(view, "http://x", 80, 40, PLAIN) == [
        "ratekeeper at http://x",
        "deciding   up 12 s   2 workers",
        "store redis answers in 400 µs   decisions p50 < 25 µs, p99 < 100 µs",
        "",
        "allowed        25/s   ▂█",
        "refused       0.5/s   █▂",
        "",
        "rule    limit   allowed/s  refused/s  allowed  refused  left     mode",
        "──────  ──────  ─────────  ─────────  ───────  ───────  ────  ───────",
        "per-ip  2/hour         25        0.5      150       11   50%  enforce",
        "",
        "refused most, this minute",
        "  4267bb0c6f83          3",
        "  ratekeeper digest ADDRESS tells which of them is an address",
    ]
    assert line(view, "12:00:00") == (
        "12:00:00   allowed      25/s   refused     0.5/s   store 400 µs   most refused 4267bb0c6f83"
    )


def test_trouble_is_said():
    view = View()
    store = {"kind": "redis", "answers": False, "trouble": "timed out", "seconds": 0.05}
    view.update(status(killed=True, store=store, refused_clients=[], table=[]))
    text = "\n".join(screen(view, "http://x", 100, 40, PLAIN, trouble="http://x: does not answer"))
    for words in ("http://x: does not answer", "NOT LIMITING", "store redis DOES NOT ANSWER (timed out)",
                  "no rules and no calls yet", "nobody refused in this minute"):  # fmt: skip
        assert words in text
    assert "store does not answer" in line(view, "")


NAMES = st.text(max_size=80)


@given(width=st.integers(1, 200), height=st.integers(1, 50), names=st.lists(NAMES, max_size=8), colours=st.booleans())
def test_it_stays_in_its_window_and_names_cannot_draw(width, height, names, colours):
    view = View()
    facts = {"totals": {"allowed": 1}, "headroom": 1.0}
    view.update(status(named=dict.fromkeys(names, facts), refused_clients=[[name, 1] for name in names]))
    lines = screen(view, "http://x", width, height, Style(colours=colours))
    assert len(lines) <= height
    for each in lines:
        plain = re.sub(r"\x1b\[\d+m", "", each)
        assert len(plain) <= max(width, 20)
        assert plain.isprintable()
