"""Keys: injective, bounded, and never empty."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratekeeper import InvalidKey, Limiter
from ratekeeper.keys import LONGEST, encode, wire

plain = st.text(max_size=6) | st.binary(max_size=6) | st.integers()
parts = st.recursive(plain, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=6)
keys = st.text(min_size=1) | st.binary(min_size=1) | st.lists(parts, min_size=1, max_size=4).map(tuple)


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


NOBODY = ["", b"", (), None, 42, 4.2, True, ["a"], {"a"}, object(), (None,), (True,), (1.5,), (["a"],)]


@pytest.mark.parametrize("key", NOBODY)
def test_what_names_nobody_is_refused(key):
    limiter = Limiter("1/minute")
    for operation in (limiter.check, limiter.peek, limiter.acquire, limiter.reserve, limiter.refund, limiter.reset):
        with pytest.raises(InvalidKey):
            operation(key)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (
            "",
            "key: expected something that names the caller, got ''. An empty key would count all callers without an "
            "identity as one. Decide what to count for them, such as their address.",
        ),
        (
            42,
            "key: expected text, bytes, or a tuple of text, bytes and whole numbers such as ('user', 42), got int.",
        ),
        (
            ("user", None),
            "key: expected text, bytes, whole numbers or tuples of them in the tuple, got NoneType.",
        ),
    ],
)
def test_the_messages_teach(key, message):
    with pytest.raises(InvalidKey) as caught:
        Limiter("1/minute").check(key)
    assert str(caught.value) == message
