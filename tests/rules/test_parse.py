"""Rules files: what they may say, in three languages, and every message in full."""

# ruff: noqa: E501 - a table reads better with its rows whole

import tomllib

import pytest

from ratekeeper import InvalidRules, Policy
from ratekeeper.rules.parse import parse
from tests.rules.samples import EVERYTHING, rule


def without(name, found):
    del found["rules"][0][name]
    return found


MESSAGES = [
    (rule(limit="1/day", timezone="Europe/Berlin"), "rules: rules[0].timezone (rule 'r'): expected a calendar limit beside "
     "it, got 'Europe/Berlin'. Write limit = '1000/day calendar', limit = '1000/month', or window = 'calendar'."),
    (rule(limit="1/hour", window="calendar"), "rules: rules[0].limit (rule 'r'): expected one day, week, month or year with "
     "'calendar', got hour. Shorter periods start at full hours, minutes and seconds with fixed_window ('1/hour')."),
    (rule(limit="1/day", window="calender"), "rules: rules[0].window (rule 'r'): expected 'calendar' or 'first-use', got "
     "'calender'. Did you mean 'calendar'?"),
    (rule(limit="1/day", window="calendar", algorithm="gcra"), "rules: rules[0].limit (rule 'r'): expected fixed_window or no "
     "algorithm beside window = 'calendar', got 'gcra'."),
    (rule(limit="1/month", timezone="Berlin"), "rules: rules[0].limit (rule 'r'): expected a time zone such as "
     "'Europe/Berlin', got 'Berlin'. Did you mean 'Europe/Berlin'? ('1/month')."),
    (without("limit", rule(timezone="UTC", allow_from=[])), "rules: rules[0].timezone (rule 'r'): expected a limit beside it, "
     "got 'UTC'. Without a limit it does nothing."),
    ({}, "rules: expected 'rules': a list of rules ([[rules]] in TOML). It is missing."),
    ({"rules": {}}, "rules: rules: expected a list of rules ([[rules]] in TOML), got {}."),
    ({"rules": [], "stroe": "memory://"}, "rules: expected one of store, timezone, on_store_error, trusted_proxies, client_header, "
     "secret, exempt, identity, tiers, response, rules, got 'stroe'. Did you mean 'store'?"),
    ({"rules": [{"limit": "1/minute"}]}, "rules: rules[0]: expected 'name': a name of printable ASCII without quotes and "
     "backslashes. It is missing."),
    (rule(limit="1/mintue"), "rules: rules[0].limit (rule 'r'): expected a unit of time (millisecond, second, minute, hour, "
     "day, week), got 'mintue'. Did you mean 'minute'? ('1/mintue')."),
    (rule(limit="0 concurrent"), "rules: rules[0].limit (rule 'r'): expected a count from 1 to 65,536, got 0 "
     "('0 concurrent'). To switch the rule off, write mode = 'off'; to refuse everybody, allow_from = []."),
    (rule(limit=5), "rules: rules[0].limit (rule 'r'): expected a limit such as '100/minute', or 'unlimited', a list of "
     "limits, a table of them by tier, or 'function:NAME', got 5."),
    (rule(limit=[]), "rules: rules[0].limit (rule 'r'): expected a limit such as '100/minute', or 'unlimited', a list of "
     "limits, a table of them by tier, or 'function:NAME', got []."),
    (rule(limit={"free": "1/minute"}), "rules: rules[0].limit (rule 'r'): expected a limit for everybody, as there is no "
     "[tiers], got {'free': '1/minute'}. Add [tiers] with 'from' and 'default'."),
    ({**rule(limit={"fre": "1/minute"}), "tiers": {"default": "free"}}, "rules: rules[0].limit (rule 'r'): expected a limit "
     "for the default tier 'free' too, got ['fre']. Did you mean 'fre'?"),
    (rule(algorithm="gcar"), "rules: rules[0].algorithm (rule 'r'): expected 'fixed_window', 'sliding_log', "
     "'sliding_window', 'token_bucket', 'leaky_bucket' or 'gcra', got 'gcar'. Did you mean 'gcra'?"),
    (rule(mode="shadwo"), "rules: rules[0].mode (rule 'r'): expected 'enforce', 'shadow' or 'off', got 'shadwo'. "
     "Did you mean 'shadow'?"),
    (rule(by="usr"), "rules: rules[0].by[0] (rule 'r'): expected one of ip, user, api_key, tier, route, host, method, all, "
     "header:NAME, cookie:NAME, query:NAME, jwt:NAME, app:NAME, function:NAME, got 'usr'. Did you mean 'user'?"),
    (rule(by=[]), "rules: rules[0].by (rule 'r'): expected ip, user, api_key, tier, route, host, method, all, or "
     "header:NAME, cookie:NAME, query:NAME, jwt:NAME, app:NAME, function:NAME, or a list of them, got []."),
    (rule(by="function:f"), "rules: rules[0].by[0] (rule 'r'): expected a function that was given (none was), got "
     "'function:f'. Pass it: Policy.load(path, functions={...}); or name its module: 'function:MODULE:NAME'."),
    (rule(limit="function:f"), "rules: rules[0].limit (rule 'r'): expected a function that was given (none was), got "
     "'function:f'. Pass it: Policy.load(path, functions={...}); or name its module: 'function:MODULE:NAME'."),
    (rule(limit="function:no_such.limits:of"), "rules: rules[0].limit (rule 'r'): expected a function that can be imported, "
     "got 'function:no_such.limits:of'. There is no module 'no_such'. Install it, or add its folder to PYTHONPATH."),
    (rule(limit="function:json:dmps"), "rules: rules[0].limit (rule 'r'): expected a function that can be imported, got "
     "'function:json:dmps'. json has no 'dmps'. Did you mean 'dumps'?"),
    (rule(limit="function:json:__name__"), "rules: rules[0].limit (rule 'r'): expected a function that can be imported, got "
     "'function:json:__name__'. It is no function, but str."),
    (rule(exempt=["function:json:dmps"]), "rules: rules[0].exempt[0] (rule 'r'): expected a function that can be imported, "
     "got 'function:json:dmps'. json has no 'dmps'. Did you mean 'dumps'?"),
    (rule(count_when="status > 4"), "rules: rules[0].count_when (rule 'r'): expected a condition such as 'status >= 400' or "
     "'status == 401 or status == 403', or a function of the response, got 'status > 4'."),
    (rule(count_when="status >= 400", counts="messages"), "rules: rules[0].count_when (rule 'r'): expected a rule that counts "
     "requests, got 'status >= 400'. A message has no response."),
    (rule(limit="5 concurrent", count_when="status >= 400"), "rules: rules[0].count_when (rule 'r'): expected a limit per "
     "time, as a lease of '5 concurrent' ends with the response, got 'status >= 400'."),
    (rule(mode=True), "rules: rules[0].mode (rule 'r'): expected 'enforce', 'shadow' or 'off', got True."),
    ({**rule(), "response": {"headers": {"left": "X-Left"}}}, "rules: response.headers: expected one of limit, remaining, "
     "reset, reset_after, retry_after, policy, got 'left'. Take it out."),
    ({**rule(), "response": {"headers": {"limit": "X Left"}}}, "rules: response.headers.limit: expected the name of a header, "
     "got 'X Left'."),
    (rule(match="login"), "rules: rules[0].match (rule 'r'): expected methods and a path such as 'GET,POST /api/**', got "
     "'login'. A path begins with '/'."),
    (rule(match="GET /a?b=c"), "rules: rules[0].match (rule 'r'): expected a path without a query, got 'GET /a?b=c'. "
     "The query is not part of a route."),
    (rule(match="/a/**/b/**"), "rules: rules[0].match (rule 'r'): expected '**' once in a path, got '/a/**/b/**'."),
    (rule(warn_at=80), "rules: rules[0].warn_at (rule 'r'): expected a share from 0 to 1, got 80."),
    (rule(grace=True), "rules: rules[0].grace (rule 'r'): expected a whole number from 0 to 1000, got True."),
    (rule(penalty={"after": 5, "block": 60}), "rules: rules[0].penalty (rule 'r'): expected 'within': a length of time such as '10 "
     "minutes'. It is missing."),
    (rule(penalty={"after": 5, "within": "10 mintues", "block": 5}), "rules: rules[0].penalty.within (rule 'r'): expected a "
     "length of time such as '10 minutes', got '10 mintues'. Expected a unit of time (millisecond, second, minute, hour, "
     "day, week), got 'mintues'. Did you mean 'minutes'?"),
    (rule(allow_from=["10.0.0/8"]), "rules: rules[0].allow_from[0] (rule 'r'): expected an address or a network such as "
     "'10.0.0.0/8', got '10.0.0/8'."),
    ({**rule(), "trusted_proxies": ["*"]}, "rules: trusted_proxies[0]: expected an address or a network such as "
     "'10.0.0.0/8', got '*'. Name your proxies: a trusted proxy can choose any client address."),
    ({**rule(), "trusted_proxies": ["::/0"]}, "rules: trusted_proxies[0]: expected the networks of your proxies, got "
     "'::/0'. If every address is trusted, any client can choose its address."),
    ({**rule(), "tiers": {"from": "header:X-Plan", "default": "free"}}, "rules: tiers.from: expected trusted_proxies beside "
     "a tier from a header. Without a trusted proxy, any client could choose its tier."),
    (rule(cost=-1), "rules: rules[0].cost (rule 'r'): expected a whole number, 'body', 'header:NAME', 'function:NAME', or a "
     "table with 'from', got -1."),
    (rule(cost="bdoy"), "rules: rules[0].cost[0] (rule 'r'): expected one of body, header:NAME, function:NAME, got 'bdoy'. "
     "Did you mean 'body'?"),
    (rule(name="a\r\nb"), "rules: rules[0].name (rule 'a\\r\\nb'): expected a name of printable ASCII without quotes and "
     "backslashes, got 'a\\r\\nb'."),
    (rule(name="é"), "rules: rules[0].name (rule 'é'): expected a name of printable ASCII without quotes and backslashes, "
     "got 'é'."),
    (rule(name="r\n"), "rules: rules[0].name (rule 'r\\n'): expected a name of printable ASCII without quotes and "
     "backslashes, got 'r\\n'."),
    (rule(message="{who}"), "rules: rules[0].message (rule 'r'): expected text with no placeholders but {retry_after}, "
     "{limit}, {rule}, got '{who}'. Double a brace that is not a placeholder."),
    (rule(message="{rule.__class__}"), "rules: rules[0].message (rule 'r'): expected text with no placeholders but "
     "{retry_after}, {limit}, {rule}, got '{rule.__class__}'. Double a brace that is not a placeholder."),
    ({"rules": [{"name": "r", "limit": "1/minute"}] * 2}, "rules: rules[1].name (rule 'r'): expected a name of its own, got "
     "'r'. rules[0] has it."),
    (without("limit", rule()), "rules: rules[0] (rule 'r'): expected 'limit' or 'allow_from'. A rule needs one of "
     "them."),
    (without("limit", rule(allow_from=[], grace=1)), "rules: rules[0].grace (rule 'r'): expected a limit beside it, got 1. "
     "Without a limit it does nothing."),
    ({**rule(), "identity": {"api_keys": {"s3cret": {}}}}, "rules: identity.api_keys: expected the SHA-256 of a key, 64 hex "
     "digits in lower case. Never write the key itself."),
    (rule(match="/users/{id"), "rules: rules[0].match (rule 'r'): expected each '{' closed by a '}', as in '/users/{id}', "
     "got '/users/{id'."),
    (rule(match="/{a:path}/b/**"), "rules: rules[0].match (rule 'r'): expected '**' once in a path, got '/{a:path}/b/**'."),
    (rule(by="header:X Tenant"), "rules: rules[0].by[0] (rule 'r'): expected the name of a header behind 'header:', got "
     "'header:X Tenant'."),
    (rule(exempt=["user:"]), "rules: rules[0].exempt[0] (rule 'r'): expected a name behind 'user:', got 'user:'."),
    ({**rule(), "response": {"headers": ["draft-1"]}}, "rules: response.headers[0]: expected 'x-ratelimit', "
     "'x-ratelimit-delta', 'draft-11', 'draft-7', 'draft-6' or 'draft-3', got 'draft-1'. Did you mean 'draft-11'?"),
]  # fmt: skip


