"""The promises of every store, as test classes.  ``walk_limits`` and the functions below it also serve other tests."""

from __future__ import annotations

import random
import threading
from typing import Any

from ratekeeper.algorithms import ALGORITHMS, BUCKETS
from ratekeeper.check import Check
from ratekeeper.decision import Decision
from ratekeeper.keys import encode
from ratekeeper.limit import Limit, LimitSet, empty_state, parse_limits
from ratekeeper.stores.memory import MemoryStore
from ratekeeper.testing.fake_clock import FakeClock
from ratekeeper.units import SECOND


class StoreContract:
    """What every store promises, as a test class: subclass it and override ``make_store``.

    Periods are so long that time does not matter while a test runs, so it also fits stores with a clock of their own.
    For an asynchronous store, override ``ask`` too.
    """

    period = "50 days"

    def make_store(self) -> Any:
        """Return the store to test; override it."""
        return MemoryStore()

    def setup_method(self) -> None:
        self.store = self.make_store()

    def teardown_method(self) -> None:
        self.store.close()

    def ask(self, operation: str, *arguments: Any) -> Any:
        return getattr(self.store, operation)(*arguments)

    def limits(self, count: int = 5) -> list[Limit]:
        limits = [Limit(count, self.period, algorithm=name) for name in ALGORITHMS]
        limits += [Limit(count, self.period, window="first-use"), Limit(count, "year")]
        return [*limits, Limit(count, self.period, algorithm="sliding_window", slices=6)]

    def plan(self, *checks: tuple[Any, Any, int], space: str = "contract") -> tuple[Check, ...]:
        return tuple([Check(space, encode(key), parse_limits(limit), cost) for key, limit, cost in checks])

    def check(self, key: Any, limit: Any, cost: int = 1, space: str = "contract") -> Decision:
        return self.ask("check", self.plan((key, limit, cost), space=space))[0]

    def peek(self, key: Any, limit: Any, cost: int = 1) -> Decision:
        return self.ask("peek", self.plan((key, limit, cost)))[0]

    def state(self, key: Any, limit: Any) -> Any:
        return self.ask("states", self.plan((key, limit, 1)))[1][0]

    def test_admits_the_capacity_and_no_more(self) -> None:
        for number, limit in enumerate(self.limits()):
            answers = [self.check(f"k{number}", limit) for _ in range(8)]
            assert [decision.allowed for decision in answers] == [True] * 5 + [False] * 3, limit
            assert [decision.limit for decision in answers] == [5] * 8
            assert [decision.remaining for decision in answers] == [4, 3, 2, 1, 0, 0, 0, 0]
            assert all(decision.retry_after == 0.0 for decision in answers[:5])
            assert all(decision.retry_after is not None and decision.retry_after > 0 for decision in answers[5:])

    def test_a_refusal_changes_nothing(self) -> None:
        for number, limit in enumerate(self.limits()):
            self.check(f"k{number}", limit, cost=3)
            before = self.state(f"k{number}", limit)
            assert not self.check(f"k{number}", limit, cost=3)
            assert self.state(f"k{number}", limit) == before
            assert self.check(f"k{number}", limit, cost=2)

    def test_a_peek_takes_nothing(self) -> None:
        for number, limit in enumerate(self.limits()):
            assert self.peek(f"k{number}", limit).remaining == 5
            self.check(f"k{number}", limit, cost=4)
            for _ in range(2):
                assert self.peek(f"k{number}", limit).allowed
                assert not self.peek(f"k{number}", limit, cost=2).allowed
                assert self.peek(f"k{number}", limit).remaining == 1

    def test_a_cost_above_the_capacity_can_never_pass(self) -> None:
        for number, limit in enumerate(self.limits()):
            decision = self.check(f"k{number}", limit, cost=6)
            assert (decision.allowed, decision.retry_after, decision.remaining) == (False, None, 5)
            assert self.check(f"k{number}", limit, cost=10**12).retry_after is None
            assert self.state(f"k{number}", limit) == limit.rule.EMPTY

    def test_several_limits_on_a_key_are_all_or_nothing(self) -> None:
        for number, limit in enumerate(self.limits()):
            both = [limit, Limit(3, self.period, algorithm="fixed_window")]
            if limit == both[1]:
                continue
            answers = [self.check(f"k{number}", both) for _ in range(5)]
            assert [decision.allowed for decision in answers] == [True] * 3 + [False] * 2
            assert [part.remaining for part in self.peek(f"k{number}", both).parts()] == [2, 0]
            assert (answers[4].limit, answers[4].remaining) == (3, 0)

    def test_a_plan_is_all_or_nothing(self) -> None:
        for number, limit in enumerate(self.limits()):
            roomy, tight = (f"roomy{number}", limit, 1), (f"tight{number}", limit, 5)
            assert all(self.ask("check", self.plan(roomy, tight)))
            before = [self.state(key, limit) for key, _, _ in (roomy, tight)]
            answers = self.ask("check", self.plan(roomy, tight))
            assert [decision.allowed for decision in answers] == [True, False]
            assert [decision.remaining for decision in answers] == [4, 0]
            assert [self.state(key, limit) for key, _, _ in (roomy, tight)] == before

    def test_a_key_twice_in_a_plan_pays_twice(self) -> None:
        for number, limit in enumerate(self.limits()):
            twice = self.plan((f"k{number}", limit, 2), (f"k{number}", limit, 2))
            assert all(self.ask("check", twice))
            assert self.peek(f"k{number}", limit).remaining == 1
            assert not all(self.ask("check", twice))
            assert self.peek(f"k{number}", limit).remaining == 1

    def test_a_refund_gives_back_up_to_the_capacity(self) -> None:
        for number, limit in enumerate(self.limits()):
            self.check(f"k{number}", limit, cost=4)
            decision = self.ask("refund", self.plan((f"k{number}", limit, 3)))[0]
            assert decision.remaining == self.peek(f"k{number}", limit).remaining == 4
            self.ask("refund", self.plan((f"k{number}", limit, 100)))
            self.ask("refund", self.plan((f"new{number}", limit, 1)))
            for key in (f"k{number}", f"new{number}"):
                assert self.peek(key, limit).remaining == 5
                assert self.check(key, limit, cost=5)
                assert not self.check(key, limit)

    def test_take_takes_what_is_there(self) -> None:
        for number, limit in enumerate(self.limits()):
            assert self.ask("take", self.plan((f"k{number}", limit, 3)))[0].remaining == 2
            assert self.ask("take", self.plan((f"k{number}", limit, 9)))[0].remaining == 0
            assert not self.check(f"k{number}", limit)

    def test_a_debit_takes_all_of_it(self) -> None:
        day = 86_400.0
        for number, limit in enumerate(self.limits()):
            key, is_bucket = f"k{number}", limit.algorithm in BUCKETS
            assert self.ask("debit", self.plan((key, limit, 3)))[0].remaining == 2
            assert self.ask("debit", self.plan((key, limit, 6)))[0].remaining == 0
            wait = self.check(key, limit).retry_after
            assert wait is not None
            longest = limit.period * (2 if limit.algorithm == "sliding_window" else 1)
            assert (49 * day if is_bucket else 0) < wait <= longest
            back = self.ask("refund", self.plan((key, limit, 8)))[0]
            # A log keeps its newest five; a sliding window owes nothing unless its limit names a debt.
            assert back.remaining == (5 if limit.algorithm in ("sliding_log", "sliding_window") else 4)

    def test_a_reset_forgets(self) -> None:
        for number, limit in enumerate(self.limits()):
            self.check(f"k{number}", limit, cost=5)
            self.ask("reset", self.plan((f"k{number}", limit, 1)))
            self.ask("reset", self.plan((f"never seen {number}", limit, 1)))
            assert self.peek(f"k{number}", limit).remaining == 5
            assert self.check(f"k{number}", limit, cost=5)

    def test_keys_and_spaces_are_kept_apart(self) -> None:
        limit = self.limits(1)[0]
        keys: list[Any] = ["a", b"a", ("a",), (b"a",), ("a", ""), ("", "a"), (1,), ("1",), (("a",),), "a" * 5000, "{a}"]
        for space in ("one", "two", "o", "ne"):
            for key in keys:
                assert self.check(key, limit, space=space), (space, key)
            for key in keys:
                assert not self.check(key, limit, space=space), (space, key)

    def test_a_changed_limit_holds_at_once(self) -> None:
        for number, limit in enumerate(self.limits()):
            self.check(f"k{number}", limit, cost=2)
            name: Any = limit.algorithm
            raised, lowered = (Limit(count, limit.period_name, algorithm=name, slices=limit.slices) for count in (9, 2))
            assert self.check(f"k{number}", raised, cost=4)
            answers = [self.check(f"k{number}", lowered) for _ in range(4)]
            assert sum(decision.allowed for decision in answers) <= 2
            refused = answers[-1]
            assert (refused.allowed, refused.limit, refused.remaining) == (False, 2, 0)
            exhausted = lowered.rule.decide(lowered.rule.EMPTY, refused.at, lowered, 2)[0]
            assert refused.retry_after is not None
            assert round(refused.retry_after * SECOND) <= lowered.rule.reset_after(exhausted, refused.at, lowered)

    def test_a_changed_burst_keeps_what_was_used(self) -> None:
        for name in BUCKETS:
            roomy, tight = (Limit(5, self.period, burst=burst, algorithm=name) for burst in (9, 5))
            assert self.check(name, roomy, cost=8)
            assert not self.check(name, tight)
            assert self.check(name, roomy)

    def test_a_changed_count_of_a_bucket_keeps_the_share_that_was_used(self) -> None:
        for name in BUCKETS:
            for before, after, left in ((10, 20, 4), (20, 10, 2), (10, 700, 140), (7, 11, 3), (3, 1000, 333)):
                key = f"{name} {before} {after}"
                old, new = (Limit(count, self.period, algorithm=name) for count in (before, after))
                assert self.check(key, old, cost=before * 8 // 10 or 1)
                assert self.peek(key, new).remaining == left
                assert self.check(key, new, cost=left)
                assert not self.check(key, new)
                assert not self.check(key, old)

    def test_any_limit_may_follow_any_other_under_one_name(self) -> None:
        for before in self.limits():
            for after in self.limits():
                both = parse_limits([before, after])
                for limit in (before, after, both, Limit(5, "day", algorithm=after.algorithm)):  # type: ignore[arg-type]
                    assert self.check("one key", limit).limit == 5

    def test_threads_get_exactly_the_limit(self) -> None:
        for number, limit in enumerate(self.limits(50)):
            assert self.count_admitted(f"k{number}", limit, threads=8, calls=20) == 50

    def count_admitted(self, key: str, limit: Limit | LimitSet, threads: int, calls: int) -> int:
        admitted: list[int] = []
        ready = threading.Barrier(threads)

        def run() -> None:
            ready.wait()
            admitted.append(sum(bool(self.check(key, limit)) for _ in range(calls)))

        workers = [threading.Thread(target=run) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert len(admitted) == threads
        return sum(admitted)


class TimedStoreContract(StoreContract):
    """What a store promises over time: for stores that take a FakeClock, ``self.clock``."""

    STEPS = 160  # of each random walk; fewer take less time and find less

    def make_store(self) -> Any:
        """Return the store to test, on ``self.clock``; override it."""
        return MemoryStore(clock=self.clock)

    def setup_method(self) -> None:
        self.clock = FakeClock(start=1_000_000.0)
        super().setup_method()

    def test_answers_are_those_of_the_pure_rule_step_by_step(self) -> None:
        for seed, limit in enumerate(walk_limits()):
            self.walk(limit, seed, self.STEPS)

    def walk(self, limit: Limit | LimitSet, seed: int, steps: int) -> None:
        """Compare random calls at random times with the pure rule: the same states and the same answers."""
        chance = random.Random(seed)
        rule, state, key = limit.rule, empty_state(limit), f"walker {seed}"
        for _ in range(steps):
            self.clock.move_to(max(0, self.clock.micros + random_step(chance, limit)))
            now, cost = self.clock.micros, random_cost(chance, limit)
            if chance.random() < 0.1:
                at = max(0, now - chance.choice([0, 0, 1, 10**6]))
                state = rule.refund(state, now, limit, cost, at)
                self.ask("refund", self.plan((key, limit, cost)), at)
            else:
                state, allowed = rule.decide(state, now, limit, cost)
                decision = self.check(key, limit, cost)
                assert decision.allowed == allowed
                assert decision.remaining == rule.remaining(state, now, limit)
                assert decision.reset_after == rule.reset_after(state, now, limit) / SECOND
                wait = rule.retry_after(state, now, limit, cost)
                expected = 0.0 if allowed else None if wait is None else wait / SECOND
                assert decision.retry_after == expected
                assert decision.delay == (rule.delay(state, now, limit, cost) / SECOND if allowed else 0.0)
            assert live(self.state(key, limit), now, limit) == live(state, now, limit)

    def test_a_debit_takes_all_of_it_and_the_key_recovers_in_time(self) -> None:
        for number, limit in enumerate(self.limits()):
            rule, key, state = limit.rule, f"k{number}", empty_state(limit)
            for operation, cost in (("debit", 3), ("debit", 6), ("refund", 2), ("debit", 4)):
                now = self.clock.micros
                change = rule.debit(state, now, limit, cost) if operation == "debit" else None
                state = change if change is not None else rule.refund(state, now, limit, cost, now)
                decision = self.ask(operation, self.plan((key, limit, cost)))[0]
                assert decision.remaining == rule.remaining(state, now, limit)
                assert decision.reset_after == rule.reset_after(state, now, limit) / SECOND
            wait = self.check(key, limit).retry_after
            assert decision.remaining == 0
            assert wait is not None
            assert wait == rule.retry_after(state, now, limit, 1) / SECOND
            self.clock.move_to(self.clock.micros + round(wait * SECOND) - 1)
            assert not self.check(key, limit)
            self.clock.move_to(self.clock.micros + 1)
            assert self.check(key, limit)

    def test_plans_are_answered_as_in_memory_even_if_a_key_is_in_them_twice(self) -> None:
        for seed, texts in enumerate(PLANNED):
            chance, reference = random.Random(seed), MemoryStore(clock=self.clock)
            limits = [parse_limits(text) for text in texts]
            for step in range(self.STEPS // 2):
                self.clock.move_to(self.clock.micros + max(0, random_step(chance, limits[0])))
                drawn = chance.choices(limits, k=chance.randint(1, 4))
                checks = [(chance.choice("ab"), limit, random_cost(chance, limit)) for limit in drawn]
                plan = self.plan(*checks, space=f"walk {seed}")
                operation = chance.choice(["check", "check", "check", "peek", "refund", "take", "debit"])
                answers, expected = self.ask(operation, plan), getattr(reference, operation)(plan)
                assert answers == expected, (seed, step, operation, plan)

    def test_retry_after_is_exact_to_the_microsecond(self) -> None:
        for number, limit in enumerate([*self.limits(), *walk_limits()]):
            assert self.check(f"k{number}", limit)
            if left := self.peek(f"k{number}", limit).remaining:
                assert self.check(f"k{number}", limit, cost=left)
            wait = self.check(f"k{number}", limit).retry_after
            assert wait is not None
            began = self.clock.micros
            self.clock.move_to(began + round(wait * SECOND) - 1)
            assert not self.peek(f"k{number}", limit)
            self.clock.move_to(began + round(wait * SECOND))
            assert self.check(f"k{number}", limit)

    def test_a_log_may_begin_at_instant_zero(self) -> None:
        limit = Limit.parse("100 per 10 seconds sliding_log")
        for at, cost in ((0, 50), (5, 50)):
            self.clock.move_to(at * SECOND)
            assert self.check("from zero", limit, cost)
        self.clock.move_to(6 * SECOND)
        assert self.check("from zero", limit).retry_after == 4.0
        self.clock.move_to(10 * SECOND)
        assert self.check("from zero", limit, cost=50)
        assert not self.check("from zero", limit)

    def test_a_refusal_tells_what_has_left_the_window_since_the_last_one(self) -> None:
        limit = Limit.parse("100/second sliding_log")
        for at, cost, allowed, left in ((0, 60, True, 40), (4, 30, True, 10), (5, 80, False, 10), (11, 80, False, 70)):
            self.clock.move_to(100 * SECOND + at * SECOND // 10)
            decision = self.check("refused twice", limit, cost)
            assert (decision.allowed, decision.remaining) == (allowed, left)
        assert decision.retry_after == 0.3

    def test_a_refund_gives_back_all_that_counts(self) -> None:
        for text, taken, back in (
            ("10 per 10 seconds", ((5, 8), (15, 6)), 14),
            ("7 per 10 seconds", ((5, 7), (15, 1)), 1_000_000),
            ("999 per 1 second", ((5, 999), (6, 1)), 10**12),
        ):
            for algorithm in ("sliding_window", "sliding_window slices 2", "sliding_log", "fixed_window"):
                limit, key = Limit.parse(f"{text} {algorithm}"), f"{text} {algorithm}"
                for at, cost in taken:
                    self.clock.move_to(at * SECOND)
                    self.check(key, limit, cost)
                self.ask("refund", self.plan((key, limit, back)))
                decision = self.peek(key, limit)
                assert (decision.remaining, decision.reset_after) == (limit.count, 0.0), limit

    def test_a_refund_after_a_limit_was_lowered_counts_from_what_was_used(self) -> None:
        for name in ("fixed_window", "sliding_window"):  # a log's place depends on its count in some stores
            before, after = (Limit(count, self.period, algorithm=name) for count in (90, 10))
            assert self.check(name, before, cost=90)
            self.ask("refund", self.plan((name, after, 40)))
            assert self.peek(name, before).remaining == 40

    def test_after_a_lowered_limit_nobody_waits_longer_than_after_using_it_up(self) -> None:
        chance = random.Random(7)
        several = len(self.limits())
        for number, limit in enumerate([*self.limits(5), *self.limits(1)]):
            rule, key = limit.rule, f"lowered {number}"
            before = self.limits(limit.count + chance.randint(1, 500))[number % several]
            self.clock.move_to((self.clock.micros // limit.micros + 4) * limit.micros + chance.randrange(limit.micros))
            for _ in range(3):
                if left := self.peek(key, before).remaining:
                    assert self.check(key, before, cost=chance.randint(1, left))
                self.clock.move_to(self.clock.micros + chance.randrange(limit.micros // 2))
            now, decision = self.clock.micros, self.check(key, limit)
            wait = round((decision.retry_after or 0.0) * SECOND)
            used_up, _ = rule.decide(rule.EMPTY, now, limit, limit.count)
            assert wait <= max(limit.micros, rule.retry_after(used_up, now, limit, 1) or 0), (before, limit)
            if wait:
                self.clock.move_to(now + wait - 1)
                assert not self.peek(key, limit)
                self.clock.move_to(now + wait)
                assert self.check(key, limit), (before, limit)

    def test_a_clock_that_steps_back_neither_grants_nor_locks_out(self) -> None:
        for number, limit in enumerate(self.limits(3)):
            key, began = f"k{number}", self.clock.micros
            self.clock.move_to(began + 3 * limit.micros)
            assert self.check(key, limit, cost=3)
            self.clock.move_to(began)
            assert not self.check(key, limit)
            again = self.check(key, limit)
            assert not again
            assert again.reset_after * SECOND <= 2 * limit.micros
            self.clock.move_to(began + round(again.reset_after * SECOND))
            assert self.check(key, limit, cost=3), limit


# Limits whose checks share plans: one record, a record and logs, logs only, long logs.
PLANNED: list[list[Any]] = [
    ["7/second", "3/second fixed_window", ["5/second", "9 per 2 seconds sliding_window"]],
    [["4/second", "7 per 3 seconds sliding_log"], "5/second sliding_log"],
    [["4/second sliding_log", "9 per 3 seconds sliding_log"], "6/second"],
    [["70 per 2 seconds sliding_log", "80 per 3 seconds"], "90/second sliding_log"],
]


def walk_limits() -> list[Limit | LimitSet]:
    """Limits with awkward numbers: odd rates, fractions of a microsecond, small and large bursts."""
    limits: list[Limit | LimitSet] = []
    for name in ALGORITHMS:
        limits += [Limit.parse(text, name) for text in ("7 per 3 seconds", "3/second", "5 per 7 microseconds")]
        if name in BUCKETS:
            limits += [Limit.parse(text, name) for text in ("10/second burst 3", "1/day burst 9", "999983/minute")]
    limits += [Limit.parse(f"99999999977/day {name}") for name in ("fixed_window", "sliding_window")]
    limits += [
        Limit.parse(f"{text} first-use") for text in ("7 per 3 seconds", "5 per 7 microseconds", "999999999/day")
    ]
    limits += [
        Limit.parse(text) for text in ("5/day calendar", "9/day calendar Europe/Berlin", "7/month", "4/week calendar")
    ]
    limits += [Limit.parse(f"20 per 3 seconds sliding_window slices {slices}") for slices in (2, 3, 7, 100)]
    limits.append(parse_limits(["3/second", "7 per 3 seconds sliding_log", "20/minute sliding_window"]))
    limits.append(parse_limits([f"{count}/second {name}" for count, name in enumerate(ALGORITHMS, start=3)]))
    limits.append(parse_limits(["6 per 2 days", "5/day calendar America/Sao_Paulo", "9 per 40 hours first-use"]))
    limits.append(parse_limits(["9 per 40 hours first-use", "30/month", "5/day calendar"]))
    return limits


def random_step(chance: random.Random, limit: Limit | LimitSet) -> int:
    """A step of the clock in microseconds: mostly part of the period, at times nothing, far, or back."""
    micros = min(part.micros for part in limit.parts)
    kind = chance.random()
    if kind < 0.25:
        return 0
    if kind < 0.85:
        return chance.randrange(micros // 5 + 2)
    if kind < 0.95:
        return chance.randrange(3 * micros)
    return -chance.randrange(2 * micros)


def random_cost(chance: random.Random, limit: Limit | LimitSet) -> int:
    capacity = min(part.capacity for part in limit.parts)
    return chance.choice([1, 1, 1, 1, 2, chance.randint(1, capacity), capacity, capacity + 1])


def live(state: Any, now: int, limit: Limit | LimitSet) -> Any:
    """``state`` without what no longer counts, which stores may forget at any time."""
    if isinstance(limit, LimitSet):
        return tuple([live(its_state, now, part) for its_state, part in zip(state, limit.limits, strict=True)])
    if not limit.rule.debt(state, now, limit):
        return limit.rule.EMPTY
    if limit.is_leased:
        return tuple([(end, lease) for end, lease in zip(*state[:2], strict=True) if end > now])
    if isinstance(state, tuple):
        return tuple([instant for instant in state if instant > now - limit.micros])
    return state
