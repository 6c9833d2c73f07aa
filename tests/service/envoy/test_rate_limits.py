"""What a ShouldRateLimit request does to its limits: takes, looks, charges, refunds; modes; headers; metadata."""

import asyncio
from pathlib import Path

import pytest
from envoy.service.ratelimit.v3 import rls_pb2
from google.protobuf.json_format import MessageToDict
from hypothesis import given, settings
from hypothesis import strategies as st

from ratekeeper.errors import InvalidInput
from ratekeeper.service.decider import Decider
from ratekeeper.service.envoy.config import load
from ratekeeper.service.envoy.rate_limits import RateLimits
from ratekeeper.service.http2_listener import CallFailed
from ratekeeper.service.options import EnvoyOptions, Options
from ratekeeper.service.worker import policy_for
from ratekeeper.testing import frozen
from tests import tier

OK, OVER = 1, 2
LIMITS = """
domain: d
descriptors:
  - {key: tokens, rate_limit: {unit: day, requests_per_unit: 100}}
  - {key: plain, rate_limit: {unit: day, requests_per_unit: 3}}
  - {key: other, rate_limit: {unit: day, requests_per_unit: 2, name: other}}
  - {key: none, rate_limit: {unit: day, requests_per_unit: 0}}
  - {key: free, rate_limit: {unlimited: true, replaces: [{name: other}]}}
  - {key: trial, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: quota, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: smooth, rate_limit: {unit: day, requests_per_unit: 100, algorithm: gcra}}
  - {key: shown, value_to_metric: true, rate_limit: {unit: day, requests_per_unit: 9}}
  - {key: shown, value: all-*, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 9}}
"""


@pytest.fixture(autouse=True)
def still():
    with frozen():
        yield


class Service:
    """The limits above, asked as a listener asks."""

    def __init__(self, folder, text=LIMITS, **options):
        path = Path(folder) / "limits.yaml"
        path.write_text(text)
        envoy = EnvoyOptions(**options)
        self.decider = Decider(policy_for(Options()), Options(envoy_config=path, envoy=envoy))
        self.limits = RateLimits(self.decider, load(path), envoy)

    def __call__(self, *descriptors, hits=0, domain="d"):
        raw = request(*descriptors, hits=hits, domain=domain).SerializeToString()
        return rls_pb2.RateLimitResponse.FromString(asyncio.run(self.limits.answer(raw)))

    def codes(self, *descriptors, times=1, **more):
        return [self(*descriptors, **more).overall_code for _ in range(times)]

    def left(self, key):
        return self(look(key)).statuses[0].limit_remaining


def request(*descriptors, hits=0, domain="d"):
    asked = rls_pb2.RateLimitRequest(domain=domain, hits_addend=hits)
    for described in descriptors:
        described = {"key": described} if isinstance(described, str) else described
        one = asked.descriptors.add()
        if described.get("key"):
            one.entries.add(key=described["key"], value=described.get("value", "v"))
        if "own" in described:
            one.hits_addend.value = described["own"]
        if "limit" in described:
            one.limit.requests_per_unit, one.limit.unit = described["limit"]
        if described.get("negative"):
            one.MergeFromString(b"\x20\x01")  # is_negative_hits, which these message classes may not know
    return asked


def look(key):
    return {"key": key, "own": 0}


def charge(key, cost):
    return {"key": key, "own": cost}


@pytest.fixture
def ask(tmp_path):
    return Service(tmp_path)


@pytest.mark.parametrize("options", [{}, {"compat": True}])
def test_a_token_budget_is_charged_past_its_end_after_the_response(tmp_path, options):
    ask = Service(tmp_path, **options)
    passed = []
    for _ in range(5):
        passed.append(ask(look("tokens")).overall_code)
        if passed[-1] == OK:
            ask(charge("tokens", 60))
    assert passed == [OK, OK, OVER, OVER, OVER]
    assert ask.left("tokens") == 0


@pytest.mark.parametrize("options", [{}, {"compat": True}])
def test_a_look_passes_until_the_limit_is_exceeded(tmp_path, options):
    ask = Service(tmp_path, **options)
    assert ask.codes(charge("plain", 3)) == [OK]
    assert ask.codes(look("plain")) == [OK]
    assert ask.codes(charge("plain", 1)) == [OVER]
    assert ask.codes(look("plain")) == [OVER]


