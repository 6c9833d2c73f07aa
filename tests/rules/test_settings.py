"""Settings of a rules file, after parsing."""

from ratekeeper.rules.parse import parse
from tests.rules.samples import rule


def response(**words):
    return parse({**rule(), "response": words}).response


def test_defaults():
    settings = parse(rule())
    assert (settings.store, settings.secret, settings.warnings, bool(settings.exempt)) == ("memory://", None, (), False)
    assert settings.response.headers == ("x-ratelimit", "draft-11")


def test_which_responses_are_written_the_short_way():
    assert (response().is_usual, response().is_terse) == (True, True)
    assert not response(headers=["draft-7"]).is_usual
    assert not response(body="text").is_terse
    assert not response(message="Slow down").is_terse
    assert [len(response(headers=names).dialects) for names in ([], ["draft-7"], ["draft-7", "draft-3"])] == [0, 1, 2]
