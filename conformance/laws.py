"""The laws.  Each is a function of a run: it raises ``Broken`` or ``NotJudged``, or returns a line about what it saw.

A law is judged only where the target promises what the law needs.  Virtual time is set; real time is waited for, and
there a history is judged by the instants between which the target must have decided: a slow machine breaks no law.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from conformance.adapters.server import ServerSession
from conformance.history import worst_interval
from conformance.limits import BUCKETS, NEVER, SECOND, Call, Limit
from conformance.make_cases import REAL, START
from conformance.model import Limits
from conformance.run import Broken, NotJudged, Run

Law = Callable[[Run], str]


@dataclass(frozen=True)
class Entry:
    """A law with its name, its level, its sentence, and the features without which it is not judged."""

    name: str
    level: str
    sentence: str
    judge: Law
    needs: frozenset[str] = field(default_factory=frozenset)


LAWS: dict[str, Entry] = {}


def law(level: str, sentence: str, *needs: str) -> Callable[[Law], Law]:
    def add(judge: Law) -> Law:
        name = judge.__name__.replace("_", "-")
        LAWS[name] = Entry(name, level, sentence, judge, frozenset(needs))
        return judge

    return add


def usual(run: Run, count: int = 5) -> list[Limit]:
    """One limit of each algorithm that the target knows: so many per second, or per its shortest period."""
    period = min(run.promises.units, default=1) * SECOND
    found = [Limit(name, count, period) for name in run.promises.algorithms]
    return [limit for limit in found if run.promises.takes(limit)] or [
        Limit(name, min(run.promises.counts), period) for name in run.promises.algorithms
    ]


def slow(run: Run, count: int) -> list[Limit]:
    """One limit of each algorithm that frees next to nothing while a test runs."""
    period = max(run.promises.units, default=3600) * SECOND
    return [Limit(name, count, period) for name in run.promises.algorithms]


def exhaust(run: Run, name: str, key: str, limit: Limit) -> list[Call]:
    """Call until the first refusal, but not without end."""
    calls = []
    for _ in range(4 * limit.burst + 8):
        calls.append(run.check(name, key))
        if not calls[-1].answer.allowed:
            break
    return calls


# Core


@law("core", "A call is admitted exactly when the exact model admits it.")
def admission(run: Run) -> str:
    judged = 0
    for case, calls in run.cases("several", without=True):
        for step, call in zip(case["steps"], calls, strict=True):
            judged += 1
            if call.answer.allowed != step["allowed"]:
                expected = "admitted" if step["allowed"] else "refused"
                raise Broken(f"{case['name']}: the model has the last call {expected}.", run.shrink(case, calls, step))
    return f"{judged} calls"


def compare(run: Run, field_name: str) -> str:
    """Compare one field of the answers with the model, up to the first call that was admitted otherwise."""
    judged, step_size, precision = 0, run.promises.resolution, run.promises.precision
    for case, calls in run.cases("several", without=True):
        for number, (step, call) in enumerate(zip(case["steps"], calls, strict=True)):
            if call.answer.allowed != step["allowed"]:
                break
            told, exact = getattr(call.answer, field_name), step[field_name]
            if told is None or (run.is_real and field_name != "remaining"):
                continue
            if field_name == "remaining":
                gradual = (*BUCKETS, "sliding_window")
                if run.is_real and ("-first-" not in case["name"] or case["limits"][0]["algorithm"] in gradual):
                    continue  # it depends on the very microsecond
                right = told == exact or (case["margin"] and precision and abs(told - exact) <= 1)
            elif exact == NEVER or told == NEVER:
                right = told == exact
            elif field_name == "retry_after" and call.answer.allowed:
                right = told <= 0
            else:
                right = exact - precision <= told < exact + step_size + precision
            judged += 1
            if not right:
                raise Broken(f"{case['name']}: {field_name} is {exact} by the model, {told} was told.",
                             [each.told() for each in calls[: number + 1]][-6:])  # fmt: skip
    if not judged:
        raise NotJudged("no case that this target can run tells it")
    return f"{judged} answers"


@law("core", "`remaining` is what could still be taken at once.", "remaining")
def remaining(run: Run) -> str:
    return compare(run, "remaining")


@law("core", "`reset_after` is the time until nothing is used.", "reset_after")
def reset_after(run: Run) -> str:
    if run.is_real:
        raise NotJudged("needs a clock that can be set")
    return compare(run, "reset_after")


@law("core", "A caller that waits `retry_after` is admitted, and not sooner.", "retry_after")
def retry_after(run: Run) -> str:
    judged = 0 if run.is_real else int(compare(run, "retry_after").split()[0])
    for limit in usual(run, 3):
        for phase in PHASES:
            name = run.open([limit])
            run.sleep_until(run.now() - run.now() % limit.period + limit.period * phase // 100)
            calls = exhaust(run, name, "a", limit)
            refused = calls[-1]
            wait = refused.answer.retry_after
            if refused.answer.allowed or wait is None:
                raise Broken(f"{limit}: no refusal with a retry_after.", [call.told() for call in calls])
            if wait == NEVER or not isinstance(wait, int):
                raise Broken(f"{limit}: {wait} for a cost of 1.", [call.told() for call in calls])
            early = refused.sent + wait - run.promises.resolution - run.promises.precision
            if early > refused.received and (not run.is_real or wait > run.promises.resolution + 50_000):
                run.sleep_until(early - (40_000 if run.is_real else 0))
                again = run.check(name, "a")
                calls.append(again)
                if again.received < early + (not run.is_real) and again.answer.allowed:
                    raise Broken(f"{limit}: admitted before retry_after was over.", told(calls))
                if again.answer.allowed:
                    continue  # in real time the call came too late to say anything
            run.sleep_until(refused.received + wait + run.promises.precision)
            calls.append(run.check(name, "a"))
            judged += 1
            if not calls[-1].answer.allowed:
                raise Broken(f"{limit}: refused after a wait of retry_after.", told(calls))
    return f"{judged} answers"


PHASES = (105, 130, 155, 180)  # percent: rounding shows at some parts of a period, and not at others


def told(calls: list[Call]) -> list[str]:
    return [call.told() for call in calls[-12:]]


@law("core", "No interval holds more than the algorithm's bound.")
def bound(run: Run) -> str:
    chance = random.Random("bound")
    worst = worst_ratio = 0.0
    broken: Broken | None = None
    for limit in usual(run, 5):
        name = run.open([limit])
        calls: list[Call] = []
        if run.is_real:
            for percent in (80, 90, 95):  # of a window: a burst shortly before it ends, and on
                run.sleep_until(run.now() - run.now() % limit.period + limit.period * (100 + percent) // 100)
                until = run.now() + limit.period
                while run.now() < until:
                    calls.append(run.check(name, "a"))
                    run.sleep_until(run.now() + 3000)
                run.sleep_until(until + 2 * limit.period)
        else:
            for _ in range(60):
                run.sleep_until(run.now() + chance.choice((limit.period // 7, limit.period // 2, limit.period, 17)))
                if chance.random() < 0.3:  # around the edge of a window
                    run.sleep_until(run.now() - run.now() % limit.period + limit.period - 1)
                    calls += [run.check(name, "a") for _ in range(limit.count + 2)]
                    run.sleep_until(run.now() + 1)
                calls += [run.check(name, "a") for _ in range(chance.choice((1, 2, limit.count + 2)))]
        ratio, interval = worst_interval(calls, shifted(limit, run))
        run.note_over_admission(limit, ratio)
        worst = max(worst, ratio)
        if ratio > max(1, worst_ratio):
            worst_ratio = ratio
            allowed = shifted(limit, run).most_in(max(0, interval[-1].received - interval[0].sent))
            admitted = sum(call.cost for call in interval)
            broken = Broken(f"{limit}: {admitted} admitted where {allowed} may be.", told(interval))
    if broken is not None:  # the worst of all algorithms
        raise broken
    return f"at most {worst:.0%} of the bound"


def shifted(limit: Limit, run: Run) -> Limit:
    """The limit as its promises widen it: a period that is shorter by its precision, and what it admits in advance."""
    count, burst = limit.count, limit.burst + run.promises.ahead
    return Limit(limit.algorithm, count, limit.period - 2 * run.promises.precision, burst)


@law("core", "A refused call takes nothing.", "refusal_free")
def refusal_is_free(run: Run) -> str:
    for limit in usual(run, 3):
        name = run.open([limit])
        calls = exhaust(run, name, "a", limit)
        windows = 2 if limit.algorithm == "sliding_window" else 1
        recovered = calls[-1].received + windows * limit.period
        for part in range(1, 8):
            run.sleep_until(calls[0].sent + windows * limit.period * part // 8)
            again = run.check(name, "a", limit.burst if "cost" in run.promises.features else 1)
            if again.answer.allowed:
                recovered = again.received + windows * limit.period
            calls.append(again)
        if limit.algorithm != "fixed_window" and not run.is_real:
            model = Limits([limit])
            for call in calls:
                run.expect_model(model, call, calls)
        # With nothing taken meanwhile, all of the limit is there again after its own time.
        run.sleep_until(recovered + run.promises.precision)
        for _ in range(limit.burst):
            calls.append(run.check(name, "a"))
            if not calls[-1].answer.allowed:
                raise Broken(f"{limit}: refused after a full recovery, though only refused calls came.", told(calls))
    return f"{len(usual(run))} limits"


ODD_KEYS = ("a", "b", "a:b", "a/b", "a_b", "a:b:c", "a" * 200 + "x", "a" * 200 + "y", "ä", "*", "a b", "A")


@law("core", "Keys are counted apart.", "keys")
def key_isolation(run: Run) -> str:
    for limit in slow(run, 2):
        name = run.open([limit])
        calls = []
        for key in ODD_KEYS:
            taken = [run.check(name, key) for _ in range(3)]
            calls += taken
            if [call.answer.allowed for call in taken] != [True, True, False]:
                raise Broken(f"{limit}: key {key[-3:]!r} got other than two calls, after calls of other keys.",
                             told(calls))  # fmt: skip
    return f"{len(ODD_KEYS)} keys"


@law("core", "A cost above the limit never passes and takes nothing; one below 1 gives no credit.", "cost")
def cost(run: Run) -> str:
    for limit in slow(run, 4):
        name = run.open([limit])
        calls = [run.check(name, "a", 6)]
        if calls[-1].answer.allowed:
            raise Broken(f"{limit}: a cost of 6 was admitted.", told(calls))
        if "refusal_free" in run.promises.features:
            calls.append(run.check(name, "a", 4))
            if not calls[-1].answer.allowed:
                raise Broken(f"{limit}: after a refused cost of 6 the whole limit is not there.", told(calls))
        name = run.open([limit])
        calls = exhaust(run, name, "a", limit)
        for strange in (-1, -3, 0, -(2**40)) if "positive_cost" in run.promises.features else ():
            calls.append(run.check(name, "a", strange))
            calls.append(run.check(name, "a"))
            if calls[-1].answer.allowed:
                raise Broken(f"{limit}: a cost of {strange} gave credit.", told(calls))
    return f"{len(run.promises.algorithms)} limits"


@law("core", "Several limits are decided together: all take the cost, or none.", "several")
def several(run: Run) -> str:
    judged = 0
    for case, calls in run.cases("several"):
        for step, call in zip(case["steps"], calls, strict=True):
            judged += 1
            if call.answer.allowed != step["allowed"]:
                expected = "admitted" if step["allowed"] else "refused"
                raise Broken(f"{case['name']}: the model has the last call {expected}.", run.shrink(case, calls, step))
    for algorithm in run.promises.algorithms:
        few, many = Limit(algorithm, 1, SECOND), Limit(algorithm, 4, 3600 * SECOND)
        if not (run.promises.takes(few) and run.promises.takes(many)):
            continue
        name = run.open([few, many])
        taken = [run.check(name, "a") for _ in range(12)]
        for _ in range(3):
            run.sleep_until(run.now() + 2 * SECOND + run.promises.precision)
            taken.append(run.check(name, "a"))
        judged += len(taken)
        late = taken[-3:]
        passed = sum(call.answer.allowed for call in taken)
        if not all(call.answer.allowed for call in late) and passed < 4:
            raise Broken(f"{algorithm}: calls that 1 per second refused were counted by 4 per hour.", told(taken))
    if not judged:
        raise NotJudged("no such pair of limits")
    return f"{judged} calls"


@law("core", "A long history loses and wins nothing.")
def long_run(run: Run) -> str:
    if run.is_real:
        raise NotJudged("needs a clock that can be set")
    judged = 0
    for algorithm in run.promises.algorithms:
        for count, seconds in ((3, 7), (7, 3), (100, 60)):
            limit = Limit(algorithm, count, seconds * SECOND)
            if not run.promises.takes(limit):
                continue
            name, model = run.open([limit]), Limits([limit])
            begin = run.now()
            pace = limit.period // limit.count // 3
            calls, expected = [], 0
            for number in range(600):
                run.sleep_until(begin + number * pace)
                calls.append(run.check(name, "a"))
                expected += model.admit("a", run.now(), 1)
            admitted = sum(call.answer.allowed for call in calls)
            judged += len(calls)
            spare = 1 + len(calls) // 100 if run.promises.precision else 0
            if abs(admitted - expected) > spare:
                raise Broken(f"{limit}: {admitted} of {len(calls)} calls at three times the rate were admitted, by the "
                             f"model {expected}.", told(calls[:12]))  # fmt: skip
    if not judged:
        raise NotJudged("no such limit")
    return f"{judged} calls"


@law("core", "A step of the clock neither unlocks a limit for long nor locks a caller out for long.", "clock_step")
def clock_step(run: Run) -> str:
    if run.is_real:
        raise NotJudged("needs a clock that can be set")
    for limit in usual(run, 5):
        for step in (-3600, 3600, -1):
            name = run.open([limit])
            calls = exhaust(run, name, "a", limit)
            run.step_clock(step * SECOND)
            after = [run.check(name, "a") for _ in range(3 * limit.count)]
            if sum(call.answer.allowed for call in after) > limit.count:
                raise Broken(f"{limit}: a step of {step} s admitted more than the limit again.", told(calls + after))
            # Back and forth in a loop must not fill the limit again and again.
            extra = 0
            for _ in range(10):
                run.step_clock(-SECOND // 1000)
                extra += run.check(name, "a").answer.allowed
                run.step_clock(SECOND // 1000)
                extra += run.check(name, "a").answer.allowed
            if extra > limit.count:
                raise Broken(f"{limit}: a clock that moves to and fro by 1 ms admitted {extra} more.", told(calls))
            run.sleep_until(run.now() + 3 * limit.period + run.promises.precision)
            again = run.check(name, "a")
            if not again.answer.allowed:
                raise Broken(f"{limit}: still refused three periods after a step of {step} s.", told([*calls, again]))
    return f"{len(usual(run))} limits"


@law("core", "An exhausted key stays refused while thousands of new keys come.", "keys")
def flood(run: Run) -> str:
    limit = slow(run, 3)[0]
    name = run.open([limit])
    calls = exhaust(run, name, "victim", limit)
    run.session.flood(name, "other-", run.flood_size)
    calls.append(run.check(name, "victim"))
    if calls[-1].answer.allowed:
        raise Broken(f"{limit}: admitted again after {run.flood_size} other keys.", told(calls))
    return f"{run.flood_size} keys"


@law("core", "Keys that have recovered take no memory for ever.", "keys", "bounded_memory")
def memory(run: Run) -> str:
    limit = usual(run, 5)[0]
    if run.session.pid is None or run.promises.store != "memory" or isinstance(run.session, ServerSession):
        raise NotJudged("no process whose own state is large enough to be seen")
    name = run.open([limit])
    sizes = [run.memory()]
    for number in range(4):
        run.session.flood(name, f"round-{number}-", 2 * run.flood_size)
        run.sleep_until(run.now() + 3 * limit.period)
        run.check(name, "last")
        sizes.append(run.memory())
    first, later = sizes[2] - sizes[0], sizes[4] - sizes[2]
    megabytes = ", ".join(f"{(size - sizes[0]) / 2**20:+.1f}" for size in sizes[1:])
    if later > 6 * 2**20 and later > 0.7 * first:
        raise Broken(f"{limit}: {2 * run.flood_size} new keys in each of four rounds, recovered between rounds: the "
                     f"process grew by {megabytes} MB.", [])  # fmt: skip
    return f"{megabytes} MB over four rounds"


# Distributed


@law("distributed", "Callers at the same time are admitted exactly as often as one caller would be.", "concurrent")
def concurrent(run: Run) -> str:
    seen = []
    for limit in slow(run, 100):
        if not run.promises.takes(limit):
            limit = slow(run, max(run.promises.counts))[0]
        for _ in range(run.rounds):
            name = run.open([limit])
            run.away_from_edges(limit)
            admitted = run.session.burst(name, "a", 4 * limit.count, 8)
            run.note_over_admission(limit, admitted / limit.count)
            seen.append(admitted)
            if admitted != limit.count:
                raise Broken(f"{limit}: 8 clients made {4 * limit.count} calls at once; {admitted} were admitted.", [])
            whole = limit.count // 8 * 8
            admitted = run.session.burst(name, "b", whole, 8)
            if admitted != whole:
                raise Broken(f"{limit}: 8 clients made {whole} calls at once; only {admitted} were admitted.", [])
    return f"exact in {len(seen)} rounds"


@law("distributed", "Several processes share one limit exactly.", "processes")
def processes(run: Run) -> str:
    limits = [limit for limit in slow(run, 100) if run.promises.takes(limit)]
    for limit in limits:
        run.away_from_edges(limit)
        admitted = run.burst_of_processes(limit, 3, 4 * limit.count)
        run.note_over_admission(limit, admitted / limit.count)
        if admitted != limit.count:
            raise Broken(f"{limit}: 3 processes made {12 * limit.count} calls; {admitted} were admitted.", [])
    return f"{len(limits)} limits, 3 processes"


@law("distributed", "Every key of the store has an expiry time, and no longer one than the limit needs.", "expiry")
def expiry(run: Run) -> str:
    count = 0
    for limit in [Limit(name, 5, max(run.promises.units, default=60) * SECOND) for name in run.promises.algorithms]:
        run.clear_store()
        name = run.open([limit])
        calls = [run.check(name, f"visitor-{number}") for number in range(3)] + exhaust(run, name, "a", limit)
        found = run.stored_keys()
        if found is None:
            raise NotJudged("no store to look into")
        for key, left in found:
            count += 1
            if left is None:
                raise Broken(f"{limit}: the key {key[:60]!r} has no expiry time.", told(calls))
            if left > 10 * limit.period + 60 * SECOND:
                raise Broken(f"{limit}: the key {key[:60]!r} lives for {left / SECOND:.0f} s.", told(calls))
    return f"{count} keys"


# HTTP


@law("http", "A refusal has status 429, an admitted call does not.", "http")
def status(run: Run) -> str:
    limit = slow(run, 3)[0]
    name = run.open([limit])
    found = [run.session.fields(name, "a") for _ in range(5)]
    if [each["status"] // 100 for each in found] != [2, 2, 2, 4, 4] or found[-1]["status"] != 429:
        raise Broken(f"{limit}: the statuses were {', '.join(str(each['status']) for each in found)}.", [])
    return "2xx and 429"


@law(
    "http", "`Retry-After` is a whole number of seconds, stands on refusals only, and is enough.", "http", "retry_after"
)
def retry_after_field(run: Run) -> str:
    limit = usual(run, 2)[0]
    for phase in PHASES:
        name = run.open([limit])
        run.sleep_until(run.now() - run.now() % limit.period + limit.period * phase // 100)
        found: list[dict[str, Any]] = []
        for _ in range(10):
            found.append(run.session.fields(name, "a"))
            if found[-1]["status"] == 429:
                break
        wait = found[-1].get("retry-after")
        if wait is None or not wait.isdigit():
            raise Broken(f"{limit}: expected whole seconds in Retry-After, got {wait!r}.", [])
        if any("retry-after" in each for each in found[:-1]):
            raise Broken(f"{limit}: Retry-After stands on admitted responses too.", [])
        run.sleep_until(run.now() + int(wait) * SECOND)
        again = run.session.fields(name, "a")
        if again["status"] == 429:
            raise Broken(f"{limit}: still 429 after Retry-After: {wait}.", [])
    return f"Retry-After: {wait}"


# Failure


@law(
    "failure",
    "While the store is away, calls are answered in time as promised; afterwards limits hold again.",
    "outage",
)
def outage(run: Run) -> str:
    limit = slow(run, 3)[-1]
    waits = []
    with run.fresh_store() as (server, session):
        name = run.open([limit], session)
        run.check(name, "a", session=session)
        for fault in ("killed", "silent"):
            if fault == "killed":
                server.kill()
            else:
                server.pause()
            try:
                calls = [run.check(name, f"b-{fault}", session=session) for _ in range(6)]
            finally:
                if fault == "killed":
                    server.start()
                else:
                    server.go_on()
            waits += [(call.received - call.sent) / SECOND for call in calls]
            expected = run.promises.on_outage
            right = {
                "open": all(call.answer.allowed for call in calls),
                "closed": not any(call.answer.allowed for call in calls),
                "error": all(call.answer.error for call in calls),
                "local": not any(call.answer.error for call in calls)
                and sum(call.answer.allowed for call in calls) <= limit.count,
            }[expected]
            if not right:
                raise Broken(f"{limit}: with its store {fault} it promises {expected!r}.", told(calls))
            # The median: one call may have waited for the machine.
            if statistics.median(waits) * SECOND > run.promises.deadline + SECOND:
                raise Broken(f"{limit}: with its store {fault} a call took {statistics.median(waits):.1f} s, promised "
                             f"{run.promises.deadline / SECOND} s.", told(calls))  # fmt: skip
            until = time.monotonic() + 30
            while True:  # until it has noticed; then the limit is exact again on a new key
                fresh = f"c-{fault}-{time.monotonic_ns()}"
                calls = [run.check(name, fresh, session=session) for _ in range(limit.count + 1)]
                if [call.answer.allowed for call in calls] == [True] * limit.count + [False]:
                    break
                if time.monotonic() > until:
                    raise Broken(f"{limit}: 30 s after the store came back, limits do not hold.", told(calls))
                time.sleep(0.1)
    return f"{run.promises.on_outage}, median {1000 * statistics.median(waits):.0f} ms"


@law("failure", "A reply that is lost on the way is not counted twice.", "lost_reply")
def lost_reply(run: Run) -> str:
    limit = slow(run, 10)[-1]
    with run.fresh_store(lossy=True) as (proxy, session):
        name = run.open([limit], session)
        run.check(name, "warm", session=session)
        proxy.arm()
        calls = [run.check(name, "a", session=session)]
        if not proxy.lost:
            raise NotJudged("its call needed no reply of the store")
        until = time.monotonic() + 30
        while True:  # until its connection stands again: a full limit on some new key
            fresh = f"b-{time.monotonic_ns()}"
            if [run.check(name, fresh, session=session).answer.allowed for _ in range(11)] == [True] * 10 + [False]:
                break
            if time.monotonic() > until:
                raise Broken(f"{limit}: 30 s after one lost reply, limits do not hold.", told(calls))
            time.sleep(0.1)
        calls += [run.check(name, "a", session=session) for _ in range(12)]
        admitted = sum(call.answer.allowed for call in calls[1:])
        if not 9 <= admitted <= 10:
            raise Broken(f"{limit}: the reply to one call was lost; of 12 more calls {admitted} passed, expected "
                         "are 9, or 10 if the lost call took nothing.", told(calls))  # fmt: skip
    return f"{admitted} of 10 left"


__all__ = ["LAWS", "REAL", "START", "Entry"]
