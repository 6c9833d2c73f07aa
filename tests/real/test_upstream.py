"""Random configurations and requests, put to the real envoyproxy/ratelimit and to ours: the answers are the same.

Only the seconds until a reset follow the clock; they may differ by the time between the two calls.  The long form asks
100,000 questions, and ``tests/real/upstream.py`` lists what is left out.
"""

import os

import pytest
from google.protobuf import text_format

from ratekeeper.service.options import EnvoyOptions
from tests.real.upstream import Configuration, answered, ask_both, channel_to, method, random_chance, upstream
from tests.service.running import ANY, running

pytestmark = pytest.mark.real
SHORT = bool(os.environ.get("RATEKEEPER_REAL_SHORT"))
STEPS = int(os.environ.get("RATEKEEPER_UPSTREAM_STEPS", "2400" if SHORT else "100000"))
PARTS = 1 if SHORT else 4
STEPS_OF_ONE = 400  # requests to one configuration
LATER = 60  # seconds that two answers to one question may be apart on a busy machine


def alike(theirs, ours):
    """Whether two responses are the same, but for the seconds between them."""
    theirs, ours = answered(theirs), answered(ours)
    for one, other in zip(theirs.statuses, ours.statuses, strict=False):
        if not (one.HasField("duration_until_reset") and other.HasField("duration_until_reset")):
            continue
        if abs(one.duration_until_reset.seconds - other.duration_until_reset.seconds) <= LATER:
            other.duration_until_reset.seconds = one.duration_until_reset.seconds
    for one, other in zip(theirs.response_headers_to_add, ours.response_headers_to_add, strict=False):
        if one.key == other.key == "RateLimit-Reset" and abs(int(one.value) - int(other.value)) <= LATER:
            other.value = one.value
    return theirs == ours


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("store", ["memory", "redis"])
@pytest.mark.parametrize(("variable", "option"), [("", ""), ("SHADOW_MODE", "shadow"), ("QUOTA_MODE", "quota")])
def test_every_answer_is_the_same(tmp_path, redis_server, store, variable, option, part):
    share = 0.15 if option else 0.7
    steps = int(STEPS * share / 2 / PARTS)
    for number in range(-(-steps // STEPS_OF_ONE)):
        seed = f"{store}{option}{part}-{number}"
        compare(tmp_path / str(number), seed, store, redis_server, {variable: "true"} if variable else {}, option)


def compare(folder, seed, store, redis_server, variables, option):
    folder.mkdir()
    chance = random_chance(seed)
    configuration = Configuration(chance)
    configuration.write(folder / "config")
    options = EnvoyOptions(compat=True, metadata=True, headers="ratelimit", **({option: True} if option else {}))
    url = f"{redis_server.url}/0?prefix={seed}&deadline=30" if store == "redis" else None
    with (
        upstream(folder, **variables) as port,
        running(envoy_config=folder / "config", envoy=options, grpc=ANY, http=None, store=url) as service,
        channel_to(port) as theirs,
        channel_to(service.addresses["grpc"][1]) as ours,
    ):
        ask_them, ask_us = method(theirs), method(ours)
        for step in range(STEPS_OF_ONE):
            request = configuration.request()
            their_answer, our_answer = ask_both(ask_them, ask_us, request)
            if not alike(their_answer, our_answer):
                written = (folder / "config" / "limits.yaml").read_text()
                texts = [text_format.MessageToString(one, as_one_line=True) for one in (their_answer, our_answer)]
                pytest.fail(f"seed {seed!r}, step {step}\n{written}\n{request}\ntheirs: {texts[0]}\nours:   {texts[1]}")
