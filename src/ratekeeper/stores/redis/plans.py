"""Plans as requests, and replies as answers, for threads and event loops alike.  No I/O.

Most plans are one request.  If a cluster keeps the keys of a plan in several slots, no server can decide it as a whole.
Then each slot is charged by itself, and what was taken is given back if one of them refuses.  That never admits too
much.  It may refuse another caller between the two steps, and keeps what was taken if this process dies in between.
"""

from __future__ import annotations

from ratekeeper.errors import StoreUnavailable
from ratekeeper.stores.redis.layout import RecordLayout
from ratekeeper.stores.redis.packed_log import plain
from ratekeeper.stores.redis.refusal_cache import RefusalCache
from ratekeeper.stores.redis.request import CheckRequest, PlanRequest, decision, without_server
from ratekeeper.stores.redis.topology import slot_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from typing import Any

    from ratekeeper.check import Check, Plan
    from ratekeeper.decision import Decision
    from ratekeeper.limit import Limit, LimitSet
    from ratekeeper.stores.redis.request import AnyRequest, LayoutCheck
    from ratekeeper.stores.redis.url import RedisSettings

    # Yields requests to send side by side, is sent their answers (or StoreUnavailable), and returns the store's answer.
    PlanFlow = Generator[Sequence[AnyRequest], Sequence[Any], Any]

MOST_LAYOUTS = 1024
MOST_LEASES_AT_ONCE = 500  # in one command
INDEPENDENT = ("renew", "end_leases")  # each check by itself
NAMES_LEASES = ("check", "peek", *INDEPENDENT)  # the others do not care for ids
KEPT_UNDER_GIVEN_TIME = 3_600_000  # milliseconds: a test's clock may stand still while real time passes


class PlanTranslator:
    """The record layouts of one store, and plans as requests on them."""

    def __init__(self, settings: RedisSettings, gives_time: bool, nanos: Callable[[], int] | None = None) -> None:
        self.nanos = nanos
        self.store = settings.shown  # as errors name it
        self.prefix = settings.prefix.encode()
        self.secret = settings.secret.encode()
        self.is_cluster = settings.is_cluster
        self.longer = KEPT_UNDER_GIVEN_TIME if gives_time else 0
        self.layouts: dict[tuple[str, Limit | LimitSet], RecordLayout] = {}
        self.by_identity: dict[tuple[str, int], tuple[Limit | LimitSet, RecordLayout]] = {}
        self.caches_refusals = settings.deny_cache
        self.refusals: dict[tuple[str, str], RefusalCache] = {}

    def layout(self, space: str, limit: Limit | LimitSet) -> RecordLayout:
        """How ``limit`` is kept in ``space``: the same for equal limits, so that a reload forgets nothing."""
        cached = self.by_identity.get((space, id(limit)))  # hashing a limit takes longer than all the rest
        if cached is not None and cached[0] is limit:
            return cached[1]
        layout = self.layouts.get((space, limit))
        if layout is None:
            if len(self.layouts) >= MOST_LAYOUTS:  # the application makes limits at run time
                self.layouts.clear()
                self.refusals.clear()
            # Shared by all limits that read the same states: a refund under one ends the refusals of the others.
            refusals = self.refusals.setdefault((space, limit.layout), RefusalCache(self.caches_refusals, self.nanos))
            layout = RecordLayout(space, limit, self.prefix, self.secret, self.longer, refusals, self.nanos)
            self.layouts[space, limit] = layout
        if len(self.by_identity) >= MOST_LAYOUTS:
            self.by_identity.clear()
        # The limit lives as long as this entry, so that no other object gets its identity.
        self.by_identity[space, id(limit)] = limit, layout
        return layout

    def release(self, space: str, limit: Limit | LimitSet) -> None:
        """Forget what is cached of the states that ``limit`` reads."""
        for place in [place for place in self.layouts if place[0] == space and place[1].layout == limit.layout]:
            del self.layouts[place]
        self.refusals.pop((space, limit.layout), None)
        self.by_identity.clear()

    def cached_refusal(self, plan: Plan, nanos: int) -> tuple[Decision, ...] | None:
        """The refusal of a plan if it is cached."""
        checks = [(self.layout(check.space, check.limit), check.key, check.cost) for check in plan]
        return cached_refusal(checks, nanos)

    def check_one(self, plan: Plan) -> CheckRequest | None:
        """The request for a plan of one check in one record: the common case, made with the least work."""
        if len(plan) != 1:
            return None
        (check,) = plan
        layout = self.layout(check.space, check.limit)
        return CheckRequest(layout, check.key, check.cost) if layout.is_single else None

    def flow(self, operation: str, plan: Plan, at: int | None = None) -> PlanFlow:
        """The requests that answer ``operation`` on ``plan``, as a generator."""
        if operation == "debit" and any(check.limit.is_leased for check in plan):
            operation = "take"  # nobody can hold a place that does not exist
        groups: dict[object, list[tuple[int, LayoutCheck]]] = {}
        for index, check in enumerate(plan):
            layout = self.layout(check.space, check.limit)
            if not layout.subjects:
                continue
            group: object = None
            if operation in ("take", "debit"):  # each check by itself
                group = index
            elif self.is_cluster:
                group = slot_of(layout.keys(check.key)), check.lease != 0  # leases are given back by another command
            if operation in INDEPENDENT:  # a command of bounded size
                group = group, index // MOST_LEASES_AT_ONCE
            groups.setdefault(group, []).append((index, (layout, check.key, check.cost)))
        if not groups:
            return without_server(operation, plan)
        requests = []
        for group in groups.values():
            leases = [(plan[index].lease, plan[index].lasts) for index, _ in group]
            named = leases if operation in NAMES_LEASES and any(lease for lease, _ in leases) else None
            requests.append(PlanRequest(operation, [check for _, check in group], at, named))
        answers = yield requests
        if operation == "renew" or (operation == "end_leases" and len(plan) > 1):
            return independent(plan, groups, answers)
        if operation == "check" and len(requests) > 1:
            answers = yield from self.compensated(requests, answers)
        for answer in answers:
            if isinstance(answer, StoreUnavailable):
                raise answer
        places = [[index for index, _ in group] for group in groups.values()]
        return merged(operation, plan, places, answers)

    def compensated(self, requests: Sequence[PlanRequest], answers: Sequence[Any]) -> PlanFlow:
        """The answers to a check in several slots.  If one refused, give back what the others took."""
        taken = [not isinstance(answer, StoreUnavailable) and all(answer) for answer in answers]
        if all(taken):
            return answers
        admitted = [index for index, took in enumerate(taken) if took]
        refunds = [undone(requests[index], answers[index][0].at) for index in admitted]
        returned = (yield refunds) if refunds else ()
        settled = list(answers)
        for index, answer in zip(admitted, returned, strict=True):
            if not isinstance(answer, StoreUnavailable):
                settled[index] = answer
        return settled


