"""Rules files in three formats: refused with a reason, or able to decide any request."""

from __future__ import annotations

from fuzz.choices import Choices
from ratekeeper import MemoryStore
from ratekeeper.errors import RatekeeperError
from ratekeeper.identity.request import Request
from ratekeeper.rules.files import RulesContent, read_text
from ratekeeper.rules.lines import locator
from ratekeeper.rules.lint import advise
from ratekeeper.rules.parse import parse
from ratekeeper.rules.policy import Policy
from ratekeeper.testing import FakeClock

SUFFIXES = (".toml", ".json", ".yaml")
REQUESTS = [
    Request("GET", "/search/a%2fb//../c;d=e", "203.0.113.9", {"X-Api-Key": "k", "Host": "example.com"}, size=3),
    Request("POST", "/", None, {"Authorization": "Bearer a.b.c"}, query="a=1&b=2"),
]


def check(data: bytes) -> None:
    choices = Choices(data)
    suffix = choices.of(SUFFIXES)
    try:
        text = choices.rest().decode()
    except UnicodeDecodeError:
        return
    try:
        content = RulesContent(read_text(text, suffix, "rules" + suffix))
        content.locate = locator(text, suffix)
        policy = Policy(parse(content, "rules" + suffix), store=MemoryStore(max_keys=100), clock=FakeClock())
    except RatekeeperError as error:
        refusal = str(error)
        policy = None
    if policy is None:
        assert len(refusal) < 20_000, "an error that nobody can read"
        return
    advise(policy.rules, policy.compiled.identity)
    for request in REQUESTS:
        verdict = policy.check(request)
        assert verdict.allowed or verdict.status >= 400
        assert all(b"\n" not in value for _, value in verdict.headers)
        assert verdict.allowed or verdict.body
    policy.close()
