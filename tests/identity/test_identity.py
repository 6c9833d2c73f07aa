"""Identifying clients: sources, the address in place of a missing source, tiers; two subjects never share a key."""

import asyncio
import hashlib
from enum import Enum
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratekeeper import InvalidInput, InvalidKey, Policy, Request
from ratekeeper.identity.address import Addresses
from ratekeeper.identity.identity import ApiKey, Caller, Identity, key_of, name_of

PEER = "203.0.113.9"


def key(by, request, **identity):
    configured = Identity(Addresses(identity.pop("trusted", ())), **identity)
    return key_of(configured, by if isinstance(by, tuple) else (by,), "/pattern")(Caller(configured, request))


def request(peer=PEER, **more):
    return Request(peer=peer, **more)


def test_a_missing_identity_is_counted_by_address_and_apart_from_everybody_who_has_one():
    for source in ("user", "api_key", "header:X-Tenant", "cookie:sid", "query:key", "jwt:sub", "app:user"):
        by_address = key(source, request())
        assert by_address == "@203.0.113.9"
        assert key(source, request("198.51.100.7")) != by_address
        for empty in ({"headers": {"X-Tenant": "", "X-Api-Key": " ", "Cookie": "sid="}}, {"facts": {"user": ""}}):
            assert key(source, request(**empty)) == by_address
    assert key("header:X-Tenant", request(headers={"X-Tenant": "@203.0.113.9"})) != "@203.0.113.9"
    assert key("app:user", request(facts={"user": "@203.0.113.9"})) != "@203.0.113.9"


def test_secrets_appear_in_no_key():
    for source, sent in [
        ("header:X-Api-Key", {"headers": {"X-Api-Key": "s3cret"}}),
        ("header:Authorization", {"headers": {"Authorization": "Bearer s3cret"}}),
        ("cookie:sid", {"headers": {"Cookie": "a=b; sid=s3cret"}}),
        ("query:key", {"path": "/?key=s3cret"}),
        ("api_key", {"headers": {"X-Api-Key": "s3cret"}}),
    ]:
        counted = key(source, request(**sent))
        assert counted.startswith("=key:"), source
        assert "s3cret" not in counted


def test_one_of_two_is_no_answer():
    assert key("header:X-Api-Key", request(headers=[("X-Api-Key", "a"), ("X-Api-Key", "b")])) == "@203.0.113.9"
    assert key("cookie:sid", request(headers={"Cookie": "sid=a; sid=b"})) == "@203.0.113.9"
    assert key("query:key", request(path="/?key=a&key=b")) == "@203.0.113.9"


def test_known_api_keys_only():
    keys = {hashlib.sha256(b"alpha").hexdigest(): ApiKey("acme", "paid")}
    settings = {"user": ["header:X-Api-Key"], "api_keys": keys}
    assert key("user", request(headers={"X-Api-Key": "alpha"}), **settings) == "=user:acme"
    assert key("user", request(headers={"X-Api-Key": "guess"}), **settings) == "@203.0.113.9"


ANN = UUID("00000000-0000-4000-8000-00000000002a")
NAMES = [42, "42", "int:42", "user:42", b"42", ("42",), (42,), (b"42",), ((42,),), -42, 0, 10**30, ANN, str(ANN)]


class User:
    def __init__(self):
        self.id = 42


def test_what_names_a_client_is_counted_apart_from_whatever_else_does():
    for source, ask in [
        ("app:user", lambda name: {"facts": {"user": name}}),
        (lambda request: request.facts["user"], lambda name: {"facts": {"user": name}}),
    ]:
        counted = [key(source, request(**ask(name))) for name in NAMES]
        assert len(set(counted)) == len(NAMES)
        assert all(each.startswith("=") and len(each) < 600 for each in counted)
    assert key("app:user", request(facts={"user": 42})) == "=int:42"
    assert key("app:user", request(facts={"user": "42"})) == "=user:42"
    assert key("app:user", request(facts={"user": ANN})) == f"=uuid:{ANN}"


names = st.recursive(
    st.text() | st.integers() | st.uuids() | st.binary(), lambda inner: st.lists(inner, min_size=1).map(tuple)
)


@given(names, names)
def test_two_names_never_share_a_key(one, other):
    if any(name in ("", b"") for name in (one, other)):
        return
    assert (name_of(one, "by") == name_of(other, "by")) is (one == other and type(one) is type(other))


NOBODY = [True, 4.2, [], {}, {"id": 1}, object(), User(), (), b"", (None,), (4.2,)]


@pytest.mark.parametrize("odd", NOBODY)
def test_what_names_no_client_raises_and_is_never_counted_by_address(odd):
    for by, facts in [("app:user", {"user": odd}), ((lambda request: odd), {}), ("user", {"user": odd})]:
        policy = Policy.parse(
            {"identity": {"user": "app:user"}, "rules": [{"name": "r", "by": by, "limit": "1/minute"}]}
        )
        with pytest.raises(InvalidKey):
            policy.check(request(facts=facts))
        with pytest.raises(InvalidKey):
            asyncio.run(policy.acheck(request(facts=facts)))
        assert policy.store.size() == 0


