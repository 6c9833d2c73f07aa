"""Log lines as JSON, one object per line."""

import json
import logging
import sys

from ratekeeper.service.json_logs import JsonLines


def line(message, *words, error=None, **more):
    record = logging.LogRecord("ratekeeper", logging.WARNING, __file__, 1, message, words, error)
    record.__dict__.update(more)
    return JsonLines().format(record)


def test_a_record_is_one_object_on_one_line():
    text = line("the store %s\nis away", "redis://x", created=1_794_821_400.25, msecs=250.0)
    assert "\n" not in text
    assert json.loads(text) == {
        "at": "2026-11-16T09:30:00.250Z",
        "level": "warning",
        "message": "the store redis://x\nis away",
    }


def test_the_fields_of_an_event_stand_beside_its_message():
    assert json.loads(line("refused", ratekeeper={"rule": "login", "wait": 3}))["rule"] == "login"


def test_an_error_is_a_field():
    try:
        1 / 0  # noqa: B018
    except ZeroDivisionError:
        assert json.loads(line("failed", error=sys.exc_info()))["error"].endswith("ZeroDivisionError: division by zero")