def test_a_budget_of_another_algorithm_goes_into_debt_too(ask):
    assert [ask.codes(charge("smooth", 60))[0] for _ in range(3)] == [OK, OVER, OVER]
    assert ask.codes(look("smooth")) == [OVER]


@pytest.mark.parametrize("options", [{}, {"compat": True}])
def test_negative_hits_give_back_and_never_below_zero(tmp_path, options):
    ask = Service(tmp_path, **options)
    ask(charge("tokens", 150))
    refund = {"key": "tokens", "own": 90, "negative": True}
    assert ask.codes(refund) == [OK]
    assert ask.left("tokens") == 40
    assert ask.codes(refund) == [OK]
    assert ask.left("tokens") == 100


def test_a_refused_request_takes_nothing_unless_it_is_to_be_as_upstream(tmp_path, ask):
    both = ["plain", "other"]
    assert ask.codes(*both, times=4) == [OK, OK, OVER, OVER]
    assert ask.left("plain") == 1
    compat = Service(tmp_path, compat=True)
    assert compat.codes(*both, times=4) == [OK, OK, OVER, OVER]
    assert compat.left("plain") == 0


def test_a_charge_is_made_although_another_limit_refuses(ask):
    assert ask.codes("other", times=2) == [OK, OK]
    assert ask.codes("other", charge("tokens", 30)) == [OVER]
    assert ask.left("tokens") == 70


def test_a_request_that_a_charge_exceeds_takes_nothing(ask):
    ask(charge("tokens", 101))
    assert ask.codes("plain", look("tokens")) == [OVER]
    assert ask.left("plain") == 3


def test_zero_refuses_everybody(tmp_path, ask):
    assert ask.codes("none", times=2) == [OVER, OVER]
    assert ask.codes("none", "plain") == [OVER]
    assert ask.left("plain") == 3
    assert Service(tmp_path, compat=True).codes("none", times=2) == [OVER, OVER]


def test_an_unlimited_descriptor_has_all_of_it_left_and_may_replace(ask):
    assert ask("free").statuses[0].limit_remaining == 2**32 - 1
    assert ask.codes("other", "free", times=5) == [OK] * 5


@pytest.mark.parametrize("options", [{}, {"compat": True}])
def test_a_descriptor_without_entries_has_no_limit(tmp_path, options):
    ask = Service(tmp_path, **options)
    answer = ask({}, "plain")
    assert (answer.overall_code, answer.statuses[0]) == (OK, rls_pb2.RateLimitResponse.DescriptorStatus(code=OK))
    limited = [ask({"limit": (1, 4)}).overall_code for _ in range(2)]
    assert limited == [OK, OVER]


def test_a_limit_sent_along_needs_a_known_domain_and_a_unit(ask):
    assert ask.codes({"key": "x", "limit": (1, 4)}, times=2, domain="unknown") == [OK, OK]
    assert ask.codes({"key": "trial", "limit": (1, 4)}, times=2) == [OK, OVER]  # and is not in shadow mode
    with pytest.raises(CallFailed, match="expected a unit from SECOND to WEEK") as failed:
        ask({"key": "x", "limit": (1, 0)})
    assert failed.value.code == 3


def test_quota_mode_refuses_nothing_and_metadata_says_what_is_used_up(tmp_path):
    ask = Service(tmp_path, metadata=True)
    first, second = ask("plain", "quota"), ask("plain", "quota", hits=1)
    assert (first.overall_code, second.overall_code) == (OK, OK)
    status = second.statuses[1]
    assert (status.code, status.limit_remaining, status.HasField("duration_until_reset")) == (OK, 0, False)
    found = MessageToDict(second.dynamic_metadata)
    assert found == {
        "domain": "d", "hitsAddend": 1.0, "quotaModeEnabled": True, "quotaModeViolations": [1.0],
        "descriptors": [{"entries": ["plain=v"]}, {"entries": ["quota=v"]}],
    }  # fmt: skip
    assert "quotaModeViolations" not in MessageToDict(first.dynamic_metadata)
    limited = ask({"key": "x", "limit": (5, 4), "own": 2})
    assert MessageToDict(limited.dynamic_metadata)["descriptors"] == [
        {"entries": ["x=v"], "limit": "requests_per_unit:5 unit:DAY", "hitsAddend": 2.0}
    ]


