"""Structured fields, as RFC 9651 defines them."""

from ratekeeper.outbound.structured_fields import Token, parse_dictionary, parse_list


def test_structured_fields():
    assert parse_list('"a\\"b", tok/en;x;y=:YQ==:, ?0, @12, -1.5') == [
        ('a"b', {}), (Token("tok/en"), {"x": True, "y": b"YQ=="}), (False, {}), (12, {}), (-1.5, {})
    ]  # fmt: skip
    assert parse_list("") == []
    assert parse_list("1" * 9000) is None
    assert parse_dictionary("a, b=2;c=3") == {"a": (True, {}), "b": (2, {"c": 3})}
    assert parse_dictionary("a=1, =2") is None
