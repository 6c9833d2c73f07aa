"""Counters of several workers, by way of one folder."""

from ratekeeper import Decision
from ratekeeper.service.counters import Counters
from ratekeeper.service.worker_counters import WorkerCounters

YES = Decision(True, 10, 5, 0.0, 5.0)


def worker(folder, number, calls):
    counters = WorkerCounters(folder, number, Counters())
    for _ in range(calls):
        counters.counters.count("login", YES)
    counters.write()
    return counters


def test_each_worker_sees_the_sum(tmp_path):
    one, two = worker(tmp_path, 0, 2), worker(tmp_path, 1, 3)
    assert one.all().by_rule() == two.all().by_rule() == {"login": {"allowed": 5}}
    assert worker(None, 0, 4).all().by_rule() == {"login": {"allowed": 4}}


def test_a_worker_that_replaces_another_goes_on_from_its_counters(tmp_path):
    worker(tmp_path, 0, 2)
    again = worker(tmp_path, 0, 1)
    assert again.all().by_rule() == {"login": {"allowed": 3}}


def test_a_file_that_cannot_be_read_or_written_stops_nobody(tmp_path):
    one = worker(tmp_path, 0, 2)
    (tmp_path / "worker-1.json").write_text("{")
    assert one.all().by_rule() == {"login": {"allowed": 2}}
    gone = WorkerCounters(tmp_path / "gone", 0, Counters())
    gone.write()
    assert gone.all().by_rule() == {}
