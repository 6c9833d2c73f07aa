"""Decisions and verdicts as responses of the API.

``decision_json`` says what a decision looks like.  ``check_response`` and ``verdict_response_of_one`` write the same
JSON by hand, because they are on the hot path; a test compares them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratekeeper.decision import decision_json, longest_wait
from ratekeeper.errors import InvalidInput, shown
from ratekeeper.http.verdict import NO_NOTES
from ratekeeper.limit import UNLIMITED
from ratekeeper.service.http.response import HEADS, JSON, as_json, response

if TYPE_CHECKING:
    from ratekeeper.check import Check
    from ratekeeper.decision import Decision
    from ratekeeper.http.headers import LimitLabel
    from ratekeeper.http.verdict import HttpVerdict
    from ratekeeper.service.http.server import Call


def check_response(query: str, decision: Decision, limit: int, remaining: int, delay: float, reason: str) -> bytes:
    """One decision, written by hand: the hot path.  Figures that the caller has read need not be worked out again."""
    if reason:
        reason = f',"reason":"{reason.partition(":")[0]}"'  # the mode alone, as in decision_json
    if decision.allowed:
        body = (
            f'{{"allowed":true,"limit":{limit},"remaining":{remaining},"retry_after":0.0,'
            f'"reset_after":{decision.reset_after!r},"delay":{delay!r}{reason}}}'
        ).encode()
        return b"%b%d\r\n\r\n%b" % (HEADS.cached.get((200, JSON)) or HEADS.head(200, JSON), len(body), body)
    retry = decision.retry_after
    body = (
        f'{{"allowed":false,"limit":{limit},"remaining":{remaining},'
        f'"retry_after":{"null" if retry is None else repr(retry)},"reset_after":{decision.reset_after!r},"delay":0.0'
        f"{reason}}}"
    ).encode()
    return response(200, body) if not query else response(deny_status(query), body, JSON, retry_header(retry))


def json_response(call: Call, body: dict[str, Any]) -> bytes:
    """A body with ``allowed`` and ``retry_after``; a refusal has the status that the caller chose."""
    if body["allowed"] or not call.query:
        return response(200, as_json(body))
    return response(deny_status(call.query), as_json(body), JSON, retry_header(body["retry_after"]))


def plan_response(call: Call, plan: tuple[Check, ...], decisions: tuple[Decision, ...]) -> bytes:
    """Several decisions, admitted only if all are."""
    return json_response(call, {
        "allowed": all(decision.allowed for decision in decisions),
        "remaining": min(decision.remaining for decision in decisions),
        "retry_after": longest_wait(decisions),
        "decisions": [
            {"name": check.space, **decision_json(decision)} for check, decision in zip(plan, decisions, strict=True)
        ],
    })  # fmt: skip


def verdict_response_of_one(label: LimitLabel, decision: Decision) -> bytes:
    """The common case of ``verdict_response``, written by hand: one limit decided, and nothing else is to be said."""
    name = f'"{label.rule.name}"'  # printable ASCII without quotes and backslashes: rules are validated
    if decision.allowed:
        allowed, status, retry = "true", '"status":200,"reason":""', "0.0"
    else:
        after = decision.retry_after
        allowed, status, retry = "false", '"status":429,"reason":"limit"', "null" if after is None else repr(after)
    numbers = (
        f'"remaining":{decision.remaining},"retry_after":{retry},"reset_after":{decision.reset_after!r},'
        f'"delay":{decision.delay!r}'
    )
    return response(
        200,
        f'{{"allowed":{allowed},{status},"rule":{name},{numbers},"decisions":[{{"rule":{name},"allowed":{allowed},'
        f'"limit":{decision.limit},{numbers}}}],"shadow":[],"graced":[]}}'.encode(),
    )


def verdict_response(call: Call, with_headers: bool, verdict: HttpVerdict) -> bytes:
    """The verdict on a described request."""
    limited = verdict.limits
    notes = verdict.notes
    has_notes = notes is not NO_NOTES and (notes.refuser or notes.shadow or notes.graced)
    if not has_notes and len(limited) == 1 and not with_headers and not call.query and not limited[0][1].reason:
        return verdict_response_of_one(*limited[0])
    return json_response(call, verdict_json(verdict, with_headers))


def verdict_json(verdict: HttpVerdict, with_headers: bool) -> dict[str, Any]:
    limited = verdict.limits
    notes = verdict.notes
    decisions = [{"rule": label.rule.name, **decision_json(decision)} for label, decision in limited]
    body: dict[str, Any] = {
        "allowed": verdict.allowed,
        "status": verdict.status,
        "reason": verdict.reason,
        "rule": limited[0][0].rule.name if len(limited) == 1 and verdict.reason != "blocked" else verdict.rule,
        "remaining": min([decision["remaining"] for decision in decisions], default=UNLIMITED),
        "retry_after": verdict.retry_after,
        "reset_after": max([decision["reset_after"] for decision in decisions], default=0.0),
        "delay": max([decision["delay"] for decision in decisions], default=0.0),
        "decisions": decisions,
        "shadow": list(notes.shadow),
        "graced": list(notes.graced),
    }
    if with_headers:
        body["headers"] = {name.decode("latin-1"): value.decode("latin-1") for name, value in verdict.headers}
    return body


def deny_status(query: str) -> int:
    """The status of a refusal: 200, as the question was answered, unless ``?deny_status=`` names another."""
    for pair in query.split("&"):
        name, _, value = pair.partition("=")
        if name == "deny_status":
            if not (len(value) == 3 and value.isascii() and value.isdecimal() and value[0] == "4"):
                raise InvalidInput(f"deny_status: expected a status from 400 to 499, got {shown(value)}.")
            return int(value)
    return 200


def retry_header(seconds: float | None) -> list[tuple[bytes, bytes]]:
    return [] if seconds is None else [(b"retry-after", b"%d" % max(1, -int(-seconds // 1)))]
