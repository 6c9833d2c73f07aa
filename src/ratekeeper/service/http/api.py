"""``/v1/...``: JSON in, JSON out.  ``openapi.json`` says the same to machines."""

from __future__ import annotations

from json import JSONDecoder, loads
from json.encoder import encode_basestring as quoted
from typing import TYPE_CHECKING, Any

from ratekeeper.check import Check, whole_cost
from ratekeeper.decision import decision_json, longest_wait
from ratekeeper.errors import AlreadySettled, InvalidInput, StoreUnavailable, did_you_mean, shown
from ratekeeper.http.verdict import NO_NOTES
from ratekeeper.identity.request import Request
from ratekeeper.limit import UNLIMITED
from ratekeeper.service.http.reservation_token import difference
from ratekeeper.service.http.response import JSON, answer, as_json, problem

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ratekeeper.decision import Decision
    from ratekeeper.http.headers import LimitLabel
    from ratekeeper.http.verdict import HttpVerdict
    from ratekeeper.service.decider import Decider
    from ratekeeper.service.http.reservation_token import Seal
    from ratekeeper.service.http.server import Call
    from ratekeeper.service.named_limits import NamedLimit

    Answer = bytes | Awaitable[bytes]

ONE = frozenset({"key", "limit", "rule", "name", "cost"})
ASKED = frozenset({"request", "headers"})
DESCRIBED = frozenset({"method", "path", "ip", "headers", "host", "route", "size", "user", "tier", "facts"})
MOST_CHECKS = 100
REDUCED = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"


