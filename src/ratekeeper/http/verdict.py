"""The verdict of a policy: what every adapter needs to answer a request.

``allowed`` says whether the request may pass.  ``headers`` belong on either response, ``status`` and ``body`` on a
refusal, and ``delay`` is how many seconds an admitted request must wait before it goes on.
"""

from __future__ import annotations

from json.encoder import encode_basestring_ascii as quote
from math import ceil
from time import time
from typing import TYPE_CHECKING

from ratekeeper.decision import Verdict
from ratekeeper.http.headers import JSON, NO_STORE, PROBLEM, binding, field_text, warning

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ratekeeper.check import Check
    from ratekeeper.decision import Decision
    from ratekeeper.http.headers import Field, LimitLabel, TextField
    from ratekeeper.identity.request import Request
    from ratekeeper.rules.counter import PendingCheck, TierLimit
    from ratekeeper.rules.rule import Rule
    from ratekeeper.rules.settings import Response

    LabelledDecision = tuple[LimitLabel, Decision]

# The reason of a refusal -> its status.
STATUS = {"": 200, "limit": 429, "blocked": 429, "forbidden": 403, "store": 503, "cost": 400}
TITLES = {
    400: ("invalid_cost", "The cost that this request states is not a whole number."),
    403: ("forbidden", "This address may not call this."),
    429: ("rate_limited", "Too many requests"),
    503: ("unavailable", "The service cannot decide right now. Try again in a moment."),
}
PROBLEMS = {
    429: "https://iana.org/assignments/http-problem-types#quota-exceeded",
    503: "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
}
MEDIA = {
    "json": JSON,
    "problem": PROBLEM,
    "text": (b"content-type", b"text/plain; charset=utf-8"),
}


class VerdictNotes:
    """Details that only some verdicts carry: grace, shadow results, what was taken, why a request was blocked."""

    __slots__ = ("blocked_for", "graced", "refuser", "reserved", "shadow", "taken", "unenforced")

    def __init__(
        self,
        *,
        graced: tuple[str, ...] = (),
        shadow: tuple[str, ...] = (),
        unenforced: tuple[tuple[TierLimit, Decision], ...] = (),
        taken: tuple[tuple[TierLimit, Check], ...] = (),
        refuser: Rule | None = None,
        blocked_for: float = 0.0,
        reserved: tuple[PendingCheck, ...] = (),
    ) -> None:
        self.graced = graced  # rules that would have refused the request, but had grace left
        self.shadow = shadow  # rules that would have refused the request if they were enforced
        self.unenforced = unenforced  # the decision of each rule that is not enforced
        self.taken = taken  # the check of each rule, if it cannot be made again from the request: leases, functions
        self.refuser = refuser  # the rule that refused the request without a limit's decision
        self.blocked_for = blocked_for  # seconds
        self.reserved = reserved  # what is given back if the response does not count


NO_NOTES = VerdictNotes()


