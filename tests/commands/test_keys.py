"""ratekeeper keys, peek and reset: what lies in a store."""

import json

import pytest

from ratekeeper import Limiter, info
from tests.commands.command import run


def test_peek_and_reset_on_redis(redis_server):
    redis_server.client(db=5).flushdb()  # tests of one worker share the server
    store = f"{redis_server.url}/5?deadline=10"
    place = ["--limit", "1/hour", "--name", "cli", "--store", store]
    assert run("peek", "somebody", *place).exit_code == 0
    with Limiter("1/hour", name="cli", store=store) as limiter:
        limiter.check("somebody")
    result = run("peek", "somebody", *place, "--json")
    assert (result.exit_code, json.loads(result.output)["allowed"]) == (1, False)
    assert json.loads(run("keys", "--store", store, "--json").output)["keys"] == 1
    assert run("reset", "somebody", *place).exit_code == 0
    assert run("peek", "somebody", *place).exit_code == 0
    redis_server.client(db=5).flushdb()


def test_an_unavailable_store_is_an_error_without_fallback():
    place = ["--store", "redis://127.0.0.1:1/0"]
    for words in (["keys"], ["peek", "me", "--limit", "1/hour"], ["reset", "me", "--limit", "1/hour"]):
        result = run(*words, *place, "--json")
        assert result.exit_code == 3, words
        assert json.loads(result.stdout)["error"].startswith("the store does not answer: "), words


def test_keys_lists_the_tables_of_shared_memory(tmp_path):
    if not info()["shared_memory"]:
        pytest.skip("no shared memory here")
    store = f"shm://{tmp_path}/limits"
    with Limiter("2/hour", name="a", store=store) as first, Limiter(["5/hour", "9/day"], name="b", store=store) as both:
        for number in range(7):
            first.check(f"key {number}")
        both.check("x")
        first.check("me", 2)
    result = json.loads(run("keys", "--store", store, "--json").output)
    assert sorted([row["name"], row["limit"], row["keys"]] for row in result["tables"]) == [
        ["a", "2/hour", 8],
        ["b", "5/hour, 9/day", 1],
    ]
    assert result["keys"] == 9
    place = ["--limit", "2/hour", "--name", "a", "--store", store]
    assert run("peek", "me", *place).exit_code == 1
    assert json.loads(run("reset", "me", *place, "--json").output) == {"reset": True}
    assert run("peek", "me", *place).exit_code == 0


def test_keys_does_not_create_a_segment():
    if not info()["shared_memory"]:
        pytest.skip("no shared memory here")
    for _ in range(2):
        assert "expected the name of a segment" in run("keys", "--store", "shm://no-such-thing").output


@pytest.mark.parametrize("words", [["keys"], ["peek", "me", "--limit", "1/hour"], ["reset", "me", "--limit", "1/hour"]])
def test_memory_of_another_process_cannot_be_inspected(words):
    result = run(*words, "--store", "memory://")
    assert result.exit_code == 2
    assert "got memory://, which" in result.output
