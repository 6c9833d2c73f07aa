"""The report is complete, valid HTML, and safe whatever a log contains."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from ratekeeper import InvalidInput, lab
from ratekeeper.algorithms import ALGORITHMS
from ratekeeper.lab.report import first_limit, headline, replay_page, simulation_page, write_replay

SAMPLE = Path(__file__).parents[1] / "data" / "nasa-aug95-400.log"
RULES = Path(__file__).parents[2] / "examples" / "lab" / "rules.toml"
VOID = {"meta", "br", "input", "rect", "line", "path"}


class Outline(HTMLParser):
    """Tags that open and close as they should, and all that a page would fetch."""

    def __init__(self, page):
        super().__init__()
        self.open, self.fetched, self.words = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.fetched += [value for name, value in attributes if name in ("src", "href") and not value.startswith("#")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        if self.open and self.open[-1] not in ("script", "style"):
            self.words.append(text.strip())


def played(page):
    return json.loads(re.search(r'id="played">(.*?)</script>', page, re.S)[1])


def test_the_page_of_a_replay_is_complete():
    replay = lab.replay(SAMPLE, RULES, suggest=0.001, against={"rules": [{"name": "before", "limit": "5/minute"}]})
    page = replay_page(replay)
    outline = Outline(page)
    assert outline.open == []
    assert outline.fetched == []
    words = " ".join(outline.words)
    for text in (headline(replay), f"{replay.refused:,}", "per-client", "12/minute burst 6", "What would change",
                 "Which limit refuses at most 0.1 % of clients?", replay.top_refused[0].client, "Try another limit",
                 "Time zones are ignored", "The busiest paths", "1995-08-01 00:00:01 to "):  # fmt: skip
        assert text in words, text
    data = played(page)
    assert len(data["steps"]) == len(data["who"]) == 400
    assert (data["count"], data["burst"], data["micros"]) == (12, 6, 60_000_000)
    assert "{" + "played}" not in page


def test_the_page_of_a_simulation_is_complete():
    simulation = lab.simulate("10/second burst 5", "retry_storm", algorithms=ALGORITHMS)
    page = simulation_page(simulation)
    outline = Outline(page)
    assert outline.open == []
    words = " ".join(outline.words)
    assert all(name in words for name in ALGORITHMS)
    assert "refused clients do not come back" in words
    data = played(page)
    steps, times = 0, []
    for step in data["steps"]:
        steps += step
        times.append(steps)
    assert times == list(simulation.traffic.times)


def test_text_of_clients_is_escaped(tmp_path):
    evil = "</script><script>alert(1)</script>"
    path = tmp_path / "log"
    line = '{name} - - [01/Mar/2026:12:00:00 +0000] "GET /{name}" 200 5\n'
    path.write_text(
        "".join(line.format(name=name) for name in [evil, evil, "<img/src=x>", "a&b", "{body}", "{played}"])
    )
    page = replay_page(lab.replay(path, {"rules": [{"name": "all", "by": "all", "limit": "1/minute"}]}))
    assert "alert(1)<" not in page
    assert "<img/src" not in page
    assert Outline(page).open == []
    assert page.count('id="played"') == 1
    assert len(played(page)["steps"]) == 6


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ("1000/minute", "These rules would have refused no request"),
        ("44/hour fixed_window", "These rules would have refused only the busiest clients"),
        ("2/hour", "These rules would have refused 77.3 % of ordinary clients at least once"),
    ],
)
def test_the_headline_gives_the_result(limit, words, tmp_path):
    replay = lab.replay(SAMPLE, {"rules": [{"name": "a", "limit": limit}]})
    assert headline(replay) == words
    (tmp_path / "empty").write_text("")
    assert headline(lab.replay(tmp_path / "empty", RULES)) == "This log has no requests"


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("12/minute burst 6", "12/minute burst 6"),
        ("30/hour fixed_window", "30/hour fixed_window"),
        ("500/month, 5/second", "500/month"),
        ("free: 5/minute; paid: 50/minute", "5/minute"),
        ("10/second, 100/minute", "10/second"),
        ("unlimited", "100/minute"),
        ("5 concurrent", "100/minute"),
        ("", "100/minute"),
    ],
)
def test_the_sliders_start_at_the_first_limit(text, limit):
    assert str(first_limit(text)) == limit


def test_a_path_that_cannot_be_written_raises(tmp_path):
    with pytest.raises(InvalidInput, match=r"^cannot write .*report\.html: no such file or directory\.$"):
        write_replay(lab.replay(SAMPLE, RULES), tmp_path / "no" / "report.html")
