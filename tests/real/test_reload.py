"""The watcher on real time: a written file is in force soon, also in a process that was forked off."""

import os
import time

import pytest

from ratekeeper import Policy, Request

pytestmark = pytest.mark.real


def wait_for(condition, seconds=10.0):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def names(policy):
    return [rule.name for rule in policy.rules]


def write(path, *rules):
    text = "\n".join(f'[[rules]]\nname = "{name}"\nlimit = "1/minute"' for name in rules)
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").replace(path)  # as editors and deployments do


def test_a_file_that_is_replaced_is_in_force_soon_and_requests_go_on(tmp_path):
    path = tmp_path / "rules.toml"
    write(path, "a")
    policy = Policy.load(path, watch=0.02)
    for wanted in (["a", "b"], ["b"], ["b", "c", "d"]):
        write(path, *wanted)
        wait_for(lambda wanted=wanted: policy.check(Request(peer="192.0.2.1")) is not None and names(policy) == wanted)
    path.write_text("nonsense")
    time.sleep(0.2)
    assert names(policy) == ["b", "c", "d"]
    policy.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_watches_too(tmp_path):
    path = tmp_path / "rules.toml"
    write(path, "a")
    policy = Policy.load(path, watch=0.02)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            wait_for(lambda: names(policy) == ["z"])
            os.write(writing, b"seen")
        finally:
            os._exit(0)
    os.close(writing)
    write(path, "z")
    assert os.read(reading, 10) == b"seen"
    os.waitpid(child, 0)
    os.close(reading)
    policy.close()
