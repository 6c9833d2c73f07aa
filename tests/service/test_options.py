"""Addresses of listeners as they are written on the command line."""

import pytest

from ratekeeper import InvalidInput
from ratekeeper.service.options import parse_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8080", ("127.0.0.1", 8080)),
        ("[::1]:8080", ("::1", 8080)),
        (":8080", ("0.0.0.0", 8080)),
        ("localhost:0", ("localhost", 0)),
    ],
)
def test_a_host_and_a_port(text, address):
    assert parse_address(text, "--http") == address


@pytest.mark.parametrize("text", ["8080", "localhost", "localhost:", "localhost:http", "localhost:65536", "x:٣"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(InvalidInput) as caught:
        parse_address(text, "--http")
    assert str(caught.value) == f"--http: expected HOST:PORT such as 127.0.0.1:8080, got {text!r}."
