"""Log lines: bounded, one line each, and without names of clients."""

import logging

from ratekeeper import Request
from ratekeeper.sinks.log import LoggingSink
from ratekeeper.testing import FakeClock
from tests.sinks.samples import HERE, policy, visit


def logged(caplog, own):
    return [record.getMessage() for record in caplog.records if record.name == "ratekeeper"]


def test_log_lines(caplog):
    caplog.set_level(logging.INFO, "ratekeeper")
    own = policy(LoggingSink(clock=FakeClock(0.0)))
    visit(own, "/search/1", "/search/2", "/search/3", "/search/4")
    lines = logged(caplog, own)
    client = caplog.records[0].ratekeeper["client"]
    assert lines == [
        f"ratekeeper shadow rule=dark client={client} method=GET endpoint=/search/{{id}}",
        f"ratekeeper graced rule=search client={client} method=GET endpoint=/search/{{id}} algorithm=sliding_log",
        f"ratekeeper shadow rule=dark client={client} method=GET endpoint=/search/{{id}}",
        f"ratekeeper refused rule=per-ip client={client} method=GET endpoint=/search/{{id}} "
        "algorithm=fixed_window retry_after=60.0",
    ]
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING", "INFO", "WARNING"]
    assert HERE not in caplog.text


def test_the_log_cannot_be_flooded_and_says_what_it_left_out(caplog):
    caplog.set_level("WARNING", logger="ratekeeper")  # whatever another test left it at
    clock = FakeClock(0.0)
    own = policy(LoggingSink(limit="1/second burst 5", spike="1000/second", clock=clock))
    visit(own, *["/"] * 1000)
    assert len(logged(caplog, own)) == 5
    clock.advance(1)
    visit(own, "/")
    assert logged(caplog, own)[-1].endswith("dropped=992")


def test_a_spike_from_one_source_is_told_once_a_minute(caplog):
    clock = FakeClock(0.0)
    own = policy(LoggingSink(limit="1000/second", spike="10/minute", clock=clock))
    visit(own, *["/"] * 50)
    visit(own, *["/"] * 5, peer="198.51.100.7")
    spikes = [line for line in logged(caplog, own) if line.startswith("ratekeeper spike")]
    assert len(spikes) == 1
    assert "above=10/minute" in spikes[0]


def test_a_log_line_stays_one_line(caplog):
    own = policy(LoggingSink(clock=FakeClock(0.0)))
    for _ in range(5):
        own.check(Request("GET", "/", HERE, route='/a\n\x1b[31m"b' + "x" * 10**6))
    for line in logged(caplog, own):
        assert line.isprintable()
        assert len(line) < 500