ITS_ID = "Pass what names it, such as its id."
KINDS = "text, a whole number, a UUID, bytes or a tuple of them that names the client, or None to count it by address"


@pytest.mark.parametrize(
    ("by", "facts", "message"),
    [
        ("app:user", {"user": User()}, f"facts['user']: expected {KINDS}, got User. {ITS_ID}"),
        (lambda request: 4.2, {}, f"by: expected {KINDS}, got float."),
        ("app:user", {"user": ()}, f"facts['user']: expected {KINDS}, got empty tuple."),
        ("function:odd", {}, f"function:odd: expected {KINDS}, got dict."),
    ],
)
def test_the_messages_say_where_the_value_came_from(by, facts, message):
    policy = Policy.parse(
        {"rules": [{"name": "r", "by": by, "limit": "1/minute"}]}, functions={"odd": lambda request: {"secret": 1}}
    )
    with pytest.raises(InvalidKey) as caught:
        policy.check(request(facts=facts))
    assert str(caught.value) == message


def test_a_coroutine_is_to_be_awaited():
    async def current_user():
        return "ann"

    coroutine = current_user()
    with pytest.raises(InvalidKey, match=r"got coroutine\. Await it first\.$"):
        key("app:user", request(facts={"user": coroutine}))
    coroutine.close()


def test_numbers_and_uuids_are_exempt_as_a_file_writes_them():
    policy = Policy.parse(
        {
            "identity": {"user": "app:user"},
            "exempt": ["user:42", f"user:{ANN}"],
            "rules": [{"name": "r", "by": "user", "limit": "1/minute"}],
        }
    )
    for name in (42, "42", ANN, str(ANN)):
        assert all(policy.check(request(facts={"user": name})) for _ in range(3))
    assert [policy.check(request(facts={"user": 43})).allowed for _ in range(2)] == [True, False]


class Plan(Enum):
    FREE = "free"


@pytest.mark.parametrize("odd", [Plan.FREE, 4.2, True, ["paid"]])
def test_what_names_no_tier_raises_instead_of_choosing_the_default(odd):
    policy = tiers("app:tier")
    with pytest.raises(InvalidInput) as caught:
        policy.check(request(facts={"tier": odd}))
    assert str(caught.value) == (
        f"facts['tier']: expected text that names a tier, or None for the default tier, got {type(odd).__name__}."
    )


def test_routes_are_templates():
    assert key("route", request(path="/a/1", route="/a/{id}")) == "/a/{id}"
    assert key("route", request(path="/a/1")) == "/pattern"


def test_functions_that_name_nobody_fall_back():
    assert key((lambda request: None,), request()) == "@203.0.113.9"
    assert key((lambda request: request.path,), request(path="/x")) == "=user:/x"


texts = st.text(alphabet="a1:@=|/", min_size=1, max_size=6)


@given(texts, texts, texts, texts)
def test_two_parts_never_run_together(one, two, three, four):
    def pair(first, second):
        return key(("app:a", "app:b"), request(facts={"a": first, "b": second}))

    assert (pair(one, two) == pair(three, four)) is ((one, two) == (three, four))


@given(texts)
def test_a_missing_part_is_never_taken_for_a_present_one(text):
    present = key(("app:a", "ip"), request(facts={"a": text}))
    missing = key(("app:a", "ip"), request())
    assert present != missing


def tiers(source, **more):
    limits = {"free": "1/minute", "paid": "5/minute", "gold": "unlimited"}
    return Policy.parse(
        {
            "tiers": {"from": source, "default": "free"},
            "rules": [{"name": "r", "by": "ip", "limit": limits}],
            **more,
        }
    )


def limit_of(policy, **sent):
    decisions = policy.check(request(**sent)).decisions
    return decisions[0].limit if decisions else None


def test_tiers_choose_the_limit():
    policy = tiers("app:tier")
    assert [limit_of(policy, facts={"tier": tier}) for tier in ("free", "paid", "gold", "no such", None)] == [
        1,
        5,
        None,
        1,
        1,
    ]
    digest = hashlib.sha256(b"alpha").hexdigest()
    policy = tiers("api_key", identity={"api_keys": {digest: {"tier": "paid"}}})
    assert [limit_of(policy, headers={"X-Api-Key": secret}) for secret in ("alpha", "beta")] == [5, 1]


def test_a_tier_in_a_header_is_believed_from_a_trusted_proxy_only():
    policy = tiers("header:X-Plan", trusted_proxies=["10.0.0.0/8"])
    assert limit_of(policy, headers={"X-Plan": "gold"}) == 1
    assert limit_of(policy, peer="10.0.0.1", headers={"X-Plan": "paid", "X-Forwarded-For": "192.0.2.1"}) == 5
