"""Long work pauses when its turn is over, in the thread that asked for that, and nowhere else."""

import threading

import pytest

from ratekeeper import Policy
from ratekeeper.rules import short_turns
from ratekeeper.rules.reload import Watcher
from tests.service.running import running


class Machine:
    """A clock that moves by ``step`` seconds whenever it is read; each pause is counted by its thread."""

    def __init__(self, step):
        self.step, self.now, self.pauses = step, 0.0, []

    def perf_counter(self):
        self.now += self.step
        return self.now

    def sleep(self, seconds):
        self.pauses.append((threading.current_thread(), seconds))


@pytest.fixture
def machine(monkeypatch):
    machine = Machine(short_turns.TURN)  # each point comes after the end of a turn
    monkeypatch.setattr(short_turns, "perf_counter", machine.perf_counter)
    monkeypatch.setattr(short_turns, "sleep", machine.sleep)
    return machine


def test_a_pause_comes_at_the_end_of_a_turn_and_only_in_short_turns(machine):
    machine.step = short_turns.TURN / 3
    short_turns.pause()
    assert machine.pauses == []
    with short_turns.short_turns():
        for _ in range(12):
            short_turns.pause()
    assert [seconds for _, seconds in machine.pauses] == [short_turns.PAUSE] * 4
    short_turns.pause()
    assert len(machine.pauses) == 4


def test_another_thread_does_not_pause(machine):
    with short_turns.short_turns():
        thread = threading.Thread(target=short_turns.pause)
        thread.start()
        thread.join()
    assert machine.pauses == []


def rules(count):
    return "\n".join([f'[[rules]]\nname = "r{n}"\nmatch = "/r{n}"\nlimit = "1/minute"' for n in range(count)])


def test_the_watcher_pauses_at_each_rule_that_it_validates_parses_and_compiles(tmp_path, machine):
    path = tmp_path / "rules.toml"
    path.write_text(rules(1))
    policy = Policy.load(path)
    assert machine.pauses == []
    watcher = Watcher(policy, 3600.0, None)
    try:
        path.write_text(rules(20))
        watcher.look()
    finally:
        watcher.stop()
    assert len(policy.rules) == 20
    assert len(machine.pauses) >= 3 * 20


def test_the_service_pauses_in_the_thread_that_compiles_and_never_in_that_of_its_requests(tmp_path, machine):
    with running(tmp_path, rules(1)) as service:
        assert machine.pauses == []
        service.worker.decider.policy.path.write_text(rules(20))
        service.run(service.worker.decider.reload_aside())
        loop_thread = service.run(current_thread())
        assert len(service.worker.decider.policy.rules) == 20
    assert len(machine.pauses) >= 3 * 20
    assert loop_thread not in {thread for thread, _ in machine.pauses}


async def current_thread():
    return threading.current_thread()
