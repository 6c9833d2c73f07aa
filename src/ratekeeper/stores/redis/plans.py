"""From plans to requests and back, for the sync and the async store alike.  No I/O.

Most plans are one request.  Where a cluster keeps the keys of a plan in several slots no server can decide it whole:
it is then reserved slot by slot, and what was taken is given back if one refuses.  That never admits too much; it may
refuse another caller for the moment between the two steps, and keeps what was taken if this process dies in between.
"""

from __future__ import annotations

from ratekeeper.check import Check
from ratekeeper.errors import StoreUnavailable
from ratekeeper.stores.redis.layout import RecordLayout
from ratekeeper.stores.redis.packed_log import plain
from ratekeeper.stores.redis.refusal_cache import RefusalCache
from ratekeeper.stores.redis.request import CheckRequest, PlanRequest, decision, without_server
from ratekeeper.stores.redis.topology import slot_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from typing import Any

    from ratekeeper.check import Plan
    from ratekeeper.decision import Decision
    from ratekeeper.limit import Limit, LimitSet
    from ratekeeper.stores.redis.request import AnyRequest
    from ratekeeper.stores.redis.url import RedisSettings

    # Yields requests to be sent side by side, is sent their answers (or StoreUnavailable), returns the store's answer.
    PlanFlow = Generator[Sequence[AnyRequest], Sequence[Any], Any]

MOST_LEDGERS = 1024
KEPT_UNDER_GIVEN_TIME = 3_600_000  # milliseconds: a test's clock may stand still while real time passes


class PlanTranslator:
    """The ledgers of one store."""

    def __init__(self, settings: RedisSettings, gives_time: bool) -> None:
        self.prefix = settings.prefix.encode()
        self.secret = settings.secret.encode()
        self.is_cluster = settings.is_cluster
        self.longer = KEPT_UNDER_GIVEN_TIME if gives_time else 0
        self.ledgers: dict[tuple[str, Limit | LimitSet], RecordLayout] = {}
        self.near: dict[tuple[str, int], tuple[Limit | LimitSet, RecordLayout]] = {}
        self.remembers = settings.deny_cache
        self.denials: dict[tuple[str, str], RefusalCache] = {}

    def ledger(self, space: str, limit: Limit | LimitSet) -> RecordLayout:
        """How ``limit`` is kept in ``space``: the same for equal limits, so that a reload forgets nothing."""
        near = self.near.get((space, id(limit)))  # to hash a limit costs more than to use it
        if near is not None and near[0] is limit:
            return near[1]
        found = self.ledgers.get((space, limit))
        if found is None:
            if len(self.ledgers) >= MOST_LEDGERS:  # limits made up at run time
                self.ledgers.clear()
                self.denials.clear()
            # Shared by all limits that read the same states: what one gives back, another must know.
            denials = self.denials.setdefault((space, limit.layout), RefusalCache(self.remembers))
            found = RecordLayout(space, limit, self.prefix, self.secret, self.longer, denials)
            self.ledgers[space, limit] = found
        if len(self.near) >= MOST_LEDGERS:
            self.near.clear()
        self.near[space, id(limit)] = limit, found  # it lives as long as this, so that no other takes its number
        return found

    def release(self, space: str, limit: Limit | LimitSet) -> None:
        """Forget what is known of the states that ``limit`` reads."""
        for place in [own for own in self.ledgers if own[0] == space and own[1].layout == limit.layout]:
            del self.ledgers[place]
        self.denials.pop((space, limit.layout), None)
        self.near.clear()

    def denied(self, plan: Plan, nanos: int) -> tuple[Decision, ...] | None:
        """The refusal of a plan, where it is known without asking; the other checks as the store last told them."""
        ledgers = [self.ledger(check.space, check.limit) for check in plan]
        found = [
            ledger.denials.known(check.key, ledger.limit, check.cost, nanos)
            for check, ledger in zip(plan, ledgers, strict=True)
        ]
        if not any(each is not None for each in found):
            return None
        for index, (check, ledger) in enumerate(zip(plan, ledgers, strict=True)):
            if found[index] is None:
                state = ledger.recall(check.key) if ledger.subjects else check.limit.rule.EMPTY
                if state is None:
                    return None
                now = ledger.seen[0] + (nanos - ledger.seen[1]) // 1000
                if not check.limit.rule.decide(plain(state), now, check.limit, check.cost)[1]:
                    return None
                found[index] = decision(True, check.limit, state, now, 0)
        return tuple(found)  # type: ignore[arg-type]

    def check_one(self, plan: Plan) -> CheckRequest | None:
        """The request for a plan of one check of one limit: the common case, made with the least work."""
        if len(plan) != 1:
            return None
        (check,) = plan
        ledger = self.ledger(check.space, check.limit)
        return CheckRequest(ledger, check.key, check.cost) if ledger.first else None

    def errand(self, operation: str, plan: Plan, at: int | None = None) -> PlanFlow:
        """All that must be asked to answer ``operation`` on ``plan``."""
        groups: dict[object, list[tuple[int, Check, RecordLayout]]] = {}
        for index, check in enumerate(plan):
            ledger = self.ledger(check.space, check.limit)
            if not ledger.subjects:
                continue
            group: object = None
            if operation == "take":  # each check by itself
                group = index
            elif self.is_cluster:
                group = slot_of(ledger.keys(check.key)[0])
            groups.setdefault(group, []).append((index, check, ledger))
        if not groups:
            return without_server(operation, plan)
        requests = [
            PlanRequest(operation, [(check, ledger) for _, check, ledger in group], at) for group in groups.values()
        ]
        answers = yield requests
        if operation == "check" and len(requests) > 1:
            answers = yield from self.compensated(requests, answers)
        for answer in answers:
            if isinstance(answer, StoreUnavailable):
                raise answer
        places = [[index for index, _, _ in group] for group in groups.values()]
        return merged(operation, plan, places, answers)

    def compensated(self, requests: Sequence[PlanRequest], answers: Sequence[Any]) -> PlanFlow:
        """The answers to a check in several slots; where one refused, what the others took is given back."""
        taken = [not isinstance(answer, StoreUnavailable) and all(answer) for answer in answers]
        if all(taken):
            return answers
        held = [index for index, took in enumerate(taken) if took]
        refunds = [PlanRequest("refund", requests[index].checks, answers[index][0].at) for index in held]
        returned = (yield refunds) if refunds else ()
        settled = list(answers)
        for index, answer in zip(held, returned, strict=True):
            if not isinstance(answer, StoreUnavailable):
                settled[index] = answer
        return settled


def merged(operation: str, plan: Plan, places: list[list[int]], answers: Sequence[Any]) -> Any:
    """The answers of several requests, back in the order of the plan."""
    if operation == "reset":
        return None
    now = max(answer[0] for answer in answers) if operation == "states" else max(answer[0].at for answer in answers)
    found: list[Any] = [None] * len(plan)
    for indices, answer in zip(places, answers, strict=True):
        for index, part in zip(indices, answer[1] if operation == "states" else answer, strict=True):
            found[index] = part
    if operation == "states":
        return now, tuple([0 if state is None else state for state in found])
    return tuple([unlimited(check, now) if each is None else each for check, each in zip(plan, found, strict=True)])


def unlimited(check: Check, now: int) -> Decision:
    return decision(True, check.limit, 0, now, check.cost)
