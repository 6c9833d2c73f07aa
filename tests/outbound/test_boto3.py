"""boto3 against a local server that throttles, in each of its retry modes."""

import json
from types import SimpleNamespace

import boto3
import botocore.endpoint
import botocore.retries.bucket
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from ratekeeper.errors import InvalidInput
from ratekeeper.outbound.boto3 import PacedCalls, TooLate
from ratekeeper.testing import FakeClock
from tests.outbound.web import serving

OK = (200, {}, b"{}")


def throttled(code="ThrottlingException", **fields):
    body = {"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": "slow down"}
    return 400, fields, json.dumps(body).encode()


class Dynamo:
    """Sends the given answers, then empty ones; records when each request came."""

    def __init__(self, clock):
        self.clock = clock
        self.answers = []
        self.came = []

    def __call__(self, method, path, headers, body):
        self.came.append(round(self.clock.now, 3))
        status, fields, content = self.answers.pop(0) if self.answers else OK
        return status, {"content-type": "application/x-amz-json-1.0", **fields}, content


@pytest.fixture(scope="module")
def address():
    places = SimpleNamespace(answer=None)
    with serving(lambda *request: places.answer(*request)) as url:
        places.url = url
        yield places


@pytest.fixture
def dynamo(address, monkeypatch):
    clock = FakeClock()
    address.answer = dynamo = Dynamo(clock)
    # The pauses of boto3's own retries pass on the fake clock too.
    sleep = SimpleNamespace(sleep=lambda seconds: clock.sleep(int(seconds * 1_000_000) + 1_000), time=lambda: clock.now)
    monkeypatch.setattr(botocore.endpoint, "time", sleep)
    # The adaptive mode has a bucket of its own, which waits in real time.
    monkeypatch.setattr(botocore.retries.bucket.TokenBucket, "acquire", lambda self, *_, **__: True)
    return dynamo


def client(address, mode="standard", attempts=3):
    return boto3.client(
        "dynamodb",
        endpoint_url=address.url,
        region_name="eu-west-1",
        aws_access_key_id="k",
        aws_secret_access_key="s",
        config=Config(retries={"mode": mode, "total_max_attempts": attempts}),
    )


def test_calls_leave_at_the_pace(address, dynamo):
    pacing = PacedCalls(limit="2/second", clock=dynamo.clock)
    dynamodb = pacing.register(client(address))
    for _ in range(4):
        dynamodb.list_tables()
    pacing.close()
    assert dynamo.came == [0.0, 0.5, 1.0, 1.5]


@pytest.mark.parametrize("mode", ["legacy", "standard", "adaptive"])
def test_every_attempt_of_boto3_has_its_turn_and_none_is_added(mode, address, dynamo):
    dynamo.answers = [throttled()] * 50
    dynamodb = PacedCalls(limit="1/second", clock=dynamo.clock, cooldown=5).register(client(address, mode))
    with pytest.raises(ClientError, match="ThrottlingException"):
        dynamodb.list_tables()
    assert len(dynamo.came) == 3
    first, second, third = dynamo.came
    assert first == 0.0
    assert second - first >= 5.0
    assert third - second >= 5.0


@pytest.mark.parametrize(
    ("answer", "wait"),
    [
        (throttled(), 2.0),
        (throttled("ProvisionedThroughputExceededException"), 2.0),
        (throttled(**{"Retry-After": "7"}), 7.0),
        (throttled("ValidationException"), 0.0),
    ],
)
def test_clients_of_one_store_pause_together(answer, wait, address, dynamo):
    pacing = PacedCalls(clock=dynamo.clock, cooldown=2)
    one, other = (pacing.register(client(address, attempts=1)) for _ in range(2))
    dynamo.answers = [answer]
    with pytest.raises(ClientError):
        one.list_tables()
    other.list_tables()
    assert wait <= dynamo.came[1] <= wait + 0.5


def test_limits_by_operation(address, dynamo):
    limits = {"dynamodb/ListTables": "1/second", "other": "1/hour"}
    dynamodb = PacedCalls(limit=limits, clock=dynamo.clock).register(client(address))
    for _ in range(2):
        dynamodb.list_tables()
        dynamodb.describe_limits()
    assert dynamo.came == [0.0, 0.0, 1.0, 1.0]


def test_a_function_of_the_call(address, dynamo):
    calls = []
    pacing = PacedCalls(limit=lambda call: calls.append(call) or "1/second", clock=dynamo.clock)
    pacing.register(client(address)).list_tables()
    assert [(call.service, call.operation, call.request.method) for call in calls] == [
        ("dynamodb", "ListTables", "POST")
    ]


def test_a_turn_that_comes_too_late_is_not_retried(address, dynamo):
    dynamodb = PacedCalls(limit="1/hour", clock=dynamo.clock, max_wait=5).register(client(address))
    dynamodb.list_tables()
    with pytest.raises(TooLate) as caught:
        dynamodb.list_tables()
    assert caught.value.retry_after == 3600.0
    assert dynamo.came == [0.0]


def test_a_wrong_cooldown():
    with pytest.raises(InvalidInput) as caught:
        PacedCalls(cooldown=-1)
    assert str(caught.value) == "cooldown: expected seconds of at least 0, got -1."