def cached_refusal(checks: Sequence[LayoutCheck], nanos: int) -> tuple[Decision, ...] | None:
    """The refusal of a plan, where one check is known to be refused; the others as the store last answered them.

    None: nothing is known, or the store must be asked for the figures of the others.
    """
    decisions = [layout.refusals.known(key, layout.limit, cost, nanos) for layout, key, cost in checks]
    if not any(decision is not None for decision in decisions):
        return None
    for index, (layout, key, cost) in enumerate(checks):
        if decisions[index] is None:
            limit = layout.limit
            state = layout.recall(key) if layout.subjects else limit.rule.EMPTY
            if state is None:
                return None
            now = layout.seen[0] + (nanos - layout.seen[1]) // 1000
            if not limit.rule.decide(plain(state), now, limit, cost)[1]:
                return None
            decisions[index] = decision(True, limit, state, now, 0)
    return tuple(decisions)  # type: ignore[arg-type]


def undone(request: PlanRequest, at: int) -> PlanRequest:
    """The request that gives back what ``request`` took at that instant."""
    if request.leases is None:
        return PlanRequest("refund", request.checks, at)
    leases = [(lease, 0) for lease, _ in request.leases]
    return PlanRequest("end_leases", [(layout, key, 0) for layout, key, _ in request.checks], None, leases)


def independent(plan: Plan, groups: dict[Any, list[tuple[int, LayoutCheck]]], answers: Sequence[Any]) -> Any:
    """The answer to each check by itself; None where the server did not answer.  Raises if none did."""
    outcomes: list[bool | None] = [None] * len(plan)
    for group, answer in zip(groups.values(), answers, strict=True):
        if not isinstance(answer, StoreUnavailable):
            for place, (index, _) in enumerate(group):
                outcomes[index] = bool(answer[place])
    if all(isinstance(answer, StoreUnavailable) for answer in answers):
        raise answers[0]
    return tuple(outcomes)


def merged(operation: str, plan: Plan, places: list[list[int]], answers: Sequence[Any]) -> Any:
    """The answers of several requests, in the order of the plan."""
    if operation == "reset":
        return None
    now = max(max(answer[0]) if operation == "states" else answer[0].at for answer in answers)
    parts: list[Any] = [None] * len(plan)  # those of unlimited checks stay None: the server is not asked
    for indices, answer in zip(places, answers, strict=True):
        for index, part in zip(indices, answer[1] if operation == "states" else answer, strict=True):
            parts[index] = part
    if operation == "states":
        return (now,) * len(plan), tuple([0 if state is None else state for state in parts])
    return tuple([unlimited(check, now) if part is None else part for check, part in zip(plan, parts, strict=True)])


def unlimited(check: Check, now: int) -> Decision:
    return decision(True, check.limit, 0, now, check.cost)
