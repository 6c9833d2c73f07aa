"""Warnings of rules that do less than they seem to."""

import tomllib

from ratekeeper.rules.parse import parse
from tests.rules.samples import EVERYTHING, rule


def test_what_is_probably_not_meant_is_told():
    assert parse(rule(by="header:X-Tenant")).warnings == (
        "rule 'r' counts by 'header:X-Tenant', which a client can change at will. "
        "Add a rule by ip for every path beside it.",
    )
    both = rule(by="header:X-Tenant")
    both["rules"].append({"name": "ip", "limit": "1/minute"})
    assert parse(both).warnings == ()
    keyed = {**rule(by="user"), "identity": {"user": ["app:user", "header:X-Api-Key"]}}
    assert "counts by 'header:X-Api-Key', which" in parse(keyed).warnings[0]
    assert "counts by 'header:X-Api-Key', which" in parse({**keyed, **rule(by=["ip", "user"])}).warnings[0]
    keyed["identity"]["api_keys"] = {"0" * 64: {"user": "acme"}}  # now only that one is believed
    assert parse(keyed).warnings == ()
    assert "is ignored" in parse(tomllib.loads(EVERYTHING)).warnings[0]
    assert "is ignored" in parse({**rule(), "client_header": "Forwarded"}).warnings[0]