class HttpVerdict(Verdict):
    """The answer to a request, which is admitted only if every enforced rule that it meets admits it.

    ``reason`` says why it was refused: ``limit``, ``blocked``, ``forbidden``, ``store`` or ``cost``; it is empty for an
    admitted request.
    """

    __slots__ = ("_body", "_headers", "_limits", "_wait", "answers", "notes", "replaced_by", "request", "response")
    # Made on the hot path, so its attributes are set as on any object.  Overriding both methods is what makes Python
    # use its fast path again.
    __setattr__ = object.__setattr__  # type: ignore[assignment]
    __delattr__ = object.__delattr__  # type: ignore[assignment]

    def __init__(
        self,
        request: Request,
        response: Response,
        answers: tuple[tuple[TierLimit, Decision], ...] = (),
        reason: str = "",
        notes: VerdictNotes = NO_NOTES,
    ) -> None:
        self.request = request
        self.response = response
        self.answers = answers
        self.reason = reason
        self.allowed = not reason
        self.notes = notes
        self.replaced_by: HttpVerdict | None = None  # what the response shows instead, if its route has limits too
        self._headers: list[Field] | None = None
        self._body: bytes | None = None
        self._limits: list[LabelledDecision] | None = None
        self._wait = -1

    @property
    def limits(self) -> list[LabelledDecision]:
        """The label and the decision of each limit."""
        if self._limits is None:
            self._limits = limits = []
            for entry, decision in self.answers:
                if len(entry.labels) == 1:
                    limits.append((entry.labels[0], decision))
                else:
                    limits.extend(zip(entry.labels, decision.parts(), strict=True))
        return self._limits

    @property
    def limited(self) -> bool:
        """Whether a limit refused the request, or would have: by grace or in shadow it went on."""
        return self.reason in ("limit", "blocked") or bool(self.notes.graced or self.notes.shadow)

    def replace_decisions(self, decisions: Mapping[TierLimit, Decision]) -> None:
        """Show other decisions from now on: those after something was given back."""
        self.answers = tuple([(entry, decisions.get(entry, decision)) for entry, decision in self.answers])
        self._limits = self._headers = None

    @property
    def decisions(self) -> tuple[Decision, ...]:  # type: ignore[override]
        """The decision of each limit."""
        return tuple([decision for _, decision in self.limits])

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        """The rule of each decision."""
        return tuple([label.rule.name for label, _ in self.limits])

    @property
    def rule(self) -> str | None:
        """The name of the rule that refused, or that is closest to refusing."""
        refuser = self.notes.refuser
        if refuser is None and len(self.answers) == 1:
            return self.answers[0][0].counter.name
        return refuser.name if refuser is not None else super().rule

    @property
    def status(self) -> int:
        """The HTTP status of a refusal; 200 for an admitted request."""
        return STATUS[self.reason]

    @property
    def retry_after(self) -> float | None:
        """Seconds, exactly: the longest wait of the limits that refused; None if waiting does not help."""
        reason = self.reason
        if not reason:  # also if a rule had grace
            return 0.0
        if reason == "limit":
            if len(self.answers) == 1:
                return self.answers[0][1].retry_after
            return super().retry_after
        if reason == "blocked":
            return self.notes.blocked_for
        return 1.0 if reason == "store" else None

    @property
    def delay(self) -> float:
        """Seconds to wait for the turn of an admitted request: the longest of all decisions."""
        return self.answers[0][1].delay if len(self.answers) == 1 else super().delay

    @property
    def wait(self) -> int:
        """Retry-After in whole seconds, with the jitter: at least 1 on a refusal, 0 if the header is not sent."""
        if self._wait < 0:
            after = None if self.allowed else self.retry_after
            if after is not None and self.reason == "limit":  # a lease may be released at any moment
                waits = [(label, each.retry_after or 0.0) for label, each in self.limits if not each.allowed]
                after = max(0.0 if label.leased else wait for label, wait in waits)
            self._wait = 0 if after is None else ceil(after) or 1
            if self._wait and self.response.jitter:
                from random import random

                self._wait += int(random() * (self.response.jitter / 1_000_000 + 1))
        return self._wait

    @property
    def headers(self) -> list[Field]:
        """The header fields to add to the response, admitted or refused; names in lower case."""
        if self._headers is None:
            self._headers = self._make_headers()
        return self._headers

    @property
    def text_headers(self) -> list[TextField]:
        """``headers`` as text, for WSGI and the frameworks that want text."""
        if self._headers is None and self.response.is_usual and self.answers and not self.reason:
            usual = self._usual_headers(as_text=True)
            if usual is not None:
                return usual
        return [field_text(field) for field in self.headers]

    def _make_headers(self) -> list[Field]:
        response = self.response
        fields: list[Field] = []
        if response.is_usual and self.answers:
            usual = self._usual_headers() if not self.reason else self._usual_refusal()
            if usual is not None:
                return usual
        limits = [pair for pair in self.limits if not pair[0].hidden]
        if limits:
            label, decision = limits[0] if len(limits) == 1 else binding(limits)
            wait = 0 if self.allowed or decision.allowed else self.wait
            left, reset = decision.remaining, decision.reset_after
            for dialect in response.dialects:
                fields += dialect(label, left, reset, wait, self._millis(label, decision) if wait else 0, limits)
            if self.notes.graced or any(label.warns for label, _ in limits):
                fields += warning(limits, self.notes.graced)
        if not self.allowed:
            if self.wait:
                fields.append((b"retry-after", b"%d" % self.wait))
            fields.append(NO_STORE)
            if response.render is not None:
                media, self._body = response.render(self)
                fields.append((b"content-type", media.encode("latin-1")))
            elif response.body != "none":
                fields.append(MEDIA[response.body])
        if response.cors:
            fields += self._cors()
        return fields

    def _usual_headers(self, as_text: bool = False) -> Any:
        """The hot path: the usual dialects, if every limit is of a usual kind; else None."""
        policies = []
        least = 2.0
        for entry, decision in self.answers:
            label = entry.plain
            if label is None:
                return None
            policies.append(label.policy)
            left = decision.remaining
            if left * label.weight < least:
                least, bound, bound_left, bound_decision = left * label.weight, label, left, decision
        fields, texts = bound.usual_fields.get(bound_left) or bound.make_usual_fields(bound_left)
        reset_at = ceil(time() + bound_decision.reset_after)
        if as_text:
            policy = b", ".join(policies).decode("latin-1")
            return [*texts, ("x-ratelimit-reset", str(reset_at)), ("ratelimit-policy", policy)]
        return [
            *fields,
            (b"x-ratelimit-reset", b"%d" % reset_at),
            bound.policy_field if len(policies) == 1 else (b"ratelimit-policy", b", ".join(policies)),
        ]

    def _usual_refusal(self) -> list[Field] | None:
        """The hot path of a refusal by one limit; makes the body too, so that a 429 costs no more than a 200."""
        if len(self.answers) != 1 or not self.response.is_terse:
            return None
        entry, decision = self.answers[0]
        label = entry.plain
        after = decision.retry_after
        if label is None or label.rule.message is not None or after is None or self.reason != "limit":
            return None
        self._wait = wait = ceil(after) or 1
        left, reset = decision.remaining, decision.reset_after
        reset_at = ceil(time() + (reset if reset > wait else wait))
        # A wait that is sent in milliseconds has its own fields; longer ones share those of a whole second.
        millis = ceil(after * 1000) if after < 10 else wait * 1000
        cached = label.refusals.get((millis, left, reset_at))
        if cached is None:
            problem = self._problem(self.message) if self.response.body == "problem" else None
            cached = label.make_refusal(millis, wait, left, reset_at, problem)
        fields, self._body = cached
        return [*fields]

    def _millis(self, label: LimitLabel, decision: Decision) -> int:
        """The wait of a refusal in milliseconds; whole seconds if it has jitter or Retry-After is not from it."""
        millis = ceil((decision.retry_after or 0.0) * 1000)
        is_exact = not label.leased and -(-millis // 1000) == self.wait and not self.response.jitter
        return millis if is_exact else self.wait * 1000

    def _cors(self) -> list[Field]:
        """The fields that let a browser's script read a refusal, and the limits on any response."""
        origin = self.request.value(b"origin")
        if origin is None or not (origin in self.response.cors or "*" in self.response.cors):
            return []
        if not (origin.isascii() and origin.isprintable()):  # not an origin, and unsafe to send back
            return []
        fields = [(b"access-control-expose-headers", self.response.exposed)]
        if not self.allowed:
            fields += [(b"access-control-allow-origin", origin.encode("latin-1")), (b"vary", b"Origin")]
            if "*" not in self.response.cors:
                fields.append((b"access-control-allow-credentials", b"true"))
        return fields

    @property
    def refusing_limit(self) -> LabelledDecision | None:
        """Of the limits that may be shown, the one that refused with the longest wait."""
        refusing = [pair for pair in self.limits if not pair[0].hidden and not pair[1].allowed]
        return binding(refusing) if refusing else None

    @property
    def body(self) -> bytes:
        """The body of a refusal in the configured form; it tells the caller only what the caller may know."""
        if self.reason and self._body is None:
            if self.response.render is None:
                self._body = self._make_body()
            else:
                self._headers = self._make_headers()  # renders the body too, for its media type
        return self._body or b""

    def _make_body(self) -> bytes:
        form = self.response.body
        if form == "none":
            return b""
        refusing = self.refusing_limit
        message = self._message_about(refusing)
        if form == "text":
            return message.encode() + b"\n"
        if form == "problem":
            return self._problem(message)
        text = f'{{"error": "{TITLES[self.status][0]}", "message": {quote(message)}'
        if refusing is not None:
            text += f', "limit": {refusing[0].capacity}'
        if self.wait:
            text += f', "retry_after": {self.wait}'
        if refusing is not None:
            resets = [decision.reset_after for _, decision in self.limits if not decision.allowed]
            text += f', "reset_at": {ceil(time() + max(self.wait, *resets))}'
        return text.encode() + b"}"

    def _problem(self, message: str) -> bytes:
        """A body after RFC 9457, with the problem types of the RateLimit draft."""
        from json import dumps

        status = self.status
        problem: dict[str, object] = {"type": PROBLEMS.get(status, "about:blank"), "title": TITLES[status][1]}
        problem |= {"status": status, "detail": message}
        if status == 429:
            violated = [label.name for label, decision in self.limits if not (decision.allowed or label.hidden)]
            problem["violated-policies"] = violated
        if self.wait:
            problem["retry-after"] = self.wait
        return dumps(problem).encode()

    @property
    def message(self) -> str:
        """The text that a refused client reads."""
        return self._message_about(self.refusing_limit)

    def _message_about(self, refusing: LabelledDecision | None) -> str:
        rule = refusing[0].rule if refusing is not None else self.notes.refuser
        status, wait = self.status, self.wait
        template = (rule.message if rule is not None else None) or (self.response.message if status == 429 else None)
        if template is not None:
            capacity = refusing[0].capacity if refusing is not None else 0
            return template.format(retry_after=wait, limit=capacity, rule=rule.name if rule is not None else "")
        if status != 429:
            return TITLES[status][1]
        if refusing is not None and not refusing[0].capacity:
            return "Too many requests: the limit is 0."
        if not wait:
            return "Too many requests: this one is larger than the limit allows at any time."
        return f"Too many requests. Try again in {wait} second{'s' if wait != 1 else ''}."
