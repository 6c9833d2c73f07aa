"""The URL of a store on a backend."""

import pytest

from ratekeeper.errors import InvalidStore
from ratekeeper.stores.compare_and_set.url import StoreUrl


def test_options_are_read_from_the_query_string_and_keywords_take_precedence():
    url = StoreUrl(
        "kept://host:7/a%20b?deadline=50ms&prefix=x&local_share=0.25&secret=s%26t", {"prefix": "y", "deadline": None}
    )
    assert (url.scheme, url.host, url.port, url.path) == ("kept", "host", 7, "/a b")
    assert url.options == {"deadline": 0.05, "prefix": "y", "local_share": 0.25, "secret": "s&t"}


@pytest.mark.parametrize(
    ("url", "given", "message"),
    [
        ("kept://host?prefex=a", {}, "expected a known option, got 'prefex'. Did you mean 'prefix'?"),
        ("kept://host", {"dead_line": 1}, "expected a known option, got 'dead_line'. Did you mean 'deadline'?"),
        ("kept://host?local_share=much", {}, "expected local_share to be a number above 0, at most 1, got 'much'."),
        ("kept://host:port", {}, "expected a port from 1 to 65535 after the host."),
        ("kept://host?prefix=a#b", {}, "expected no '#', which ends a URL. Write it as %23."),
    ],
)  # fmt: skip
def test_a_mistake_is_told(url, given, message):
    with pytest.raises(InvalidStore) as caught:
        StoreUrl(url, given)
    assert str(caught.value) == f"store kept://: {message}"


def test_no_password_is_shown():
    with pytest.raises(InvalidStore) as caught:
        StoreUrl("kept://user:hunter2@host?hunter2=1", {})
    assert "hunter2" not in str(caught.value)