@pytest.mark.parametrize(("found", "message"), MESSAGES)
def test_messages(found, message):
    with pytest.raises(InvalidRules) as raised:
        Policy.parse(found)
    assert str(raised.value) == message
    assert message.startswith(raised.value.place + ":")


def test_what_is_probably_not_meant_is_told():
    assert parse(rule(by="header:X-Tenant")).warnings == (
        "rule 'r' counts by 'header:X-Tenant', which a client can change at will. Add a rule by ip for every path beside it.",
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


@pytest.mark.parametrize(
    ("settings", "limits"),
    [
        ({"limit": "1/day", "window": "calendar"}, "1/day calendar"),
        ({"limit": "1/day", "window": "calendar", "timezone": "Asia/Tokyo"}, "1/day calendar Asia/Tokyo"),
        ({"limit": "1/day", "window": "calendar", "algorithm": "fixed_window"}, "1/day calendar"),
        ({"limit": "1/hour", "window": "first-use"}, "1/hour first-use"),
        ({"limit": ["5/second gcra", "1/month"], "timezone": "Asia/Tokyo"}, "5/second, 1/month calendar Asia/Tokyo"),
        (
            {"limit": ["5/second", "1/month calendar UTC"], "algorithm": "fixed_window"},
            "5/second fixed_window, 1/month",
        ),
        ({"limit": ["7/day gcra", "1/week"], "window": "calendar"}, "7/day, 1/week calendar"),
        ({"limit": "1/day calendar Europe/Rome", "timezone": "Asia/Tokyo"}, "1/day calendar Europe/Rome"),
        ({"limit": "1/day calendar"}, "1/day calendar"),
    ],
)
def test_windows_and_time_zones_of_a_rule(settings, limits):
    (parsed,) = parse(rule(**settings)).rules
    assert str(parsed.limits[""]) == limits


def test_the_time_zone_of_a_file_is_that_of_its_calendar_limits():
    content = {**rule(limit=["5/second", "1/month"]), "timezone": "Europe/Berlin"}
    (parsed,) = parse(content).rules
    assert str(parsed.limits[""]) == "5/second, 1/month calendar Europe/Berlin"
    (parsed,) = parse({**rule(limit="5/second"), "timezone": "Europe/Berlin"}).rules
    assert str(parsed.limits[""]) == "5/second"
