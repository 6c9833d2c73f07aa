"""``/v1/...``: JSON in, JSON out.  ``openapi.json`` describes the same calls for machines."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ratekeeper.check import Check, LeaseCheck, new_id, to_cost
from ratekeeper.decision import decision_json
from ratekeeper.errors import AlreadySettled, InvalidInput, StoreUnavailable, shown
from ratekeeper.http.verdict import HttpVerdict
from ratekeeper.keys import encode
from ratekeeper.service.connection import PendingDecision, PendingResponse
from ratekeeper.service.http.decision_response import check_response, json_response, plan_response, verdict_response
from ratekeeper.service.http.request_body import body_of, expect_fields, request_of, tuple_of
from ratekeeper.service.http.reservation_token import difference
from ratekeeper.service.http.response import as_json, problem, response
from ratekeeper.service.http.server import FAILED
from ratekeeper.service.table_budget import NoRoom
from ratekeeper.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratekeeper.decision import Decision
    from ratekeeper.identity.request import Request
    from ratekeeper.service.decider import Decider
    from ratekeeper.service.http.reservation_token import Seal
    from ratekeeper.service.http.server import Call
    from ratekeeper.service.named_limits import NamedLimit

    AnyResponse = bytes | PendingResponse

CHECK_FIELDS = frozenset({"key", "limit", "rule", "name", "cost"})
RESERVE_FIELDS = CHECK_FIELDS | {"lasts"}
DESCRIBED_FIELDS = frozenset({"request", "headers"})
MOST_CHECKS = 100
REDUCED = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"


class Api:
    """The calls of the API; each takes a Call with its body and returns a response, now or pending."""

    def __init__(self, decider: Decider, seal: Seal) -> None:
        self.decider = decider
        self.limits = decider.limits
        self.questions = decider.limits.questions
        self.seal = seal
        self.calls: dict[str, Callable[[Call, dict[str, Any]], AnyResponse]] = {
            "/v1/check": self.check,
            "/v1/peek": self.peek,
            "/v1/reserve": self.reserve,
            "/v1/renew": self.renew,
            "/v1/settle": self.settle,
            "/v1/refund": self.refund,
            "/v1/reset": self.reset,
            "/v1/explain": self.explain,
        }

    def serve(self, call: Call) -> AnyResponse:
        """Answer any of the calls; a mistake becomes a problem document."""
        try:
            question = self.questions.get(call.body)
            if question is not None and call.path == "/v1/check" and call.method == "POST":  # the whole hot path
                named, key, cost = question
                if named is None:
                    return self.decide(call, key, False)
                table = named.table
                decision = table.check_now(key, cost)
                if decision is None:
                    respond = partial(self.respond, call, named, key)
                    return PendingDecision(table, key, cost, respond, self.error_response)
                reason, limit, remaining = decision.reason, decision.limit, decision.remaining
                if reason:
                    self.decider.note_fallback(decision)
                named.uses += 1
                named.counts.count(decision.allowed, remaining / limit)
                if not decision.allowed:
                    self.decider.note_refused(key)
                delay = decision.delay if named.is_queue else 0.0
                return check_response(call.query, decision, limit, remaining, delay, reason)
            if call.method != "POST":
                return problem(405, f"{call.path}: expected POST, got {call.method}.", [(b"allow", b"POST")])
            return self.calls[call.path](call, body_of(call))
        except Exception as error:
            return self.error_response(error)

    def check(self, call: Call, body: dict[str, Any]) -> AnyResponse:
        """Take the cost of a key, of several keys together, or of a described request."""
        if "key" in body:
            if not body.keys() <= CHECK_FIELDS:
                expect_fields(body, CHECK_FIELDS)
            if self.decider.overrides.is_killed:
                return self.ask_one("check", call, body)
            named = self.named(body)
            key = body["key"]
            if key.__class__ is not str:
                key = key_of(key)
            cost = body.get("cost", 1)
            decision = named.table.check_now(key, cost)
            self.limits.remember(call.body, (named, key, cost))
            if decision is None:
                respond = partial(self.respond, call, named, key)
                return PendingDecision(named.table, key, cost, respond, self.error_response)
            return self.respond(call, named, key, decision)
        if "request" in body:
            return self.check_described(call, body)
        return self.ask_several("check", call, body)

    def respond(self, call: Call, named: NamedLimit, key: Any, decision: Decision) -> bytes:
        """Count the decision of a limit, and answer with it."""
        reason, limit, remaining = decision.reason, decision.limit, decision.remaining
        if reason:
            self.decider.note_fallback(decision)
        named.counts.count(decision.allowed, remaining / limit)
        if not decision.allowed:
            self.decider.note_refused(key)
        delay = decision.delay if named.is_queue else 0.0
        return check_response(call.query, decision, limit, remaining, delay, reason)

    def peek(self, call: Call, body: dict[str, Any]) -> AnyResponse:
        """Answer what check would, and take nothing."""
        if "request" in body:
            raise InvalidInput("peek: expected keys. To look at a described request, ask /v1/explain.")
        return self.ask_one("peek", call, body) if "key" in body else self.ask_several("peek", call, body)

    def refund(self, call: Call, body: dict[str, Any]) -> AnyResponse:
        """Give back, never above the capacity."""
        return self.ask_one("refund", call, body)

    def reset(self, call: Call, body: dict[str, Any]) -> AnyResponse:
        """Forget what a key has used."""
        check = self.check_of(body)
        return self.ask("reset", (check,), lambda _: response(200, b'{"reset":true}'))

    def ask_one(self, operation: str, call: Call, body: dict[str, Any]) -> AnyResponse:
        check = self.check_of(body)

        def respond(decisions: Any) -> bytes:
            if operation == "check":
                self.note(check.space, check.key, decisions[0])
            return one_response(call, decisions[0])

        return self.ask(operation, (check,), respond)

    def ask_several(self, operation: str, call: Call, body: dict[str, Any]) -> AnyResponse:
        checks = body.get("checks")
        if body.keys() != {"checks"} or not isinstance(checks, list) or not 0 < len(checks) <= MOST_CHECKS:
            expect_fields(body, CHECK_FIELDS | {"checks", "request"})
            raise InvalidInput(f"{call.path}: expected 'key', 'request', or 'checks' with 1 to {MOST_CHECKS} of them.")
        for number, fields in enumerate(checks):
            if not isinstance(fields, dict):
                raise InvalidInput(f"checks[{number}]: expected an object, got {shown(fields)}.")
        plan = tuple([self.check_of(fields) for fields in checks])

        def respond(decisions: tuple[Decision, ...]) -> bytes:
            for check, decision in zip(plan, decisions, strict=True):
                if operation == "check":
                    self.note(check.space, check.key, decision)
            return plan_response(call, plan, decisions)

        return self.ask(operation, plan, respond)

    def check_described(self, call: Call, body: dict[str, Any]) -> AnyResponse:
        if not body.keys() <= DESCRIBED_FIELDS:
            expect_fields(body, DESCRIBED_FIELDS)
        request = request_of(body["request"])
        if "headers" not in body:
            self.limits.remember(call.body, (None, request, 1))
        return self.decide(call, request, bool(body.get("headers")))

    def decide(self, call: Call, request: Request, with_headers: bool) -> AnyResponse:
        """Decide a described request by the rules."""
        outcome = self.decider.check(request)
        if outcome.__class__ is HttpVerdict:
            return verdict_response(call, with_headers, outcome)
        return PendingResponse(outcome, partial(verdict_response, call, with_headers), self.error_response)

    def reserve(self, call: Call, body: dict[str, Any]) -> AnyResponse:
        """Take a cost now, to be settled later for what was really used."""
        check = self.check_of(body, RESERVE_FIELDS)
        if check.limit.is_leased:
            check = lease_of(check, body.get("lasts"))
        elif "lasts" in body:
            raise InvalidInput("lasts: expected a concurrency limit, because only leases end. Leave it out.")

        def respond(decisions: tuple[Decision, ...]) -> bytes:
            (decision,) = decisions
            self.note(check.space, check.key, decision)
            fields = decision_json(decision)
            if decision.allowed:
                fields["reservation"] = self.seal.close(check, decision.at)
            return json_response(call, fields)

        if isinstance(check, LeaseCheck):
            outcome = self.decider.hold(check)
            return PendingResponse(resolved(outcome), respond, self.error_response)
        return self.ask("check", (check,), respond)

    def renew(self, call: Call, body: dict[str, Any]) -> AnyResponse:
        """Hold a lease from now on for as long as it lasts; refused if it had ended and others have its place."""
        expect_fields(body, frozenset({"reservation"}))
        check, at, once = self.seal.open(body.get("reservation"))
        if not isinstance(check, LeaseCheck):
            raise InvalidInput(f"reservation: expected a lease of a concurrency limit, got one of {check.limit}.")

        async def run() -> bytes:
            # A renewal without an answer withdraws nothing: the holder still works, and renews again.
            (decision,) = await resolved(self.decider.ask("check", (check,)))
            if decision.reason and not decision.allowed:
                raise StoreUnavailable("the store", "does not answer, so nobody knows whether the lease was renewed")
            # After the renewal: a settlement that another worker makes meanwhile is seen here, or ends the lease later.
            (unsettled,) = await resolved(self.decider.ask("peek", (once,)))
            if not unsettled.allowed and not unsettled.reason:
                await self.decider.end(check, 0)
                raise AlreadySettled("reservation: expected to be renewed before it is settled, but it was settled.")
            fields = decision_json(decision)
            if decision.allowed:
                fields["reservation"] = self.seal.close(check, at, str(once.key))
            return json_response(call, fields)

        return PendingResponse(run(), bytes, self.error_response)

    def settle(self, call: Call, body: dict[str, Any]) -> AnyResponse:
        """Give back what was not used, or charge the excess: all of it, so that the key may be in debt."""
        expect_fields(body, frozenset({"reservation", "actual"}))
        actual = to_cost(body.get("actual"), least=0)
        check, at, once = self.seal.open(body.get("reservation"))

        async def run() -> bytes:
            (first,) = await resolved(self.decider.ask("check", (once,)))
            if not first.allowed and first.reason:  # a fallback does not know which were settled
                raise StoreUnavailable("the store", "does not answer, so nobody knows whether it was settled")
            if not first.allowed:
                raise AlreadySettled("reservation: expected to be settled once, but it was settled already.")
            change = difference(check, actual)
            if isinstance(check, LeaseCheck) and actual < check.cost:
                decisions = await self.decider.end(check, actual)
            elif change is None:
                decisions = await resolved(self.decider.ask("peek", (check,)))
            else:
                operation, part = change
                more = (at,) if operation == "refund" else ()
                decisions = await resolved(self.decider.ask(operation, (part,), *more))
            return response(200, as_json({**decision_json(decisions[0]), "settled": actual}))

        return PendingResponse(run(), bytes, self.error_response)

    def explain(self, call: Call, body: dict[str, Any]) -> AnyResponse:
        """Say which rules match a described request, with which keys and limits; take nothing."""
        expect_fields(body, frozenset({"request"}))
        explanation = self.decider.policy.explain(request_of(body.get("request")))
        steps = [{"rule": step.rule, "applies": step.applies, "text": step.text} for step in explanation.steps]
        return response(200, as_json({"lines": list(explanation.lines), "rules": steps}))

    def named(self, body: dict[str, Any]) -> NamedLimit:
        return self.limits.find(body.get("rule"), body.get("limit"), body.get("name"))

    def check_of(self, body: dict[str, Any], fields: frozenset[str] = CHECK_FIELDS) -> Check:
        expect_fields(body, fields)
        if "key" not in body:
            raise InvalidInput("check: expected 'key': text, or a list of text and whole numbers.")
        key = body["key"]
        named = self.named(body)
        encoded = encode(key_of(key))
        return Check(named.name, encoded, named.limit, to_cost(body.get("cost", 1)))

    def note(self, name: str, key: Any, decision: Decision) -> None:
        """Count a decision, and the client if it was refused."""
        self.decider.counters.count(name, decision)
        if not decision.allowed:
            self.decider.note_refused(key)

    def ask(self, operation: str, plan: tuple[Check, ...], respond: Callable[[Any], bytes]) -> AnyResponse:
        """Ask the store, then turn its decisions into a response."""
        outcome = self.decider.ask(operation, plan)
        if hasattr(outcome, "__await__"):
            return PendingResponse(outcome, respond, self.error_response)
        return respond(outcome)

    def error_response(self, error: Exception) -> bytes:
        """The response to a call that failed, counted and logged if that is a mistake of ours."""
        if not isinstance(error, (AlreadySettled, InvalidInput, StoreUnavailable)):
            self.decider.faults.note("http", error)
        return error_response(error)


def one_response(call: Call, decision: Decision) -> bytes:
    limit, remaining, delay = decision.limit, decision.remaining, decision.delay
    return check_response(call.query, decision, limit, remaining, delay, decision.reason)


def lease_of(check: Check, lasts: Any) -> LeaseCheck:
    """A lease of its own for a check; it ends after ``lasts`` seconds without a renewal."""
    micros: int = check.limit.micros  # type: ignore[union-attr]
    if lasts is not None:
        is_number = isinstance(lasts, (int, float)) and not isinstance(lasts, bool)
        if not is_number or not 1 <= lasts <= micros / SECOND:
            longest = f"{micros / SECOND:g}"
            raise InvalidInput(f"lasts: expected seconds from 1 to {longest}, the limit's time, got {shown(lasts)}.")
        micros = round(lasts * SECOND)
    return LeaseCheck(check.space, check.key, check.limit, check.cost, None, new_id(), micros)


def key_of(key: Any) -> Any:
    """The key of a check; a number alone is refused, as some languages send ``42`` where others send ``"42"``."""
    if isinstance(key, int):
        raise InvalidInput("check: expected 'key' as text, or a list of text and whole numbers, got a number alone.")
    return tuple_of(key) if isinstance(key, list) else key


async def resolved(outcome: Any) -> Any:
    return await outcome if hasattr(outcome, "__await__") else outcome


def error_response(error: Exception) -> bytes:
    """The response to a call that failed; a mistake of ours is for the log only."""
    if isinstance(error, StoreUnavailable):
        fields = [(b"retry-after", b"1")]
        return problem(503, "The store does not answer, so this cannot be decided.", fields, type=REDUCED)
    if isinstance(error, AlreadySettled):
        return problem(409, str(error))
    if isinstance(error, NoRoom):
        return problem(507, str(error))
    if isinstance(error, InvalidInput):
        return problem(400, str(error))
    return problem(500, FAILED)
