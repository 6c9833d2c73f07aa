"""The protocol-buffer encoding that is written by hand, beside the one of Google."""

import contextlib

import pytest
from google.protobuf.wrappers_pb2 import BytesValue, UInt64Value
from hypothesis import given
from hypothesis import strategies as st

from ratekeeper.protobuf import read_fields, read_varint, write_bytes, write_number, write_varint


@given(st.integers(0, 2**64 - 1))
def test_numbers(value):
    assert write_number(1, value) == UInt64Value(value=value).SerializeToString()
    assert read_fields(UInt64Value(value=value).SerializeToString()) == ([(1, value)] if value else [])
    assert read_varint(b"..." + write_varint(value), 3) == (value, 3 + len(write_varint(value)))


@given(st.binary(min_size=1, max_size=300))
def test_bytes(value):
    assert write_bytes(1, value) == BytesValue(value=value).SerializeToString()
    assert read_fields(write_bytes(1, value) + write_number(7, 3)) == [(1, value), (7, 3)]


def test_fields_of_fixed_size_are_passed_over():
    assert read_fields(b"\x09" + bytes(8) + b"\x15" + bytes(4) + write_number(3, 1)) == [(3, 1)]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x0a\x05abc", "a length beyond the end"),
        (b"\x0b", "an unknown kind of field"),
        (b"\x09" + bytes(7), "a number beyond the end"),
        (b"\x15" + bytes(3), "a number beyond the end"),
        (b"\x08" + b"\xff" * 10, "a number without end"),
        (b"\x08\xff", "a number without end"),
    ],
)
def test_what_is_cut_off_or_unknown_is_an_error(data, why):
    with pytest.raises(ValueError, match=why):
        read_fields(data)


@given(st.binary(max_size=40))
def test_no_bytes_do_harm(data):
    with contextlib.suppress(ValueError):
        read_fields(data)
