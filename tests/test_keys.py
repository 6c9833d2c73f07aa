"""Keys: injective, bounded, and never empty."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratekeeper import InvalidKey, Limiter
from ratekeeper.keys import LONGEST, encode, wire

plain = st.text(max_size=6) | st.binary(max_size=6) | st.integers() | st.uuids()
parts = st.recursive(plain, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=6)
single = st.text(min_size=1) | st.binary(min_size=1) | st.integers() | st.uuids()
keys = single | st.lists(parts, min_size=1, max_size=4).map(tuple)


@given(keys, keys)
def test_different_keys_never_meet(one, other):
    assert (encode(one) == encode(other)) == (one == other and type(one) is type(other))
    assert (wire(encode(one)) == wire(encode(other))) == (encode(one) == encode(other))


@given(st.lists(st.text(alphabet="ab/:0123\0", max_size=4), min_size=1, max_size=4), st.integers(0, 20))
def test_no_delimiter_moves_a_boundary(texts, cut):
    joined = "".join(texts)
    cut = min(cut, len(joined))
    other = (joined[:cut], joined[cut:])
    assert (encode(tuple(texts)) == encode(other)) == (tuple(texts) == other)


def test_a_long_key_is_kept_as_a_digest():
    long = "x" * 100_000
    assert len(encode(long)) == 33
    assert encode(long) != encode(long + "x")
    assert encode("x" * LONGEST) == "x" * LONGEST
    limiter = Limiter("1/minute")
    assert limiter.check(long)
    assert not limiter.check(long)
    assert not limiter.peek(long)
    assert limiter.check(long + "x")


class Shouting(str):
    def __eq__(self, other):
        return True

    def __hash__(self):
        return 7


def test_a_subclass_of_str_counts_as_its_text():
    limiter = Limiter("1/minute")
    assert limiter.check(Shouting("a"))
    assert not limiter.check("a")
    assert limiter.check(Shouting("b"))


@pytest.mark.parametrize("key", [0, -7, 42, 10**99, UUID(int=42), b"42", ("user", 42), ("user", UUID(int=42))])
def test_numbers_and_uuids_are_keys_and_not_their_text(key):
    limiter = Limiter("1/minute")
    assert limiter.check("42")
    assert limiter.check(str(UUID(int=42)))
    assert limiter.check(key)
    assert not limiter.check(key)


NOBODY = ["", b"", (), None, 4.2, True, ["a"], {"a"}, object(), (None,), (True,), (1.5,), (["a"],)]


@pytest.mark.parametrize("key", NOBODY)
def test_what_names_nobody_is_refused(key):
    limiter = Limiter("1/minute")
    for operation in (limiter.check, limiter.peek, limiter.acquire, limiter.reserve, limiter.refund, limiter.reset):
        with pytest.raises(InvalidKey):
            operation(key)


class User:
    id = 42


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (
            "",
            "key: expected something that names the caller, got ''. An empty key would count all callers without an "
            "identity as one. Decide what to count for them, such as their address.",
        ),
        (
            4.2,
            "key: expected text, a whole number, a UUID, bytes or a tuple of them such as ('user', 42), got float.",
        ),
        (
            ("user", None),
            "key: expected text, a whole number, a UUID, bytes or a tuple of them such as ('user', 42), got NoneType.",
        ),
        (
            User(),
            "key: expected text, a whole number, a UUID, bytes or a tuple of them such as ('user', 42), got User. "
            "Pass what names it, such as its id.",
        ),
    ],
)
def test_the_messages_teach(key, message):
    with pytest.raises(InvalidKey) as caught:
        Limiter("1/minute").check(key)
    assert str(caught.value) == message
