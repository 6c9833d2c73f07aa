"""Write the cases from the exact model: ``python -m conformance.make_cases`` (``--check`` only compares)."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

from conformance.limits import ALGORITHMS, BUCKETS, NEVER, SECOND, Answer, Limit
from conformance.model import Limits

FOLDER = Path(__file__).parent / "cases"
START = 2977 * 604_800 * SECOND  # an instant in 2027 at which windows of 1 s, 7 s, an hour and a day all begin
MILLISECOND = 1000
REAL = 80 * MILLISECOND  # how far a call may be late in real time
Step = tuple[int, str, int]  # at, key, cost


def answers(limits: list[Limit], steps: list[Step]) -> list[Answer]:
    model = Limits(limits)
    return [model.check(key, START + at, cost) for at, key, cost in steps]


def case(name: str, why: str, limits: list[Limit], steps: list[Step], margin: int = 0) -> dict[str, Any]:
    return {
        "name": name,
        "why": why,
        "limits": [limit.to_json() for limit in limits],
        "start": START,
        "margin": margin,
        "steps": [
            {"at": at, "key": key, "cost": cost, "allowed": answer.allowed, "remaining": answer.remaining,
             "retry_after": answer.retry_after, "reset_after": answer.reset_after}
            for (at, key, cost), answer in zip(steps, answers(limits, steps), strict=True)
        ],
    }  # fmt: skip


def is_stable(limits: list[Limit], steps: list[Step], margin: int, chance: random.Random) -> bool:
    """Whether each call may be early or late by the margin, and still is admitted or refused as before."""

    def told(late: list[int]) -> list[bool]:
        model = Limits(limits)
        return [model.admit(key, START + at + wait, cost) for (at, key, cost), wait in zip(steps, late, strict=True)]

    nominal = told([0] * len(steps))
    tries = [[margin] * len(steps), [-margin] * len(steps), [margin] + [-margin] * (len(steps) - 1)]
    tries += [[-margin] + [margin] * (len(steps) - 1)]
    tries += [[chance.choice((-margin, 0, margin)) for _ in steps] for _ in range(20)]
    return all(told(late) == nominal for late in tries)


def edges(limit: Limit, chance: random.Random, length: int, costs: tuple[int, ...] = (1,)) -> list[Step]:
    """Calls on the very instants at which an answer changes, and one microsecond before."""
    model, at = Limits([limit]), 0
    steps: list[Step] = []
    while len(steps) < length:
        cost = chance.choice(costs)
        answer = model.check("a", START + at, cost)
        steps.append((at, "a", cost))
        if not answer.allowed and answer.retry_after != NEVER:
            assert isinstance(answer.retry_after, int)
            if answer.retry_after > 1:
                steps.append((at + answer.retry_after - 1, "a", cost))
                model.check("a", START + at + answer.retry_after - 1, cost)
            at += answer.retry_after
        elif chance.random() < 0.2:
            at += chance.randrange(limit.period)
    return steps[:length]


def walk(limits: list[Limit], chance: random.Random, length: int, costs: tuple[int, ...]) -> list[Step]:
    """Calls at random instants on two keys, on average twice as many as are admitted."""
    pace = min(limit.period // limit.count for limit in limits)
    at, steps = 0, []
    for _ in range(length):
        steps.append((at, chance.choice("aab"), chance.choice(costs)))
        at += chance.choice((0, 0, pace // 3, pace, chance.randrange(2 * pace), chance.randrange(limits[0].period)))
    return steps


def stable(
    limits: list[Limit], chance: random.Random, length: int, margin: int, grid: int, costs: tuple[int, ...]
) -> list[Step]:
    """Random calls on a grid, that keep clear of every edge by the margin: each call is added only if it does."""
    for _ in range(50):
        steps: list[Step] = []
        at = grid // 2
        for _ in range(4 * length):
            trial: Step = (at, "a", chance.choice(costs))
            if is_stable(limits, [*steps, trial], margin, chance):
                steps.append(trial)
                if len(steps) == length:
                    break
            if chance.random() < 0.4:
                at += grid * chance.randint(1, 3)
        model = Limits(limits)
        refused = [model.admit(key, START + at, cost) for at, key, cost in steps].count(False)
        if refused >= len(steps) // 5 and len(steps) > length // 2:
            return steps
    raise AssertionError(f"no stable calls for {limits}: choose another grid")


def bucket(algorithm: str, count: int, period: int, burst: int) -> Limit:
    return Limit(algorithm, count, period, burst if algorithm in BUCKETS else 0)


def cases_of(algorithm: str) -> list[dict[str, Any]]:
    chance = random.Random(f"cases of {algorithm}")
    made: list[dict[str, Any]] = []

    def add(kind: str, why: str, limits: list[Limit], steps: list[Step], margin: int = 0) -> None:
        number = sum(each["name"].startswith(f"{algorithm}-{kind}-") for each in made) + 1
        made.append(case(f"{algorithm}-{kind}-{number}", why, limits, steps, margin))

    ten = Limit(algorithm, 10, SECOND)
    add("first", "Ten calls pass and the eleventh does not.", [Limit(algorithm, 10, 60 * SECOND)],
        [(MILLISECOND, "a", 1)] * 12, MILLISECOND)  # fmt: skip
    for count, period in ((1, SECOND), (3, 7 * SECOND), (7, 3 * SECOND), (10, SECOND), (1000, 3600 * SECOND)):
        limit = bucket(algorithm, count, period, min(count, 5))
        add("edge", "Calls exactly when the model admits them, and one microsecond before.", [limit],
            edges(limit, chance, 40))  # fmt: skip
    odd = bucket(algorithm, 3, 7 * SECOND, 2)
    add("drift", "A long history of an odd rate: no fraction may be lost or won.", [odd], edges(odd, chance, 300))
    add("cost", "Costs from one to the whole limit, at the edges.", [ten], edges(ten, chance, 60, (1, 2, 3, 10)))
    add("cost", "A cost above the limit never passes, and takes nothing.", [ten],
        [(0, "a", 11), (0, "a", 10), (0, "a", 11), (SECOND, "a", 10)])  # fmt: skip
    for _ in range(3):
        add("walk", "Random calls on two keys.", [ten], walk([ten], chance, 60, (1,)))
    add("walk", "Random calls and costs on two keys.", [ten], walk([ten], chance, 60, (1, 1, 2, 5)))
    both = [Limit(algorithm, 3, SECOND), Limit(algorithm, 10, 10 * SECOND)]
    for _ in range(2):
        add("several", "Two limits, all or nothing.", both, walk(both, chance, 60, (1,)))
    for count, period, grid in ((10, SECOND, 40_000), (3, 7 * SECOND, 500_000), (20, 60 * SECOND, SECOND)):
        limit = Limit(algorithm, count, period)
        add("plain", "Calls that keep a millisecond clear of every edge.", [limit],
            stable([limit], chance, 40, MILLISECOND, grid, (1,)), MILLISECOND)  # fmt: skip
    add("plain-cost", "The same with costs.", [ten], stable([ten], chance, 30, MILLISECOND, 40_000, (1, 2, 5)),
        MILLISECOND)  # fmt: skip
    for count in (1, 2, 3):
        limit = Limit(algorithm, count, SECOND)
        add("real", "Calls that keep 80 ms clear of every edge, for targets on real time.", [limit],
            stable([limit], chance, 12, REAL, 200_000 + 50_000 * (count % 2), (1,)), REAL)  # fmt: skip
    for count in (2, 3):
        add("real-first", "One call more than the limit, at once.", [Limit(algorithm, count, SECOND)],
            [(300 * MILLISECOND, "a", 1)] * (count + 1), REAL)  # fmt: skip
    few = Limit(algorithm, 4, SECOND)
    add("real-cost", "The same with costs.", [few], stable([few], chance, 10, REAL, 250_000, (1, 2, 4)), REAL)
    return made


def file_text(cases: list[dict[str, Any]]) -> str:
    """JSON with one line for each step: a change shows as the lines that changed."""
    parts = []
    for each in cases:
        head = {name: value for name, value in each.items() if name != "steps"}
        lines = ",\n".join("    " + json.dumps(step) for step in each["steps"])
        parts.append(f'{json.dumps(head)[:-1]}, "steps": [\n{lines}\n  ]}}')
    return "[\n  " + ",\n  ".join(parts) + "\n]\n"


def main() -> int:
    is_check = "--check" in sys.argv
    stale = []
    for algorithm in ALGORITHMS:
        path = FOLDER / f"{algorithm}.json"
        text = file_text(cases_of(algorithm))
        if is_check:
            if not path.exists() or path.read_text("utf-8") != text:
                stale.append(path.name)
        else:
            path.write_text(text, "utf-8")
            print(f"{path.name}: {len(json.loads(text))} cases")
    if stale:
        print(f"cases: expected what the model gives, got other text in {', '.join(stale)}. Run the script again.")
    return len(stale)


if __name__ == "__main__":
    sys.exit(main())
