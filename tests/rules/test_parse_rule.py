"""One rule of a file: every message in full, and its limits."""

# ruff: noqa: E501 - a table reads better with its rows whole

import pytest

from ratekeeper import InvalidRules, Policy
from ratekeeper.rules.parse import parse
from tests.rules.samples import rule


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
    (rule(by=[]), "rules: rules[0].by (rule 'r'): expected ip, user, api_key, tier, route, host, method, all, or "
     "header:NAME, cookie:NAME, query:NAME, jwt:NAME, app:NAME, function:NAME, or a list of them, got []."),
    (rule(limit="function:no_such.limits:of"), "rules: rules[0].limit (rule 'r'): expected a function that can be imported, "
     "got 'function:no_such.limits:of'. There is no module 'no_such'. Install it, or add its folder to PYTHONPATH."),
    (rule(limit="function:json:dmps"), "rules: rules[0].limit (rule 'r'): expected a function that can be imported, got "
     "'function:json:dmps'. json has no 'dmps'. Did you mean 'dumps'?"),
    (rule(count_when="status > 4"), "rules: rules[0].count_when (rule 'r'): expected a condition such as 'status >= 400' or "
     "'status == 401 or status == 403', or a function of the response, got 'status > 4'."),
    (rule(count_when="status >= 400", counts="messages"), "rules: rules[0].count_when (rule 'r'): expected a rule that counts "
     "requests, got 'status >= 400'. A message has no response."),
    (rule(limit="5 concurrent", count_when="status >= 400"), "rules: rules[0].count_when (rule 'r'): expected a limit per "
     "time, as a lease of '5 concurrent' ends with the response, got 'status >= 400'."),
    (rule(mode=True), "rules: rules[0].mode (rule 'r'): expected 'enforce', 'shadow' or 'off', got True."),
    (rule(warn_at=80), "rules: rules[0].warn_at (rule 'r'): expected a share from 0 to 1, got 80."),
    (rule(grace=True), "rules: rules[0].grace (rule 'r'): expected a whole number from 0 to 1000, got True."),
    (rule(cost=-1), "rules: rules[0].cost (rule 'r'): expected a whole number, 'body', 'header:NAME', 'function:NAME', or a "
     "table with 'from', got -1."),
    (without("limit", rule()), "rules: rules[0] (rule 'r'): expected 'limit' or 'allow_from'. A rule needs one of "
     "them."),
    (without("limit", rule(allow_from=[], grace=1)), "rules: rules[0].grace (rule 'r'): expected a limit beside it, got 1. "
     "Without a limit it does nothing."),
]  # fmt: skip


@pytest.mark.parametrize(("found", "message"), MESSAGES)
def test_messages(found, message):
    with pytest.raises(InvalidRules) as raised:
        Policy.parse(found)
    assert str(raised.value) == message
    assert message.startswith(raised.value.place + ":")


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
