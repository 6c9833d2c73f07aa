"""One run of one target: its clock, its recorded calls, and its verdict on each law."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from conformance.adapters.server import ServerSession
from conformance.limits import SECOND, Call, Limit
from conformance.make_cases import REAL, START
from conformance.model import Limits
from conformance.redis_server import LossyProxy, RedisServer
from conformance.session import LineSession, Session

CASES = Path(__file__).parent / "cases"
TRIES = 6  # of a case on real time, until no call was later than the case allows


class Broken(Exception):
    """A law does not hold.  ``history`` is what to do to see it."""

    def __init__(self, words: str, history: list[str]) -> None:
        super().__init__(words)
        self.history = history


class NotJudged(Exception):
    """The law cannot be judged here, and why."""


Opener = Callable[[str | None], Session]


class Run:
    """A session with a clock.  ``make`` starts another session of the same target, on a store."""

    def __init__(self, make: Opener, server: RedisServer | None = None, *, is_quick: bool = False) -> None:
        self.make = make
        self.server = server
        self.session = make(server.url if server else None)
        self.promises = self.session.promises
        self.is_real = self.promises.clock == "real"
        self.flood_size = 2000 if is_quick or isinstance(self.session, ServerSession) else 20_000
        # A race in memory shows rarely, and a round there takes milliseconds.
        in_memory = self.promises.store == "memory" and not isinstance(self.session, ServerSession)
        self.rounds = 1 if is_quick else 40 if in_memory else 3
        self.numbers = count(1)
        self.prefix = f"{time.time_ns() % 10**9:09d}"
        self.virtual_now = START
        self.is_stepping = False
        self.over_admission: dict[str, float] = {}
        self.recorded: list[tuple[dict[str, Any], list[Call]]] | None = None
        if not self.is_real:
            self.session.set_time(START)

    def close(self) -> None:
        self.session.close()

    # Time

    def now(self) -> int:
        return time.time_ns() // 1000 if self.is_real else self.virtual_now

    def sleep_until(self, instant: int) -> None:
        if not self.is_real:
            self.move_to(max(instant, self.virtual_now))
            return
        while (left := instant - self.now()) > 0:
            time.sleep(left / SECOND)

    def move_to(self, instant: int) -> None:
        if instant != self.virtual_now:
            self.virtual_now = instant
            self.session.set_time(instant)

    def step_clock(self, micros: int) -> None:
        self.move_to(self.virtual_now + micros)

    def away_from_edges(self, limit: Limit) -> None:
        """Wait if a window of this limit ends within the next seconds."""
        if not self.is_real:
            self.move_to(self.virtual_now - self.virtual_now % limit.period + 2 * limit.period)
            return
        left = limit.period - self.now() % limit.period
        if limit.period > 60 * SECOND and left < 15 * SECOND:
            self.sleep_until(self.now() + left + SECOND)

    # Calls

    def open(self, limits: list[Limit], session: Session | None = None) -> str:
        """A new limiter of this run, with nothing used."""
        name = f"c{self.prefix}-{next(self.numbers)}"
        (session or self.session).open(name, limits)
        return name

    def check(self, limiter: str, key: str, cost: int = 1, session: Session | None = None) -> Call:
        sent = self.now()
        answer = (session or self.session).check(limiter, key, cost)
        return Call(sent, self.now(), key, cost, answer)

    def expect_model(self, model: Limits, call: Call, calls: list[Call]) -> None:
        """Ask the model the same question: a virtual clock only."""
        allowed = model.admit(call.key, call.sent, call.cost)
        if self.promises.precision:
            return
        if allowed != call.answer.allowed:
            words = "admitted" if allowed else "refused"
            number = calls.index(call)
            raise Broken(f"{model.limits[0]}: the model has the last call {words}.",
                         [each.told() for each in calls[: number + 1]])  # fmt: skip

    # Cases

    def cases(self, word: str, *, without: bool = False) -> list[tuple[dict[str, Any], list[Call]]]:
        """The cases that this target can run, with its answers; those with ``word`` in their name, or all others."""
        if self.recorded is None:
            chosen = [case for case in read_cases(self.promises.algorithms) if self.can_run(case)]
            self.recorded = self.run_real(chosen) if self.is_real else [(each, self.replay(each)) for each in chosen]
        found = [pair for pair in self.recorded if (f"-{word}-" in pair[0]["name"]) != without]
        if not found:
            raise NotJudged("no case fits what this target promises, or the machine was too busy for real time")
        return found

    def can_run(self, case: dict[str, Any]) -> bool:
        features, name = self.promises.features, case["name"]
        return (
            case["margin"] >= (max(REAL, self.promises.precision) if self.is_real else self.promises.precision)
            and self.promises.starts_full
            and ("cost" in features or all(step["cost"] == 1 for step in case["steps"]))
            and ("refusal_free" in features or "-first-" in name)
            and ("-several-" not in name or "several" in features)
            and ("keys" in features or all(step["key"] == "a" for step in case["steps"]))
            # On real time it is not known where the windows of a sliding counter begin.
            and (
                not self.is_real or "-first-" in name or not name.startswith("sliding_window") or "aligned" in features
            )
            and all(self.promises.takes(Limit.from_json(limit)) for limit in case["limits"])
        )

    def replay(self, case: dict[str, Any], steps: list[dict[str, Any]] | None = None) -> list[Call]:
        """Virtual time."""
        name = self.open([Limit.from_json(limit) for limit in case["limits"]])
        self.move_to(max(self.virtual_now, case["start"]))
        period = max(limit["period"] for limit in case["limits"])
        # The first instant from now on at which the windows of all cases begin: a limiter may dislike a step back.
        begin = -(-self.virtual_now // (604_800 * SECOND)) * 604_800 * SECOND
        calls = []
        for step in case["steps"] if steps is None else steps:
            self.move_to(begin + step["at"])
            calls.append(self.check(name, step["key"], step["cost"]))
        self.move_to(self.virtual_now + 3 * period)
        return calls

    def run_real(self, cases: list[dict[str, Any]]) -> list[tuple[dict[str, Any], list[Call]]]:
        """Real time: all cases at once, each on its own limiter; a case whose calls came too late is run again."""
        done: list[tuple[dict[str, Any], list[Call]]] = []
        for _ in range(TRIES):
            if not cases:
                break
            names = {case["name"]: self.open([Limit.from_json(limit) for limit in case["limits"]]) for case in cases}
            period = max(limit["period"] for case in cases for limit in case["limits"])
            begin = (self.now() // period + 1) * period
            steps = sorted(((step["at"], number, step, case) for number, case in enumerate(cases)
                            for step in case["steps"]), key=lambda entry: entry[:2])  # fmt: skip
            made: dict[str, list[Call]] = {case["name"]: [] for case in cases}
            late: dict[str, int] = dict.fromkeys(made, 0)
            for at, _, step, case in steps:
                self.sleep_until(begin + at)
                call = self.check(names[case["name"]], step["key"], step["cost"])
                made[case["name"]].append(call)
                late[case["name"]] = max(late[case["name"]], call.received - begin - at)
            done += [(case, made[case["name"]]) for case in cases if late[case["name"]] < case["margin"]]
            cases = [case for case in cases if late[case["name"]] >= case["margin"]]
        return done

    def shrink(self, case: dict[str, Any], calls: list[Call], step: dict[str, Any]) -> list[str]:
        """The shortest part of a case that still shows the fault, as lines; real time is not run again."""
        steps = case["steps"][: case["steps"].index(step) + 1]
        if self.is_real:
            return [call.told() for call in calls[: len(steps)]]
        limits = [Limit.from_json(limit) for limit in case["limits"]]

        def is_wrong(tried: list[dict[str, Any]]) -> bool:
            model = Limits(limits)
            expected = [model.admit(each["key"], START + each["at"], each["cost"]) for each in tried]
            return expected[-1] != self.replay(case, tried)[-1].answer.allowed

        place = 0
        for _ in range(60):
            if place >= len(steps) - 1:
                break
            shorter = steps[:place] + steps[place + 1 :]
            if is_wrong(shorter):
                steps = shorter
            else:
                place += 1
        begin = -(-self.virtual_now // (604_800 * SECOND)) * 604_800 * SECOND
        shown = self.replay(case, steps)
        limit = " and ".join(str(each) for each in limits)
        return [limit, *(Call(c.sent - begin, c.received - begin, c.key, c.cost, c.answer).told() for c in shown)][-15:]

    # Stores and processes

    def note_over_admission(self, limit: Limit, ratio: float) -> None:
        self.over_admission[limit.algorithm] = max(self.over_admission.get(limit.algorithm, 0.0), ratio)

    def memory(self) -> int:
        """Bytes of the target's process."""
        self.session.collect()
        pages = int(Path(f"/proc/{self.session.pid}/statm").read_text().split()[1])
        return pages * 4096

    def stored_keys(self) -> list[tuple[str, int | None]] | None:
        return self.server.expiries() if self.server else self.session.stored_keys()

    def clear_store(self) -> None:
        if self.server:
            self.server.clear()

    def burst_of_processes(self, limit: Limit, number: int, calls: int) -> int:
        """What is admitted to several processes of the target at once, on one limiter."""
        name = self.open([limit])
        sessions = [self.make(self.server.url if self.server else None) for _ in range(number)]
        try:
            for session in sessions:
                if not isinstance(session, LineSession):
                    raise NotJudged("the target is no program on the line protocol")
                if not self.is_real:
                    session.set_time(self.virtual_now)
                session.open(name, [limit])
                session.check(name, "warm")
            lines = [session for session in sessions if isinstance(session, LineSession)]
            for session in lines:
                session.send(op="burst", limiter=name, key="a", calls=calls, clients=4)
            return sum(int(session.receive()["admitted"]) for session in lines)
        finally:
            for session in sessions:
                session.close()

    @contextmanager
    def fresh_store(self, *, lossy: bool = False) -> Iterator[tuple[Any, Session]]:
        """A store of its own with a session on it, to be harmed."""
        server = RedisServer()
        proxy = LossyProxy(server.port) if lossy else None
        session: Session | None = None
        try:
            session = self.make(proxy.url if proxy else server.url)
            if not self.is_real:
                session.set_time(self.virtual_now)
            yield proxy or server, session
        finally:
            if session is not None:
                session.close()
            if proxy:
                proxy.close()
            server.close()


def read_cases(algorithms: tuple[str, ...]) -> list[dict[str, Any]]:
    return [case for name in algorithms for case in json.loads((CASES / f"{name}.json").read_text("utf-8"))]