class Api:
    """The calls of the API; each takes a Call and returns an answer, or something to await."""

    def __init__(self, keeper: Decider, seal: Seal) -> None:
        self.keeper = keeper
        self.bodies = keeper.bodies
        self.seal = seal
        self.calls: dict[str, Callable[[Call, dict[str, Any]], Answer]] = {
            "/v1/check": self.check,
            "/v1/peek": self.peek,
            "/v1/reserve": self.reserve,
            "/v1/settle": self.settle,
            "/v1/refund": self.refund,
            "/v1/reset": self.reset,
            "/v1/explain": self.explain,
        }

    def serve(self, call: Call) -> Answer:
        """Answer any of them; what is wrong with a call becomes a problem document."""
        try:
            known = self.bodies.get(call.body)
            if known is not None and call.path == "/v1/check" and call.method == "POST":  # the hot path, and all of it
                named, key, cost = known
                if named is None:
                    outcome = self.judge(call, key, False)
                    return outcome if outcome.__class__ is bytes else caught(outcome)  # type: ignore[arg-type]
                table = named.table
                if table is not None:
                    decision = table.check(key, cost)
                else:
                    decision = self.keeper.stood_in(named.desk, key, cost)
                if decision is not None:
                    named.ruled.count(decision)
                    if not decision.allowed:
                        self.keeper.refused(key)
                    return decided(call, decision)
            if call.method != "POST":
                return problem(405, f"{call.path}: expected POST, got {call.method}.", [(b"allow", b"POST")])
            found = body_of(call)
            outcome = self.calls[call.path](call, found)
            return outcome if outcome.__class__ is bytes else caught(outcome)  # type: ignore[arg-type]
        except Exception as error:
            return failed(error)

    def check(self, call: Call, found: dict[str, Any]) -> Answer:
        """Take what a key, several keys together, or a described request costs."""
        if "key" in found:
            if not found.keys() <= ONE:
                unknown(found, ONE)
            named = self.named(found)
            table = named.table
            if table is None:
                return self.one_elsewhere("check", call, found, named)
            key = found["key"]
            if key.__class__ is list:
                key = tuple_of(key)
            cost = found.get("cost", 1)
            if self.keeper.switches.is_killed:
                return self.one_elsewhere("check", call, found)
            decision = table.check(key, cost)
            self.note(named.name, key, decision)
            self.keeper.remember(call.body, (named, key, cost))
            return decided(call, decision)
        if "request" in found:
            return self.described(call, found)
        return self.several("check", call, found)

    def peek(self, call: Call, found: dict[str, Any]) -> Answer:
        """Say what check would, and take nothing."""
        if "request" in found:
            raise InvalidInput("peek: expected keys. To look at a described request, ask /v1/explain.")
        return self.one_elsewhere("peek", call, found) if "key" in found else self.several("peek", call, found)

    def refund(self, call: Call, found: dict[str, Any]) -> Answer:
        """Give back, never above the capacity."""
        return self.one_elsewhere("refund", call, found)

    def reset(self, call: Call, found: dict[str, Any]) -> Answer:
        """Forget what a key has used."""
        check = self.check_of(found)
        return self.then("reset", (check,), lambda _: answer(200, b'{"reset":true}'))

    def one_elsewhere(
        self, operation: str, call: Call, found: dict[str, Any], named: NamedLimit | None = None
    ) -> Answer:
        check = self.check_of(found)
        if named is not None and named.desk is not None:
            self.keeper.remember(call.body, (named, check.key, check.cost))

        def tell(decisions: Any) -> bytes:
            if operation == "check":
                self.note(check.space, check.key, decisions[0])
            return decided(call, decisions[0])

        return self.then(operation, (check,), tell)

    def several(self, operation: str, call: Call, found: dict[str, Any]) -> Answer:
        checks = found.get("checks")
        if found.keys() != {"checks"} or not isinstance(checks, list) or not 0 < len(checks) <= MOST_CHECKS:
            unknown(found, ONE | {"checks", "request"})
            raise InvalidInput(f"{call.path}: expected 'key', 'request', or 'checks' with 1 to {MOST_CHECKS} of them.")
        for number, one in enumerate(checks):
            if not isinstance(one, dict):
                raise InvalidInput(f"checks[{number}]: expected an object, got {shown(one)}.")
        plan = tuple([self.check_of(one) for one in checks])

        def tell(decisions: tuple[Decision, ...]) -> bytes:
            for check, decision in zip(plan, decisions, strict=True):
                if operation == "check":
                    self.note(check.space, check.key, decision)
            return together(call, plan, decisions)

        return self.then(operation, plan, tell)

    def described(self, call: Call, found: dict[str, Any]) -> Answer:
        if not found.keys() <= ASKED:
            unknown(found, ASKED)
        request = request_of(found["request"])
        if "headers" not in found:
            self.keeper.remember(call.body, (None, request, 1))
        return self.judge(call, request, bool(found.get("headers")))

    def judge(self, call: Call, request: Request, with_headers: bool) -> Answer:
        outcome = self.keeper.check(request)
        if hasattr(outcome, "__await__"):

            async def later() -> bytes:
                return judged(call, await outcome, with_headers)

            return later()
        return judged(call, outcome, with_headers)

    def reserve(self, call: Call, found: dict[str, Any]) -> Answer:
        """Take now, settle later for what was really used."""
        check = self.check_of(found)

        def tell(decisions: tuple[Decision, ...]) -> bytes:
            (decision,) = decisions
            self.note(check.space, check.key, decision)
            body = decision_json(decision)
            if decision.allowed:
                body["reservation"] = self.seal.close(check, decision.at)
            return shaped(call, decision, body)

        return self.then("check", (check,), tell)

    def settle(self, call: Call, found: dict[str, Any]) -> Answer:
        """Give back what was not used, or charge what was used above the reservation, as far as it is there."""
        unknown(found, frozenset({"reservation", "actual"}))
        actual = whole_cost(found.get("actual"), least=0)
        check, at, once = self.seal.open(found.get("reservation"))

        async def run() -> bytes:
            (first,) = await given(self.keeper.ask("check", (once,)))
            if not first.allowed:
                raise AlreadySettled("reservation: expected to be settled once, but it was settled already.")
            change = difference(check, actual)
            if change is None:
                decisions = await given(self.keeper.ask("peek", (check,)))
            else:
                operation, part = change
                more = (at,) if operation == "refund" else ()
                decisions = await given(self.keeper.ask(operation, (part,), *more))
            return answer(200, as_json({**decision_json(decisions[0]), "settled": actual}))

        return run()

    def explain(self, call: Call, found: dict[str, Any]) -> Answer:
        """Say which rules a described request meets, by which keys, under which limits; takes nothing."""
        unknown(found, frozenset({"request"}))
        explanation = self.keeper.policy.explain(request_of(found.get("request")))
        steps = [{"rule": step.rule, "applies": step.applies, "text": step.text} for step in explanation.steps]
        return answer(200, as_json({"lines": list(explanation.lines), "rules": steps}))

    def named(self, found: dict[str, Any]) -> NamedLimit:
        return self.keeper.name(found.get("rule"), found.get("limit"), found.get("name"))

    def check_of(self, found: dict[str, Any]) -> Check:
        unknown(found, ONE)
        if "key" not in found:
            raise InvalidInput("check: expected 'key': text, or a list of text and whole numbers.")
        key = found["key"]
        named = self.named(found)
        return self.keeper.plan_of(named, tuple_of(key) if isinstance(key, list) else key, found.get("cost", 1))

    def note(self, name: str, key: Any, decision: Decision) -> None:
        """Count an answer, and who was refused."""
        self.keeper.tally.count(name, decision)
        if not decision.allowed:
            self.keeper.refused(key)

    def then(self, operation: str, plan: tuple[Check, ...], tell: Callable[[Any], bytes]) -> Answer:
        """Ask the store, then make the answer of what it says."""
        outcome = self.keeper.ask(operation, plan)
        if not hasattr(outcome, "__await__"):
            return tell(outcome)

        async def later() -> bytes:
            return tell(await outcome)

        return later()


