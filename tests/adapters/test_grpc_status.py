"""The status that is written by hand is the one that Google's own code writes."""

import pytest
from google.protobuf.any_pb2 import Any
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from ratekeeper.adapters.grpc_status import status_of


@pytest.mark.parametrize("micros", [None, 1, 999_999, 1_000_000, 8_571_429, 300 * 86_400 * 10**6])
@pytest.mark.parametrize("message", ["", "é" * 200])
def test_the_status_is_what_googles_own_code_writes(micros, message):
    expected = Status(code=8, message=message)
    if micros is not None:
        info = RetryInfo()
        info.retry_delay.FromMicroseconds(micros)
        packed = Any()
        packed.Pack(info)
        expected.details.append(packed)
    assert Status.FromString(status_of(8, message, micros)) == expected
