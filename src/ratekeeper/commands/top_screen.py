"""What ``ratekeeper top`` draws: the figures of a service as lines of text.  No clock, no I/O."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from ratekeeper.lab.text import AMBER, BOLD, DIM, GREEN, RED, Style, duration, plural, printable

PASSED = ("allowed", "shadow_refused", "graced")  # the last two were over a limit that did not refuse them
REFUSED = ("refused", "blocked", "forbidden")
HISTORY = 300  # ticks
LEAST_WIDTH = 20
HEAD = ("rule", "limit", "allowed/s", "refused/s", "allowed", "refused", "left", "mode")


class Rates(NamedTuple):
    """Decisions per second."""

    passed: float = 0.0
    refused: float = 0.0


class View:
    """The figures of a service, and the rates between two looks at it."""

    def __init__(self) -> None:
        self.status: dict[str, Any] = {}
        self.rates: dict[str, Rates] = {}
        self.history: deque[Rates] = deque(maxlen=HISTORY)

    def update(self, status: dict[str, Any]) -> None:
        """Take new figures.  The first rates are those that the service counted in its last second."""
        before = self.status
        if before and status["at"] <= before["at"]:  # the same second of the service, or another worker's
            return
        if not before or status["uptime"] < before["uptime"]:  # the first look, or the service has started anew
            rates = {rule: Rates(passed + over, refused) for rule, (passed, refused, over) in status["rules"].items()}
        else:
            seconds, old = status["at"] - before["at"], totals_of(before)
            rates = {
                rule: Rates(*[
                    max(0, sum([results.get(name, 0) - old.get(rule, {}).get(name, 0) for name in names])) / seconds
                    for names in (PASSED, REFUSED)
                ])
                for rule, results in totals_of(status).items()
            }  # fmt: skip
        self.status, self.rates = status, rates
        self.history.append(self.total)

    @property
    def total(self) -> Rates:
        return Rates(
            sum([rate.passed for rate in self.rates.values()]), sum([rate.refused for rate in self.rates.values()])
        )

    def as_json(self) -> dict[str, Any]:
        """What scripts get: the figures of the service, and the rates."""
        return {
            "per_second": {"allowed": round(self.total.passed, 3), "refused": round(self.total.refused, 3)},
            "rules_per_second": {
                rule: {"allowed": round(rate.passed, 3), "refused": round(rate.refused, 3)}
                for rule, rate in self.rates.items()
            },
            **{name: value for name, value in self.status.items() if name != "rules"},
        }


def totals_of(status: dict[str, Any]) -> dict[str, dict[str, int]]:
    """The results of each rule, and of each limit that callers name, since the service started."""
    rules = {rule["name"]: rule["totals"] for rule in status["table"]}
    return rules | {name: facts["totals"] for name, facts in status["named"].items()}


def screen(view: View, where: str, width: int, height: int, style: Style, trouble: str = "") -> list[str]:
    """Draw the whole screen: at most ``height`` lines of ``width`` characters."""
    width = max(width, LEAST_WIDTH)
    status = view.status
    lines = [(f"ratekeeper at {where}", BOLD)]
    if trouble:
        lines.append((trouble, RED))
    if not status:
        return drawn(lines, width, height, style)
    lines += [*facts(status), ("", "")]
    chart = width - 22
    for name, code, counts in (
        ("allowed", GREEN, [rate.passed for rate in view.history]),
        ("refused", AMBER, [rate.refused for rate in view.history]),
    ):
        recent = counts[-chart:] if chart > 0 else []
        bars = style.bars([round(count * 1000) for count in recent], chart, max([*recent, 1e-3]) * 1000)
        lines.append((f"{name} {per_second(counts[-1]):>9}/s   {bars}".rstrip(), code if counts[-1] else DIM))
    lines += [("", ""), *rules_table(view, style)]
    clients = status["refused_clients"]
    lines += [("", ""), ("refused most, this minute" if clients else "nobody refused in this minute", DIM)]
    lines += [(f"  {printable(client)}  {count:>9,}", "") for client, count in clients]
    if clients:
        lines.append(("  ratekeeper digest ADDRESS tells which of them is an address", DIM))
    return drawn(lines, width, height, style)


def drawn(lines: list[tuple[str, str]], width: int, height: int, style: Style) -> list[str]:
    cut = [(line if len(line) <= width else line[: width - 1] + ">", code) for line, code in lines]
    return [style.coloured(line, code) for line, code in cut[:height]]


def facts(status: dict[str, Any]) -> list[tuple[str, str]]:
    store, seconds = status["store"], status["decision_seconds"]
    state = "NOT LIMITING: every request is admitted" if status["killed"] else "deciding"
    answers = (
        f"answers in {duration(store['seconds'])}" if store["answers"] else f"DOES NOT ANSWER ({store['trouble']})"
    )
    speed = f"   decisions p50 < {duration(seconds['p50'])}, p99 < {duration(seconds['p99'])}" if seconds else ""
    up = duration(status["uptime"]) if status["uptime"] else "0 s"
    return [
        (f"{state}   up {up}   {plural(status['workers'], 'worker')}", RED if status["killed"] else ""),
        (f"store {printable(store['kind'])} {answers}{speed}", "" if store["answers"] else RED),
    ]


def rules_table(view: View, style: Style) -> list[tuple[str, str]]:
    rows, codes = [], []
    rules = [
        (rule["name"], " · ".join(rule["limit"].values()) or "-", rule["totals"], rule["headroom"], rule["mode"])
        for rule in view.status["table"]
    ]
    rules += [(name, "-", each["totals"], each["headroom"], "named") for name, each in view.status["named"].items()]
    rules.sort(key=lambda rule: (-view.rates.get(rule[0], Rates()).refused, -view.rates.get(rule[0], Rates()).passed))
    for name, limit, totals, headroom, mode in rules:
        rate = view.rates.get(name, Rates())
        passed, refused = [sum([totals.get(each, 0) for each in names]) for names in (PASSED, REFUSED)]
        rows.append([
            printable(name, 24), printable(limit, 24), per_second(rate.passed), per_second(rate.refused),
            f"{passed:,}", f"{refused:,}", f"{headroom:.0%}", mode,
        ])  # fmt: skip
        codes.append(AMBER if rate.refused else DIM if mode == "off" else "")
    if not rows:
        return [("no rules and no calls yet", DIM)]
    head, line, *body = style.table(HEAD, rows, left=2)
    return [(head, DIM), (line, DIM), *zip(body, codes, strict=True)]


def per_second(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 or rate == int(rate) else f"{rate:.1f}"


def line(view: View, time: str) -> str:
    """One line for a log or a pipe."""
    store, total = view.status["store"], view.total
    answers = f"store {duration(store['seconds'])}" if store["answers"] else "store does not answer"
    clients = view.status["refused_clients"]
    worst = f"   most refused {printable(clients[0][0])}" if clients else ""
    passed, refused = per_second(total.passed), per_second(total.refused)
    return f"{time}   allowed {passed:>7}/s   refused {refused:>7}/s   {answers}{worst}"