async def given(outcome: Any) -> Any:
    return await outcome if hasattr(outcome, "__await__") else outcome


async def caught(outcome: Awaitable[bytes]) -> bytes:
    try:
        return await outcome
    except Exception as error:
        return failed(error)


def failed(error: Exception) -> bytes:
    """What went wrong, as an answer; mistakes of our own are raised again."""
    if isinstance(error, StoreUnavailable):
        fields = [(b"retry-after", b"1")]
        return problem(503, "The store does not answer, so this cannot be decided.", fields, type=REDUCED)
    if isinstance(error, AlreadySettled):
        return problem(409, str(error))
    if isinstance(error, InvalidInput):
        return problem(400, str(error))
    raise error


scan: Any = JSONDecoder().scan_once  # type: ignore[attr-defined]  # what loads() comes down to, for text that begins with its value


def body_of(call: Call) -> dict[str, Any]:
    try:
        text = call.body.decode()
        try:
            found, end = scan(text, 0)
        except StopIteration:  # spaces before it, or no JSON at all
            found, end = loads(text), len(text)
        if end != len(text) and text[end:].strip(" \t\r\n"):
            raise ValueError
    except (ValueError, RecursionError):
        raise InvalidInput(f"{call.path}: expected a JSON object in the body, got something else.") from None
    if found.__class__ is not dict:
        raise InvalidInput(f"{call.path}: expected a JSON object in the body, got {type(found).__name__}.")
    return found


def unknown(found: dict[str, Any], known: frozenset[str]) -> None:
    """Refuse a field that we do not know: a misspelt cost must not become 1."""
    for name in found:
        if name not in known:
            words = ", ".join(sorted(known))
            raise InvalidInput(f"{shown(name)}: expected one of {words}.{did_you_mean(name, known)}")


def tuple_of(parts: list[Any], depth: int = 0) -> tuple[Any, ...]:
    if depth > 8:
        raise InvalidInput("key: expected at most 8 lists inside each other.")
    return tuple([tuple_of(part, depth + 1) if part.__class__ is list else part for part in parts])


def request_of(found: Any) -> Request:
    """A described request."""
    if not isinstance(found, dict):
        raise InvalidInput(f"request: expected an object with method, path, ip, headers, got {shown(found)}.")
    unknown(found, DESCRIBED)
    for name in ("method", "path", "ip", "host", "route", "user", "tier"):
        if not isinstance(found.get(name, ""), str):
            raise InvalidInput(f"request.{name}: expected text, got {shown(found[name])}.")
    headers = found.get("headers", {})
    if not (isinstance(headers, dict) and all(isinstance(text, str) for text in headers.values())):
        raise InvalidInput(f"request.headers: expected an object with texts, got {shown(headers)}.")
    facts = found.get("facts", {})
    if not isinstance(facts, dict):
        raise InvalidInput(f"request.facts: expected an object, got {shown(facts)}.")
    facts = {**facts, **{name: found[name] for name in ("user", "tier") if name in found}}
    size = found.get("size")
    return Request(
        found.get("method", "GET"),
        found.get("path", "/"),
        found.get("ip"),
        headers,
        host=found.get("host"),
        route=found.get("route"),
        size=None if size is None else whole_cost(size, least=0),
        facts=facts or None,
    )


def decided(call: Call, decision: Decision) -> bytes:
    """One decision, put together by hand: this is the hot path."""
    if decision.allowed:
        delay = decision.delay
        return answer(
            200,
            f'{{"allowed":true,"limit":{decision.limit},"remaining":{decision.remaining},"retry_after":0.0,'
            f'"reset_after":{decision.reset_after!r},"delay":{delay!r}{because(decision)}}}'.encode(),
        )
    retry = decision.retry_after
    body = (
        f'{{"allowed":false,"limit":{decision.limit},"remaining":{decision.remaining},'
        f'"retry_after":{"null" if retry is None else repr(retry)},"reset_after":{decision.reset_after!r},"delay":0.0'
        f"{because(decision)}}}"
    ).encode()
    return answer(200, body) if not call.query else answer(deny_status(call), body, JSON, retry_field(retry))


