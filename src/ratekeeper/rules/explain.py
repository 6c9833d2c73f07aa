"""Which rules a request meets, by which keys, under which limits, and why.  Explaining takes nothing from any limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ratekeeper.errors import InvalidCost
from ratekeeper.identity.identity import Caller
from ratekeeper.identity.request import Request, is_preflight
from ratekeeper.rules.counter import BLOCKED, RuleCounter, cost_of
from ratekeeper.rules.match import readings

if TYPE_CHECKING:
    from ratekeeper.rules.policy import Policy


@dataclass(frozen=True)
class Step:
    """What one rule does with a request."""

    rule: str
    applies: bool
    text: str


@dataclass(frozen=True)
class Explanation:
    """The steps of a decision; ``str()`` formats them."""

    lines: tuple[str, ...]
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        width = max([len(step.rule) for step in self.steps], default=0)
        marks = {True: "+", False: "-"}
        rules = [f"  {marks[step.applies]} {step.rule:{width}}  {step.text}" for step in self.steps]
        return "\n".join([*self.lines, *rules])


def explain(policy: Policy, request: Request) -> Explanation:
    compiled = policy.compiled
    caller = Caller(compiled.identity, request)
    paths = " and ".join("/" + "/".join(parts) for parts in readings(request))
    address = caller.client_address
    peer = "a UNIX socket" if request.peer is None else request.peer
    lines = [
        f"{request.method} {request.path} is read as {request.method.upper()} {paths}"
        + (f" on {request.host}" if request.host else ""),
        f"from {peer}, counted as {address.subject}" + (" (a trusted proxy)" if address.trusted else ""),
    ]
    if compiled.identity.user_sources:
        lines.append(f"user: {'known' if caller.user else 'not known, so the address is used'}")
    if any(rule.by_tier for rule in policy.rules):
        lines.append(f"tier: {caller.tier}")
    if not compiled.preflights_count and is_preflight(request):
        lines.append("a CORS preflight: not counted")
    met = set(compiled.requests.find(request)) | set(compiled.messages.find(request))
    left_out: dict[int, str] = {}
    for matches in (compiled.requests.search(request), compiled.messages.search(request)):
        left_out |= dict.fromkeys(matches.excluded, "excludes this path")
        if matches.replaced:
            name = compiled.counters[matches.replaced_by].name
            left_out |= dict.fromkeys(matches.replaced, f"is a default, and {name!r} limits this path")
    steps = [
        step_of(counter, caller, number in met, left_out.get(number, ""))
        for number, counter in enumerate(compiled.counters)
    ]
    return Explanation(tuple(lines), tuple(steps))


def step_of(counter: RuleCounter, caller: Caller, met: bool, left_out: str) -> Step:
    rule = counter.rule

    def step(text: str, applies: bool = False) -> Step:
        return Step(rule.name, applies, text)

    if rule.mode == "off":
        return step("is off")
    if left_out:
        return step(left_out)
    if not met:
        patterns = ", ".join(pattern_text(pattern) for pattern in rule.patterns)
        return step(f"matches {patterns}, not this")
    if counter.exempt and counter.is_exempt(caller):
        return step("exempts this caller")
    if rule.allow_from is not None and caller.client_address.address not in rule.allow_from:
        return step(f"refuses with 403: allowed from {', '.join(rule.allow_from.texts) or 'nowhere'} only", True)
    if rule.limit_function is not None and rule.limit_function.is_async and is_on_loop():
        return step(f"{rule.limit_function} computes the limit; it is async, so nothing asks it here", True)
    entry = counter.entry(caller)
    if entry is None:
        return step("allows this address, and limits nothing", True)
    tier = f" of tier {caller.tier}" if counter.by_tier else ""
    if rule.limit_function is not None:
        tier = f" from {rule.limit_function}"
    if entry.is_unlimited:
        return step(
            f"is unlimited{tier}" if rule.limit_function is not None else f"is unlimited for tier {caller.tier}"
        )
    if entry.is_closed:
        return step(f"{entry.limit}{tier}: refuses everybody{standing(rule.mode, not counter.is_shadow)}", True)
    try:
        cost = cost_of(rule, caller.request)
    except InvalidCost:
        return step("refuses with 400: the request states a cost that is not a whole number", True)
    pending = counter.pending(entry, caller, cost or 1)
    by = " and ".join(source if isinstance(source, str) else source.__name__ for source in rule.by)
    text = f"{entry.limit}{tier}, by {by}, cost {cost}"
    if rule.count_when is not None:
        text += f", counted when {rule.count_when.text}"
    if counter.store.blocking:  # explaining never waits
        return step(
            f"{text}: {standing(rule.mode, counter.is_enforced(pending.check.key))}, counted in the store", True
        )
    if counter.block is not None:
        (decision,) = counter.store.peek((pending.beside(BLOCKED, counter.block),))
        if not decision.allowed:
            return step(f"{text}: blocked for {decision.retry_after:.6g} s more by its penalty", True)
    (decision,) = counter.store.peek((pending.check,))
    if decision.allowed:
        left = f"{decision.remaining} of {decision.limit} left"
    elif decision.retry_after is None:
        left = f"can never pass: at most {decision.limit} at once"
    else:
        left = f"would refuse, free in {decision.retry_after:.6g} s"
    return step(f"{text}: {left}{standing(rule.mode, counter.is_enforced(pending.check.key))}", True)


def is_on_loop() -> bool:
    import asyncio

    return asyncio._get_running_loop() is not None


def standing(mode: str, enforced: bool) -> str:
    return "" if enforced else " (in shadow: refuses nobody)" if mode == "shadow" else " (not enforced for this key)"


def pattern_text(pattern: Any) -> str:
    methods = ",".join(sorted(pattern.methods - {"HEAD"})) + " " if pattern.methods else ""
    return f"{methods}{pattern.host or ''}{pattern.text}"
