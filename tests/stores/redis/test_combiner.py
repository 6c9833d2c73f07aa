"""Threads that speak for one another: each gets its own answer, and nobody leads or waits longer than it should."""

import dis
import random
import sys
import threading

import pytest

from ratekeeper import StoreUnavailable
from ratekeeper.stores.redis import combiner as combine
from ratekeeper.stores.redis.combiner import TURNS, Combiner
from ratekeeper.stores.redis.resp import MOST_REQUESTS
from tests import tier
from tests.interruption import signalled


class Asked:
    """A request as far as a combiner knows it."""

    future: object

    def __init__(self, number=0):
        self.number = number


def lead_with_others(monkeypatch, seconds_each):
    """How many batches one leader delivers while others keep coming, each taking so long."""
    now = [1000.0]
    monkeypatch.setattr(combine, "monotonic", lambda: now[0])
    leader = threading.get_ident()
    batches, others, answers = [], [], []

    def deliver(requests, since):
        speak(None, since)
        for request in requests:
            request.future.set_result("answer")

    def speak(request, since):
        batches.append(threading.get_ident())
        now[0] += seconds_each
        if len(others) < 2 * TURNS and threading.get_ident() == leader:  # another caller comes while this one waits
            before = len(combiner.line)
            others.append(threading.Thread(target=lambda: answers.append(combiner.ask(Asked(), 50))))
            others[-1].start()
            while len(combiner.line) == before:
                pass
        return "answer"

    combiner = Combiner(deliver, speak, "here")
    assert combiner.ask(Asked(), 50) == "answer"
    for thread in others:
        thread.join()
    assert answers == ["answer"] * len(others)  # an error of a thread fails this test, not its neighbour
    assert not combiner.line
    assert not combiner.seat
    return batches.count(leader)


def test_a_leader_speaks_for_others_a_few_times(monkeypatch):
    assert lead_with_others(monkeypatch, 0.001) == 1 + TURNS


def test_a_leader_that_waited_long_hands_over(monkeypatch):
    assert lead_with_others(monkeypatch, 10.0) == 1