def because(decision: Decision) -> str:
    """What stood in for the store, where it did not decide; see ``decision_json``."""
    reason = decision.reason
    return f',"reason":"{reason.partition(":")[0]}"' if reason else ""


def shaped(call: Call, decision: Decision, body: dict[str, Any]) -> bytes:
    if decision.allowed or not call.query:
        return answer(200, as_json(body))
    return answer(deny_status(call), as_json(body), JSON, retry_field(decision.retry_after))


def together(call: Call, plan: tuple[Check, ...], decisions: tuple[Decision, ...]) -> bytes:
    """Several decisions, admitted only if all are."""
    allowed = all(decision.allowed for decision in decisions)
    retry = longest_wait(decisions)
    body = {
        "allowed": allowed,
        "remaining": min(decision.remaining for decision in decisions),
        "retry_after": retry,
        "decisions": [
            {"name": check.space, **decision_json(decision)} for check, decision in zip(plan, decisions, strict=True)
        ],
    }
    if allowed or not call.query:
        return answer(200, as_json(body))
    return answer(deny_status(call), as_json(body), JSON, retry_field(retry))


def judged_by_one(label: LimitLabel, decision: Decision) -> bytes:
    """The common case of ``judged``, put together by hand: one limit decided, and there is nothing else to tell."""
    name = quoted(label.rule.name)
    if decision.allowed:
        word, said, retry = "true", '"status":200,"reason":""', "0.0"
    else:
        after = decision.retry_after
        word, said, retry = "false", '"status":429,"reason":"limit"', "null" if after is None else repr(after)
    numbers = (
        f'"remaining":{decision.remaining},"retry_after":{retry},"reset_after":{decision.reset_after!r},'
        f'"delay":{decision.delay!r}'
    )
    return answer(
        200,
        f'{{"allowed":{word},{said},"rule":{name},{numbers},"decisions":[{{"rule":{name},"allowed":{word},'
        f'"limit":{decision.limit},{numbers}}}],"shadow":[],"graced":[]}}'.encode(),
    )


def judged(call: Call, verdict: HttpVerdict, with_headers: bool) -> bytes:
    """What became of a described request."""
    limited = verdict.shown
    notes = verdict.notes
    is_plain = notes is NO_NOTES or not (notes.refuser or notes.shadow or notes.graced)
    if is_plain and len(limited) == 1 and not with_headers and not call.query and not limited[0][1].reason:
        return judged_by_one(*limited[0])
    decisions = [{"rule": label.rule.name, **decision_json(decision)} for label, decision in limited]
    body: dict[str, Any] = {
        "allowed": verdict.allowed,
        "status": verdict.status,
        "reason": verdict.reason,
        "rule": limited[0][0].rule.name if len(limited) == 1 and verdict.why != "blocked" else verdict.rule,
        "remaining": min([one["remaining"] for one in decisions], default=UNLIMITED),
        "retry_after": verdict.retry_after,
        "reset_after": max([one["reset_after"] for one in decisions], default=0.0),
        "delay": max([one["delay"] for one in decisions], default=0.0),
        "decisions": decisions,
        "shadow": list(notes.shadow),
        "graced": list(notes.graced),
    }
    if with_headers:
        body["headers"] = {name.decode("latin-1"): value.decode("latin-1") for name, value in verdict.headers}
    if verdict.allowed or not call.query:
        return answer(200, as_json(body))
    return answer(deny_status(call), as_json(body), JSON, retry_field(verdict.retry_after))


def deny_status(call: Call) -> int:
    """The status of a refusal: 200, as the question was answered, unless ``?deny_status=`` wants another."""
    for pair in call.query.split("&"):
        name, _, value = pair.partition("=")
        if name == "deny_status":
            if not (value.isascii() and value.isdecimal() and 400 <= int(value[:4]) <= 499):
                raise InvalidInput(f"deny_status: expected a status from 400 to 499, got {shown(value)}.")
            return int(value)
    return 200


def retry_field(retry: float | None) -> list[tuple[bytes, bytes]]:
    return [] if retry is None else [(b"retry-after", b"%d" % max(1, -int(-retry // 1)))]