def test_global_modes(tmp_path):
    shadow = Service(tmp_path, shadow=True)
    answers = [shadow("other", "plain") for _ in range(4)]
    assert [answer.overall_code for answer in answers] == [OK] * 4
    assert [status.code for status in answers[3].statuses] == [OVER, OVER]
    assert shadow.decider.counters.by_rule()["d.other"] == {"allowed": 2, "shadow_refused": 2}
    quota = Service(tmp_path, quota=True)
    answers = [quota("other") for _ in range(3)]
    assert [answer.statuses[0].code for answer in answers] == [OK] * 3


def headers(answer):
    return {header.key: header.value for header in answer.response_headers_to_add}


def test_headers_are_not_sent_twice_if_envoy_adds_its_own(tmp_path):
    named = {"x-ratelimit-limit": "3", "x-ratelimit-remaining": "2", "x-ratelimit-reset": "86400"}
    for twice in range(2):  # the second is cached
        assert headers(Service(tmp_path)("plain"))["x-ratelimit-remaining"] == "2", twice
    assert headers(Service(tmp_path)("plain")).keys() == named.keys()
    off = Service(tmp_path, headers="off")
    assert [headers(off("plain")) for _ in range(4)][:3] == [{}, {}, {}]
    assert headers(off("plain")).keys() == {"retry-after"}
    assert headers(Service(tmp_path, headers="ratelimit")("plain")).keys() == {
        "RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset",
    }  # fmt: skip
    compat = Service(tmp_path, compat=True)
    assert [headers(compat("plain")) for _ in range(5)] == [{}] * 5
    with pytest.raises(InvalidInput, match="--envoy-headers: expected x-ratelimit, ratelimit, off, got 'x'"):
        EnvoyOptions(headers="x")


def test_an_option_needs_its_file():
    with pytest.raises(InvalidInput, match="expected --envoy-config beside the other --envoy options"):
        Options(envoy=EnvoyOptions(compat=True))


def test_metrics_name_the_values_that_are_to_be_shown(ask):
    for value in ("a", "b", "a", "all-1", "all-2"):
        ask({"key": "shown", "value": value})
    assert ask.decider.counters.by_rule() == {
        "d.shown_a": {"allowed": 2},
        "d.shown_b": {"allowed": 1},
        "d.shown_all-1": {"allowed": 1},
        "d.shown_all-2": {"allowed": 1},
    }


def test_an_operator_can_switch_a_limit(ask):
    assert ask.codes("other", times=3) == [OK, OK, OVER]
    for mode, codes in (("shadow", [OK]), ("off", [OK]), ("enforce", [OVER]), (None, [OVER])):
        ask.decider.overrides.set("d.other", mode)
        ask.decider.apply_overrides()
        assert ask.codes("other") == codes, mode
    assert ask.decider.file_modes()["d.trial"] == "shadow"


@settings(max_examples=tier.examples(40))
@given(
    st.lists(
        st.tuples(
            st.lists(
                st.tuples(
                    st.sampled_from(["tokens", "plain", "other", "none", "trial"]), st.integers(-1, 4), st.booleans()
                ),
                min_size=1, max_size=3,
            ),
            st.integers(0, 3),
        ),
        max_size=30,
    )
)  # fmt: skip
def test_compat_counts_as_upstream_does(tmp_path_factory, steps):
    """The whole model: one number for each descriptor, to which everything is added; negative hits stop at zero."""
    ask = Service(tmp_path_factory.mktemp("limits"), compat=True)
    limits = {"tokens": 100, "plain": 3, "other": 2, "none": 0, "trial": 1}
    used = dict.fromkeys(limits, 0)
    for descriptors, hits in steps:
        asked, expected = [], []
        for key, own, negative in descriptors:
            fields = {"key": key, "negative": negative, **({"own": own} if own >= 0 else {})}
            cost = own if own >= 0 else max(1, hits)
            used[key] = max(0, used[key] - cost) if negative else used[key] + cost
            over = used[key] > limits[key] and not (negative and cost)
            asked.append(fields)
            expected.append((OVER if over and key != "trial" else OK, max(0, limits[key] - used[key])))
        answer = ask(*asked, hits=hits)
        assert [(status.code, status.limit_remaining) for status in answer.statuses] == expected
        assert answer.overall_code == max(code for code, _ in expected)