def test_everybody_gets_its_own_answer_and_nobody_is_left_behind():
    sizes = []

    def deliver(requests, since):
        sizes.append(len(requests))
        for request in requests:
            if request.number % 7:
                request.future.set_result(request.number)
            else:
                request.future.set_exception(StoreUnavailable("here", f"{request.number}"))

    def speak(request, since):
        if request.number % 7:
            return request.number
        raise StoreUnavailable("here", f"{request.number}")

    combiner = Combiner(deliver, speak, "here")
    wrong = []

    def run(first):
        for number in range(first, first + 400):
            try:
                told = combiner.ask(Asked(number), 60)
            except StoreUnavailable as error:
                told = int(error.why) if number % 7 == 0 else None
            if told != number:
                wrong.append((number, told))

    threads = [threading.Thread(target=run, args=(number * 1000,)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert not combiner.line
    assert not combiner.seat
    assert max(sizes, default=1) <= MOST_REQUESTS


def test_deadlines_that_pass_at_any_moment_leave_nobody_behind():
    def deliver(requests, since):
        for request in requests:
            if not request.future.done():
                request.future.set_result(request.number)

    combiner = Combiner(deliver, lambda request, since: request.number, "here")
    told = {"answered": 0, "late": 0, "wrong": 0}

    def run(first):
        chance = random.Random(first)
        for number in range(first, first + 300):
            patient = number % 3 == 0
            try:
                right = combiner.ask(Asked(number), 60 if patient else chance.random() / 5000) == number
            except StoreUnavailable as error:
                right = not patient and error.charged in (None, False)
                told["late"] += 1
            told["answered" if right else "wrong"] += 1

    threads = [threading.Thread(target=run, args=(number * 1000,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told["wrong"] == 0
    assert not combiner.line
    assert not combiner.seat


class Held:
    """A combiner whose first call is under way until ``over``; those who come meanwhile stand in line."""

    def __init__(self):
        self.began, self.first_over, self.sent, self.over = [threading.Event() for _ in range(4)]
        self.combiner = Combiner(self.deliver, self.speak, "here")
        self.told = {}
        self.threads = []
        self.start("first", 60)
        self.began.wait()

    def speak(self, request, since):
        self.began.set()
        self.first_over.wait()
        return request.number

    def deliver(self, requests, since):
        self.sent.set()
        self.over.wait()
        for request in requests:
            if not request.future.done():
                request.future.set_result(request.number)

    def ask(self, name, deadline):
        try:
            self.told[name] = self.combiner.ask(Asked(name), deadline)
        except StoreUnavailable as error:
            self.told[name] = error if error.why != "was interrupted" else error.why

    def start(self, name, deadline):
        waiting = len(self.combiner.line) if self.threads else -1
        self.threads.append(threading.Thread(target=self.ask, args=(name, deadline)))
        self.threads[-1].start()
        while self.threads[1:] and len(self.combiner.line) == waiting:
            pass

    def finish(self):
        self.first_over.set()
        self.over.set()
        for thread in self.threads:
            thread.join()
        assert not self.combiner.line
        assert not self.combiner.seat
        return self.told


def test_who_waits_in_line_until_the_deadline_has_not_paid():
    held = Held()
    held.start("second", 60)
    held.ask("late", 0.001)
    told = held.finish()
    assert (told["first"], told["second"]) == ("first", "second")
    assert (told["late"].why, told["late"].charged) == ("other threads waited for it until the deadline", False)


def test_who_gives_up_when_sent_may_have_paid_and_those_behind_it_are_answered(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(combine, "monotonic", lambda: now[0])
    held = Held()
    for name, deadline in (("second", 60), ("late", 50), ("third", 60)):
        held.start(name, deadline)
    late = held.combiner.line[1].future
    held.first_over.set()  # it is answered, and speaks for the others until the deadline of one of them has passed
    held.sent.wait()
    now[0] += 50
    combine.open_gate(late)  # who is woken in vain looks at the time
    held.threads[2].join()
    told = held.finish()
    assert (told["first"], told["second"], told["third"]) == ("first", "second", "third")
    assert (told["late"].why, told["late"].charged) == ("gave no answer in 50000 ms", None)


class Interruption(BaseException):
    pass


def interrupted_at(number, call):
    """``call()``, where the handler of a signal raises at the ``number``-th chance; whether it came that far.

    Python looks for signals after a call, at the start of a function and when a loop goes round.
    """
    left, before = number, {}

    def trace(frame, event, _):
        nonlocal left
        if frame.f_code.co_filename != combine.__file__:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            last = before.get(frame, "RESUME")
            before[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            left -= last.startswith("CALL") or last in ("RESUME", "JUMP_BACKWARD")
            if left == 0:
                left -= 1
                raise Interruption
        return trace

    def run():
        sys.settrace(trace)
        try:
            call()
        except (Interruption, StoreUnavailable):
            pass
        finally:
            sys.settrace(None)

    # A thread of its own: an exception of a trace function can leave sys.exc_info() set for the rest of the thread.
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return left <= 0


def interrupt_a_leader(number, others):
    """Whether one who speaks for so many others was interrupted at that chance; nobody may wait for it."""
    told, threads = {}, []

    def speak(request, since):
        for each in range(others if request.number == "main" else 0):  # they line up behind it
            threads.append(threading.Thread(target=ask, args=(each,)))
            threads[-1].start()
            while len(combiner.line) <= each:
                pass
        return request.number

    def deliver(requests, since):
        for request in requests:
            request.future.set_result(request.number)

    def ask(name):
        try:
            told[name] = combiner.ask(Asked(name), 60)
        except StoreUnavailable as error:
            told[name] = error.why

    combiner = Combiner(deliver, speak, "here")
    interrupted = interrupted_at(number, lambda: combiner.ask(Asked("main"), 60))
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    assert not combiner.line
    assert not combiner.seat
    assert all(answer in (name, "was interrupted") for name, answer in told.items())
    return interrupted


@pytest.mark.parametrize("others", [0, 1, 3])
def test_a_leader_that_is_interrupted_anywhere_leaves_nobody_waiting(others):
    chances = [interrupt_a_leader(number, others) for number in range(1, 80)]
    assert (8 if others == 0 else 25) < sum(chances) < len(chances)


def interrupt_a_waiter(number, end):
    """Whether one who stands in line was interrupted at that chance; nobody may wait for it."""
    held, over = Held(), threading.Event()
    if end != "leads":
        held.start("second", 60)
    before = len(held.combiner.line)

    def follow():
        while len(held.combiner.line) == before and not over.is_set():
            pass
        held.threads.append(threading.Thread(target=held.ask, args=("third", 60)))
        held.threads[-1].start()
        while len(held.combiner.line) < before + 2 and not over.is_set():
            pass
        if end != "late":
            held.first_over.set()
            held.over.set()

    helper = threading.Thread(target=follow)
    helper.start()
    interrupted = interrupted_at(number, lambda: held.combiner.ask(Asked("main"), 0.02 if end == "late" else 60))
    over.set()
    helper.join()
    told = held.finish()
    assert told.pop("third") in ("third", "was interrupted")
    assert told == {name: name for name in ("first", "second")[: len(told)]}
    return interrupted


@pytest.mark.parametrize("end", ["late", "answered", "leads"])
def test_a_waiter_that_is_interrupted_anywhere_leaves_nobody_waiting(end, monkeypatch):
    """It waits in vain, or for its answer, or for its turn to lead; another one stands behind it."""
    if end == "leads":
        monkeypatch.setattr(combine, "LEADS_FOR", 0)  # whoever has its answer hands over
    chances = [interrupt_a_waiter(number, end) for number in range(1, 80, 1 if tier.FULL else 4)]
    assert len(chances) // 4 < sum(chances) < len(chances)


def test_an_interrupted_thread_leaves_nobody_behind_waiting():
    held = Held()
    held.start("second", 60)

    def when():
        while len(held.combiner.line) < 2:
            pass
        held.threads.append(threading.Thread(target=held.ask, args=("third", 60)))
        held.threads[-1].start()
        while len(held.combiner.line) < 3:
            pass

    with signalled(when, raises=KeyboardInterrupt):
        held.combiner.ask(Asked("main"), 60)
    told = held.finish()
    assert told == {"first": "first", "second": "second", "third": "third"}
